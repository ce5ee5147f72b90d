"""Redaction: what looks like a secret, by the name it goes under, is never shown or indexed.

Text is judged as text: nothing is parsed, and nothing is ever unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_WORDS = (
    "passwd", "password", "passphrase", "secret", "token", "api_key", "apikey", "api-key", "access_key", "access-key",
    "accesskey", "private_key", "private-key", "privatekey", "authorization", "credential", "cookie", "session_id",
    "session-id", "sessionid", "signature", "cvv", "cvc", "card_number", "cardnumber", "card-number", "iban", "ssn",
)  # fmt: skip
_HINTS = (*_WORDS, "://", "bearer", "basic")
_SECRET = "|".join(_WORDS)
_KEY = re.compile(_SECRET, re.IGNORECASE)
# The rest of a name, its closing quote if it has one, a sign that a value follows, and the value: quoted or a word.
# Every repetition before the value is bounded: a traceback of one endless word must not take seconds.
_PAIR = re.compile(
    rf"((?:{_SECRET})[\w.-]{{0,40}}(?:\\?['\"])?\s{{0,5}}(?:=>|[:=])\s{{0,5}})"
    r"((?:[bru]{0,2})?(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?)"
    r"|\\\"[^\"\\]*\\\"|(?:(?:Bearer|Basic|Token)\s{1,5})?[^\s,;&)\]}'\"]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s{1,5}[\w.~+/=-]{8,}", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s:/@]{0,200}:)[^\s/@]{1,500}(?=@)", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Give a text in which the values of secret names, bearer tokens and passwords in URLs are hidden."""
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return text
    text = _URL_PASSWORD.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _PAIR.sub(rf"\1{HIDDEN}", text)


def redact(value: Any, depth: int = 0) -> Any:
    """Give plain values in which everything under a secret name is hidden; what lies too deep is left out."""
    if depth > 20:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): HIDDEN if _KEY.search(str(key)) else redact(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(one, depth + 1) for one in value]
    return redact_text(value) if isinstance(value, str) else value
