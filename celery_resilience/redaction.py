"""Redaction: what looks like a secret, by the name it goes under, is never shown or indexed.

Text is judged as text: nothing is parsed, and nothing is ever unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SECRET = (
    r"(?<![\w.-])[\w.-]{0,60}"  # bounded, or a long word would be tried from each of its letters
    r"(?:passw(?:or)?d|passphrase|secret|token|api_?-?key|access_?-?key|private_?-?key|authorization"
    r"|credential|cookie|session_?-?id|signature|cvv|cvc|card_?-?number|iban|ssn)[\w.-]{0,60}"
)
_KEY = re.compile(_SECRET, re.IGNORECASE)
# A name, its closing quote if it has one, a sign that a value follows, and the value: quoted or a word.
_PAIR = re.compile(
    rf"({_SECRET}(?:\\?['\"])?\s*(?:=>|[:=])\s*)((?:[bru]{{0,2}})?(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?)"
    r"|\\\"(?:[^\"\\])*\\\"|(?:(?:Bearer|Basic|Token)\s+)?[^\s,;&)\]}'\"]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s:/@]*:)[^\s/@]+(?=@)", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Give a text in which the values of secret names, bearer tokens and passwords in URLs are hidden."""
    text = _URL_PASSWORD.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _PAIR.sub(rf"\1{HIDDEN}", text)


def redact(value: Any, depth: int = 0) -> Any:
    """Give plain values in which everything under a secret name is hidden; what lies too deep is left out."""
    if depth > 20:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): HIDDEN if _KEY.fullmatch(str(key)) else redact(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(one, depth + 1) for one in value]
    return redact_text(value) if isinstance(value, str) else value
