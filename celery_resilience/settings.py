"""Settings: the `resilience_*` names of `app.conf`, read once, checked, frozen.

One function fills them, one checks them; a message names the field, the value, the bound and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .breaker_policy import BreakerPolicy
from .checks import number, one_of, required, suggestion, text, whole_number
from .errors import ConfigurationError
from .failure import Classifier
from .policy import CLASS_DEFAULTS, PolicyOption, RetryPolicies, RetryPolicy, policies_from

PREFIX = "resilience_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set for a whole app.

    `redis_url` is where shared state lives; without it the broker's Redis serves, else the result backend's.
    `breaker_policy` is for breakers without one in `breakers`, by name; of `max_breakers` the least used are forgotten.
    `broker_name` names the broker in a Redis that is not the broker's own, so that a change of its URL strands nothing.
    `queue_breakers` names, by queue, the breaker that all its tasks wait for: while it is open it is not consumed.
    `max_queue_length` is by queue, for all tasks sent there.
    `visibility_timeout_seconds` applies the recommended transport options to a Redis broker.
    `dlq_enabled` has dead tasks kept as letters, `dlq_collect` has workers move them from the DLQ into the ledger.
    `dlq_expired` makes letters of tasks that expired before they ran, too.
    `dlq_queue` names the queue of dead letters, `{queue}` in it stands for the queue that a message came from.
    `database_url` is where letters and jobs are kept; without it a SQLite file of this machine, named by the app.
    """

    redis_url: str | None = None
    key_prefix: str = "resilience"
    broker_name: str | None = None
    retry_policy: PolicyOption = None
    deadline_seconds: float | None = None
    failure_rules: Any = ()
    breaker_policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    breakers: Mapping[str, BreakerPolicy] = field(default_factory=dict)
    max_breakers: int = 1000
    default_breaker: str | None = None
    queue_breakers: Mapping[str, str] = field(default_factory=dict)
    max_queue_length: Mapping[str, int] = field(default_factory=dict)
    queue_full_wait_seconds: float = 0.0
    visibility_timeout_seconds: float | None = None
    schedule_poll_seconds: float = 0.25
    store_timeout_seconds: float = 0.15
    store_cooldown_seconds: float = 5.0
    requeue_pause_seconds: float = 1.0
    dlq_enabled: bool = True
    dlq_collect: bool = True
    dlq_expired: bool = False
    dlq_queue: str = "resilience.dlq"
    dlq_retention_days: float = 30.0
    database_url: str | None = None

    def __post_init__(self) -> None:
        text(PREFIX + "redis_url", self.redis_url, "redis://host:6379/0")
        required(PREFIX + "key_prefix", self.key_prefix)
        text(PREFIX + "key_prefix", self.key_prefix, "resilience")
        text(PREFIX + "broker_name", self.broker_name, "rabbit-1")
        policies_from(PREFIX + "retry_policy", self.retry_policy)
        check_rules(PREFIX + "failure_rules", self.failure_rules)
        self._check_breakers()
        self._check_queues()
        self._check_dead_letters()
        one_of(PREFIX + "default_breaker", self.default_breaker, ("task",))
        number(PREFIX + "deadline_seconds", self.deadline_seconds, low=0.001, high=366 * 86400)
        number(PREFIX + "visibility_timeout_seconds", self.visibility_timeout_seconds, low=1, high=86400)
        for name, low, high in (
            ("schedule_poll_seconds", 0.05, 10),
            ("store_timeout_seconds", 0.01, 5),
            ("store_cooldown_seconds", 0.1, 300),
            ("requeue_pause_seconds", 0, 60),
            ("queue_full_wait_seconds", 0, 3600),
            ("dlq_retention_days", 0.01, 3660),
        ):
            required(PREFIX + name, getattr(self, name))
            number(PREFIX + name, getattr(self, name), low=low, high=high)

    def _check_breakers(self) -> None:
        remedy = "Write BreakerPolicy(failure_rate=0.5)."
        by_name: Any = self.breakers
        if not isinstance(by_name, Mapping):
            remedy = 'Write {"payments": BreakerPolicy(failure_rate=0.5)}.'
            raise ConfigurationError(PREFIX + "breakers", by_name, "is not a mapping", remedy)
        given: dict[str, Any] = {"breaker_policy": self.breaker_policy}
        given |= {f"breakers[{name!r}]": policy for name, policy in by_name.items()}
        for name, policy in given.items():
            if not isinstance(policy, BreakerPolicy):
                raise ConfigurationError(PREFIX + name, policy, "is not a BreakerPolicy", remedy)
        required(PREFIX + "max_breakers", self.max_breakers)
        whole_number(PREFIX + "max_breakers", self.max_breakers, low=1, high=100_000)

    def _check_queues(self) -> None:
        for name, example in (("max_queue_length", '{"emails": 10_000}'), ("queue_breakers", '{"emails": "smtp"}')):
            by_queue: Any = getattr(self, name)
            if not isinstance(by_queue, Mapping):
                raise ConfigurationError(PREFIX + name, by_queue, "is not a mapping by queue", f"Write {example}.")
            for queue, value in by_queue.items():
                required(f"{PREFIX}{name}: queue", queue)
                text(f"{PREFIX}{name}: queue", queue, "emails")
                required(f"{PREFIX}{name}[{queue!r}]", value)
        for queue, length in self.max_queue_length.items():
            whole_number(f"{PREFIX}max_queue_length[{queue!r}]", length, low=1, high=1_000_000_000)
        for queue, breaker in self.queue_breakers.items():
            text(f"{PREFIX}queue_breakers[{queue!r}]", breaker, "smtp")

    def _check_dead_letters(self) -> None:
        for name in ("dlq_enabled", "dlq_collect", "dlq_expired"):
            is_on: Any = getattr(self, name)
            if not isinstance(is_on, bool):
                raise ConfigurationError(PREFIX + name, is_on, "is not True or False", "Write False for off.")
        required(PREFIX + "dlq_queue", self.dlq_queue)
        text(PREFIX + "dlq_queue", self.dlq_queue, "resilience.dlq")
        text(PREFIX + "database_url", self.database_url, "postgresql+psycopg://user@host/resilience")
        left = self.dlq_queue.replace("{queue}", "")
        if "{" in left or "}" in left or self.dlq_queue == "{queue}":
            remedy = "Write a name, or a pattern like '{queue}.dlq'."
            raise ConfigurationError(PREFIX + "dlq_queue", self.dlq_queue, "is not the name of a queue", remedy)

    @property
    def policies(self) -> RetryPolicies:
        """Give the app's retry policy per failure class."""
        return policies_from(PREFIX + "retry_policy", self.retry_policy, CLASS_DEFAULTS)

    @classmethod
    def names(cls) -> list[str]:
        """Give every known setting with its prefix."""
        return [PREFIX + field.name for field in fields(cls)]

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Settings:
        """Fill from `resilience_*` names; an unknown one is an error with a suggestion."""
        for name in given:
            if name not in cls.names():
                raise ConfigurationError(name, given[name], "is not a setting", suggestion(name, cls.names()))
        return cls(**{name.removeprefix(PREFIX): value for name, value in given.items()})


def check_rules(field: str, rules: Any) -> None:
    """Refuse failure rules that are none, under the name by which the user gave them."""
    try:
        Classifier(app_rules=rules)
    except ConfigurationError as error:
        raise error.about("app_rules", field) from None


CALL_OPTIONS = (
    "max_attempts",
    "deadline_seconds",
    "strategy",
    "base_seconds",
    "factor",
    "cap_seconds",
    "floor_seconds",
    "jitter",
)


def check_call_options(options: Any) -> dict[str, Any]:
    """Check what was given to one call as `resilience={…}`: known names, JSON values, sound together."""
    if not isinstance(options, Mapping):
        raise ConfigurationError("resilience", options, "is not a mapping", 'Write resilience={"max_attempts": 3}.')
    for name, value in options.items():
        if name not in CALL_OPTIONS:
            raise ConfigurationError(
                f"resilience[{name!r}]", value, "is not an option of a call", suggestion(str(name), CALL_OPTIONS)
            )
        if value is None or isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ConfigurationError(
                f"resilience[{name!r}]", value, "is not a number or a name", "Per call only JSON values can travel."
            )
    policy_of_call(options)
    number("resilience['deadline_seconds']", options.get("deadline_seconds"), low=0.001, high=366 * 86400)
    return dict(options)


def policy_of_call(options: Mapping[str, Any]) -> RetryPolicy | None:
    """Give the retry policy that one call asked for, None if it asked for none."""
    stated = {name: value for name, value in options.items() if name != "deadline_seconds"}
    return RetryPolicy(**stated) if stated else None
