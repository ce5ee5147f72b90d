"""The tables of the ledger. They have a registry of their own, so that they stay out of the user's metadata."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

_NUMBER = BigInteger().with_variant(Integer, "sqlite")


class _Base(SQLModel, registry=registry(metadata=MetaData())):
    """Keeps our tables apart."""

    __table__: ClassVar[Any]


class LetterRow(_Base, table=True):
    """What a letter is found by; the message itself lies in another table, so that a search reads little."""

    __tablename__ = "resilience_letters"

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True, autoincrement=True))
    id: str = Field(sa_column=Column(String(64), nullable=False, unique=True))
    state: str = Field(sa_column=Column(String(16), nullable=False))
    reason: str = Field(sa_column=Column(String(32), nullable=False))
    task: str | None = Field(sa_column=Column(String(500)))
    task_id: str | None = Field(sa_column=Column(String(500)))
    queue: str | None = Field(sa_column=Column(String(500)))
    failure_class: str = Field(sa_column=Column(String(32), nullable=False))
    error_type: str = Field(sa_column=Column(String(500), nullable=False))
    error_name: str = Field(sa_column=Column(String(500), nullable=False))
    error_message: str = Field(sa_column=Column(Text, nullable=False))
    fingerprint: str = Field(sa_column=Column(String(64), nullable=False))
    arguments: str = Field(sa_column=Column(String(64), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    generation: int = Field(sa_column=Column(Integer, nullable=False))
    first_failed_at: float | None = Field(sa_column=Column(Float))
    failed_at: float = Field(sa_column=Column(Float, nullable=False))
    collected_at: float = Field(sa_column=Column(Float, nullable=False))
    settled_at: float | None = Field(sa_column=Column(Float))
    parked: bool = Field(sa_column=Column(Boolean, nullable=False))
    job_id: str | None = Field(sa_column=Column(String(500)))
    group_id: str | None = Field(sa_column=Column(String(500)))
    claim: str | None = Field(sa_column=Column(String(100)))
    text: str = Field(sa_column=Column(Text, nullable=False))


class MessageRow(_Base, table=True):
    """The message of a letter as kombu packs it, and what was told of its end, as JSON."""

    __tablename__ = "resilience_messages"

    number: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    told: str = Field(sa_column=Column(Text, nullable=False))
    packed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class ClaimRow(_Base, table=True):
    """A batch that somebody is sending: what is to be done with its letters, and until when nobody else may."""

    __tablename__ = "resilience_claims"

    token: str = Field(sa_column=Column(String(100), primary_key=True))
    until: float = Field(sa_column=Column(Float, nullable=False))
    who: str = Field(sa_column=Column(String(200), nullable=False))
    plan: str = Field(sa_column=Column(Text, nullable=False))


class AuditRow(_Base, table=True):
    """One action of an operator."""

    __tablename__ = "resilience_audit"

    number: int | None = Field(default=None, sa_column=Column(_NUMBER, primary_key=True, autoincrement=True))
    at: float = Field(sa_column=Column(Float, nullable=False))
    who: str = Field(sa_column=Column(String(200), nullable=False))
    verb: str = Field(sa_column=Column(String(32), nullable=False))
    selection: str = Field(sa_column=Column(Text, nullable=False))
    count: int = Field(sa_column=Column(Integer, nullable=False))
    note: str = Field(sa_column=Column(Text, nullable=False))


LETTERS: Table = LetterRow.__table__
MESSAGES: Table = MessageRow.__table__
CLAIMS: Table = ClaimRow.__table__
AUDIT: Table = AuditRow.__table__
