"""The failure classes, and the words in which library knowledge is written.

This is the lowest module of the classifier: everything else in `libraries` imports it and it imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeAlias


class FailureClass(str, Enum):
    """What kind of failure an exception is, and so what helps against it."""

    TRANSIENT = "TRANSIENT"
    """It heals by itself soon: try again."""
    NETWORK = "NETWORK"
    """The other side was not reached, or the line broke."""
    RATE_LIMITED = "RATE_LIMITED"
    """The other side asks for fewer calls: wait, as long as it says if it does."""
    SYSTEM = "SYSTEM"
    """A resource of ours is away or exhausted: memory, disk, a pool, a store."""
    PERMANENT = "PERMANENT"
    """The same call fails the same way for ever."""
    VALIDATION = "VALIDATION"
    """The input is wrong."""
    AUTHENTICATION = "AUTHENTICATION"
    """Credentials are missing, wrong or expired, or do not allow this."""
    STRUCTURAL = "STRUCTURAL"
    """The other side has another shape than the code expects: schema, page, format."""
    POISON = "POISON"
    """The message itself harms whoever takes it."""
    UNKNOWN = "UNKNOWN"
    """Nobody knows this exception."""
    NOT_A_FAILURE = "NOT_A_FAILURE"
    """Control flow of Celery or the interpreter: must pass through untouched."""

    def __str__(self) -> str:
        return self.value


TRANSIENT = FailureClass.TRANSIENT
NETWORK = FailureClass.NETWORK
RATE_LIMITED = FailureClass.RATE_LIMITED
SYSTEM = FailureClass.SYSTEM
PERMANENT = FailureClass.PERMANENT
VALIDATION = FailureClass.VALIDATION
AUTHENTICATION = FailureClass.AUTHENTICATION
STRUCTURAL = FailureClass.STRUCTURAL
POISON = FailureClass.POISON
UNKNOWN = FailureClass.UNKNOWN
NOT_A_FAILURE = FailureClass.NOT_A_FAILURE

Answer: TypeAlias = FailureClass | BaseException | tuple[BaseException, ...] | None
"""A class; or the inner exception or exceptions to classify instead; or None: no opinion, ask the next."""
Reader: TypeAlias = Callable[[BaseException], Answer]
"""Reads one exception; may raise anything, which counts as None."""
Row: TypeAlias = FailureClass | Reader | tuple[FailureClass | Reader, ...]
"""What is known of one class of a library; of a tuple the first that has an opinion counts."""
Rows: TypeAlias = Mapping[str, Row]
"""Class name to row. A class is found through the MRO, so a base speaks for subclasses that have no row."""
Tables: TypeAlias = Mapping[str, Rows]
"""Module prefix (`google.api_core`) to rows; the longest prefix counts first."""
