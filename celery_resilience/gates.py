"""What must admit a task before its body runs, as its options say: breakers, a shared rate, a bulkhead."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .breaker_policy import BreakerPolicy
from .checks import whole_number
from .errors import ConfigurationError
from .rate import Rate, read_rate

BreakerOption = str | BreakerPolicy | Sequence[str] | Callable[..., Any] | None
RateOption = str | Rate | Callable[..., Any] | None
WhenOpen = str | Callable[..., Any]

MAX_NAME = 200
WHEN_OPEN = ("park", "fail", "dead_letter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The gates of one task; names that its options leave out are the task's own."""

    task: str
    breaker: BreakerOption = None
    when_open: WhenOpen = "park"
    rate: RateOption = None
    places: int | None = None

    @property
    def is_open_way(self) -> bool:
        """Say whether there is no gate at all, nor anything to do instead of the body."""
        return self.breaker is None and self.rate is None and self.places is None and self.fallback is None

    @property
    def fallback(self) -> Callable[..., Any] | None:
        """Give the function whose result takes the place of the body's when a breaker refuses, if there is one."""
        return self.when_open if callable(self.when_open) else None

    @property
    def declared(self) -> list[str]:
        """Name the breakers that are known without the arguments of a call."""
        return [] if _is_asked(self.breaker) else [name for name, _ in self.breakers((), {})]

    def breakers(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, BreakerPolicy | None]]:
        """Name the breakers of one call; a callable is asked with the task's arguments."""
        option = _ask(self.breaker, args, kwargs)
        if option is None:
            return []
        if isinstance(option, BreakerPolicy):
            return [(self.task, option)]
        names = [option] if isinstance(option, str) else option
        if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(n, str) and n for n in names):
            raise ConfigurationError(
                f"task {self.task}: breaker",
                option,
                "is no breaker",
                "Let the function give a name or a list of names.",
            )
        return [(name, None) for name in dict.fromkeys(map(_sound, names))]

    def rate_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, Rate] | None:
        """Name the rate of one call; a callable gives a rate, or a rate and a key, or None for no limit."""
        option = _ask(self.rate, args, kwargs)
        if option is None:
            return None
        if isinstance(option, tuple):
            written, key = option
            return _sound(f"{self.task}:{key}"), read_rate("rate_limit_shared", written)
        return self.task, read_rate("rate_limit_shared", option)


def check_gates(where: str, gates: Gates) -> Gates:
    """Refuse, at bind time, what cannot work."""
    if not (gates.breaker is None or _is_asked(gates.breaker) or isinstance(gates.breaker, BreakerPolicy)):
        names = [gates.breaker] if isinstance(gates.breaker, str) else gates.breaker
        if not isinstance(names, (list, tuple)) or not names or not all(isinstance(n, str) and n for n in names):
            raise ConfigurationError(
                f"{where}breaker", gates.breaker, "is no breaker",
                "Give a name, a list of names, a BreakerPolicy, or a function of the task's arguments that gives one.",
            )  # fmt: skip
    if not callable(gates.when_open) and gates.when_open not in WHEN_OPEN:
        raise ConfigurationError(
            f"{where}when_open", gates.when_open, "is not known",
            'Use "park", "fail", "dead_letter", or a fallback: a function of the arguments that gives the result.',
        )  # fmt: skip
    if gates.rate is not None and not _is_asked(gates.rate):
        read_rate(f"{where}rate_limit_shared", gates.rate)
    whole_number(f"{where}max_concurrent", gates.places, low=1, high=1_000_000)
    return gates


def _sound(name: str) -> str:
    """Make a name out of user input one that Redis takes: printable, and a digest in place of what is too long."""
    name = "".join(c if c.isprintable() else "?" for c in name.encode("utf-8", "replace").decode("utf-8"))
    return name if len(name) <= MAX_NAME else f"{name[:100]}…{hashlib.sha1(name.encode()).hexdigest()}"


def _ask(option: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Give what was written, or what the function that was given says of these arguments."""
    return option(*args, **kwargs) if _is_asked(option) else option


def _is_asked(option: Any) -> bool:
    return callable(option) and not isinstance(option, (BreakerPolicy, Rate, str))
