"""Checks of what users write: a wrong value gets an error that names the field, the value, the bound and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

from .errors import ConfigurationError


def number(field: str, value: Any, *, low: float, high: float) -> None:
    """Refuse what is not a finite number between the bounds; None passes."""
    if value is None:
        return
    bounds = f"{_plain(low)} to {_plain(high)}"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigurationError(field, value, "is not a number", f"Give a number from {bounds}.")
    if not low <= value <= high:
        example = _plain(min(max(low, 1), high))
        raise ConfigurationError(field, value, f"must be from {bounds}", f"Give a number like {example}.")


def whole_number(field: str, value: Any, *, low: int, high: int) -> None:
    """Refuse what is not a whole number between the bounds; None passes."""
    if value is not None and not isinstance(value, int):
        raise ConfigurationError(field, value, "is not a whole number", f"Give a whole number from {low} to {high}.")
    number(field, value, low=low, high=high)


def one_of(field: str, value: Any, allowed: tuple[str, ...], remedy: str = "") -> None:
    """Refuse what is not one of the names; None passes."""
    if value is not None and value not in allowed:
        names = ", ".join(repr(name) for name in allowed)
        raise ConfigurationError(field, value, "is not known", f"Use one of {names} {remedy}".rstrip() + ".")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Say which name was probably meant, else list them all."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else "Known are: " + ", ".join(known) + "."


def near_miss(name: str, known: Iterable[str]) -> str | None:
    """Give the known name that this one is a slip of the pen away from, if any."""
    known = list(known)
    beginning = [option for option in known if option.startswith(f"{name}_")]
    close = beginning or difflib.get_close_matches(name, known, n=1, cutoff=0.82)
    return close[0] if close and close[0] != name else None


def text(field: str, value: Any, example: str) -> None:
    """Refuse what is not a non-empty text that can be written down as UTF-8; None passes."""
    is_text = isinstance(value, str) and value.strip() and value == value.encode("utf-8", "replace").decode("utf-8")
    if value is not None and not is_text:
        raise ConfigurationError(field, value, "is not a text", f"Write for example {example!r}.")


def required(field: str, value: Any) -> None:
    """Refuse None."""
    if value is None:
        raise ConfigurationError(field, value, "must be set", "Leave the setting out to have its default.")


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)
