"""Act on the outcome of an attempt: store what follows, then tell Celery.

The only raiser of Retry, Reject and Ignore. The order is the promise: the next attempt is stored before the exception
that has Celery ack the message; if it cannot be stored, the message goes back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject
from celery.exceptions import Retry as CeleryRetry

from .admission import Admission, Refused
from .attempts import HEADER, Attempts, attempts_for, slot_of
from .decision import DeadLetter, DeadReason, Decision, History, Retry, decide
from .errors import (
    BreakerOpenError,
    DeadlineExceededError,
    LimitReachedError,
    ResilienceError,
    StoreUnavailableError,
)
from .events import Event, tell
from .failure import Classifier, Failure, FailureClass, FailureContext
from .gates import Gates
from .limits import BUDGET_COST
from .policy import RETRYABLE, RetryPolicies, RetryPolicy, policies_from
from .runtime import Runtime
from .schedule import Schedule
from .settings import policy_of_call
from .transport.envelope import Envelope, original, with_arguments
from .transport.lineage import has_own_lineage, lineage_name
from .transport.queues import delays_natively, origin_queue

logger = logging.getLogger(__name__)


Arguments = tuple[Sequence[Any], Mapping[str, Any]]
LONGEST_PARK_SECONDS = 60.0  # then it asks again: a refusal may have come from knowledge that was out of date
REFUSED = "_resilience_refused"  # set on a request whose body was told that Celery's own limit is reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of one task, laid over those of its app."""

    policies: RetryPolicies
    classifier: Classifier
    deadline_seconds: float | None
    gates: Gates


class Outcome:
    """One run of a body: what may start it, and what follows from its end."""

    def __init__(self, task: Task[Any, Any], request: Any, runtime: Runtime, plan: Plan) -> None:
        self.task = task
        self.request = request
        self.runtime = runtime
        self.plan = plan
        self.attempts = attempts_of(request)

    def admit(self) -> None:
        """Let the body start, or raise what keeps it from starting."""
        if self._is_behind():
            tell(logger, logging.INFO, Event.ATTEMPT_SUPERSEDED, **self._fields())
            raise Ignore(f"Attempt {self.attempts.attempt} has been followed by a later one.")
        deadline_at = self.attempts.deadline_at
        if deadline_at is not None and self.runtime.clock.time() > deadline_at:
            tell(logger, logging.ERROR, Event.TASK_ENDED, **self._fields(), reason=DeadReason.DEADLINE)
            raise DeadlineExceededError

    def classify(self, error: Exception) -> Failure:
        """Classify the live exception, with all that the rules may look at."""
        context = FailureContext(
            task=self.task.name,
            args=tuple(self.request.args or ()),
            kwargs=self.request.kwargs or {},
            headers=self.request.headers or {},
            attempt=self.attempts.attempt,
        )
        return self.plan.classifier.classify(error, context, now=self.runtime.clock.time())

    def decide(self, failure: Failure) -> Decision:
        """Decide by the policy of this call, task and app."""
        if self.request.__dict__.get(REFUSED):
            return DeadLetter(DeadReason.REFUSED)
        history = History(
            failed_attempts=self.attempts.failed_attempts,
            previous_delay=self.attempts.previous_delay,
            deadline_at=self.started(self.runtime.clock.time()).deadline_at,
        )
        return decide(failure, history, self._policy(failure.failure_class), self.runtime.clock)

    def settle(self, error: Exception, admission: Admission | None = None) -> BaseException | None:
        """Follow a failed body: gives what to raise instead of the error, None if the error itself is the outcome."""
        if isinstance(error, (BreakerOpenError, LimitReachedError)):
            if admission is not None:
                admission.cancel()
            if self._is_to_fail(error):
                return None
            return self.park(error.name, error.retry_after, error)  # nobody was called: no attempt was made
        failure = self.classify(error)
        if admission is not None:
            admission.failed(failure)
        if failure.failure_class is FailureClass.NOT_A_FAILURE:
            return None
        match self.decide(failure):
            case Retry(delay):
                delay, owed = (delay, ()) if admission is None else self._budgeted(delay, failure, admission)
                self.store(replace(self.after(failure, delay), owed=owed), delay, error)
                return celery_retry(error, delay)
            case DeadLetter(reason):
                self._log(failure, str(reason))
                return None

    def park(
        self,
        waits_for: str,
        delay: float,
        error: ResilienceError,
        reserved: tuple[str, ...] = (),
        owed: tuple[str, ...] = (),
    ) -> BaseException | None:
        """Set the message aside without an attempt; gives what to raise, None if the refusal itself is the outcome."""
        clock, now = self.runtime.clock, self.runtime.clock.time()
        # A reserved slot is exact; everything else comes back spread out, so that not all ask in one instant.
        is_exact = waits_for in [f"rate {slot_of(one)[0]}" for one in reserved]
        if not is_exact:
            delay = min(delay, LONGEST_PARK_SECONDS)
            delay += clock.uniform(0.0, max(0.5, delay / 4))
        attempts = self.started(now).after_park(waits_for, reserved, owed)
        schedule = self.runtime.schedule
        is_too_late = attempts.deadline_at is not None and now + delay > attempts.deadline_at
        envelope = original(self.request.properties, self.request.delivery_info)
        if is_too_late or schedule is None or envelope is None:
            reason = DeadReason.DEADLINE if is_too_late else DeadReason.REFUSED_BY_GATE
            tell(logger, logging.ERROR, Event.TASK_ENDED, **self._fields(), reason=reason, error=error)
            return past_deadline(error) if is_too_late else None
        self._keep_or_give_back(lambda: self._store_park(schedule, envelope, attempts, delay, waits_for), error)
        tell(logger, logging.INFO, Event.TASK_PARKED, **self._fields(), waits_for=waits_for, delay=round(delay, 3))
        return Ignore(str(error))

    def _store_park(
        self, schedule: Schedule, envelope: Envelope, attempts: Attempts, delay: float, waits_for: str
    ) -> None:
        attempts, number = self.travelling(attempts), attempts.step + 1
        message = next_message(envelope, attempts, self.request.retries)
        if not schedule.add_park(message, attempts.queue, str(attempts.lineage), number, delay, waits_for):
            own = self._beside_namesake(attempts)
            if own is not None:
                message = next_message(envelope, own, self.request.retries)
                schedule.add_park(message, own.queue, str(own.lineage), number, delay, waits_for)

    def refuse(self, refused: Refused) -> BaseException:
        """Give what to raise when a gate refuses: the refusal itself, or what sets the message aside."""
        if self._is_to_fail(refused.error):
            return refused.error
        parked = self.park(refused.by, refused.delay, refused.error, refused.reserved, refused.owed)
        return parked or refused.error

    def _is_to_fail(self, error: Exception) -> bool:
        """Say whether the task shall end with this refusal, wherever it met it: no attempt follows."""
        if self.plan.gates.when_open != "fail" or not isinstance(error, BreakerOpenError):
            return False
        tell(logger, logging.ERROR, Event.TASK_ENDED, **self._fields(), reason=DeadReason.REFUSED_BY_GATE, error=error)
        return True

    def _budgeted(self, delay: float, failure: Failure, admission: Admission) -> tuple[float, tuple[str, ...]]:
        """Hold a retry back when retries are more than their share of successes: a storm becomes a queue.

        Gives the delay, and what it still owes to budgets. Never past the deadline: there the attempt is made without
        waiting longer.
        """
        turn, owed = admission.spend(BUDGET_COST.get(failure.failure_class, 1.0))
        held, now = max(delay, turn), self.runtime.clock.time()
        deadline_at = self.started(now).deadline_at
        return (delay, ()) if deadline_at is not None and now + held > deadline_at else (held, owed)

    def store(
        self, attempts: Attempts, delay: float, error: BaseException | None, arguments: Arguments | None = None
    ) -> None:
        """Store the next attempt, with other arguments if some are given; else the message goes back, after a pause."""
        self._keep_or_give_back(lambda: self._store(attempts, delay, arguments), error)

    def _keep_or_give_back(self, keep: Callable[[], None], error: BaseException | None) -> None:
        try:
            keep()
        except Exception as problem:
            tell(logger, logging.WARNING, Event.ATTEMPT_NOT_STORED, **self._fields(), error=problem)
            if not (self.task.acks_late and heals(problem)):
                raise (error or problem) from problem  # acked before it ran, or nothing to hope for
            pause = self.runtime.next_pause()
            self.runtime.clock.sleep(self.runtime.clock.uniform(pause / 2, pause))
            raise Reject(problem, requeue=True) from problem
        self.runtime.forget_pauses()

    def travelling(self, attempts: Attempts) -> Attempts:
        """Give the attempts with what the next message must know of its origin."""
        queue = attempts.queue or origin_queue(self.task.app, self.request.delivery_info or {})
        lineage = attempts.lineage or lineage_of(self.request)
        return replace(attempts, queue=queue, lineage=lineage)

    def _store(self, attempts: Attempts, delay: float, arguments: Arguments | None) -> None:
        attempts = self.travelling(attempts)
        envelope = original(self.request.properties, self.request.delivery_info)
        schedule = self.runtime.schedule
        is_native = delays_natively(self.task.app, self.runtime.family, attempts.queue)
        # RabbitMQ counts delays in whole seconds: shorter ones are the schedule's, where there is one.
        if schedule is None or envelope is None or (is_native and delay >= 1):
            delay = max(1, math.ceil(delay)) if is_native else delay
            self._publish(attempts, delay, arguments)
            if schedule is not None:
                schedule.record(str(attempts.lineage), attempts.step + 1, delay)
            return
        if arguments is not None:
            envelope = with_arguments(envelope, *arguments, accept=self.task.app.conf.accept_content)
        envelope = next_message(envelope, attempts, self.request.retries + 1)
        number = attempts.step + 1
        if not schedule.add_attempt(envelope, attempts.queue, str(attempts.lineage), number, delay):
            own = self._beside_namesake(attempts)
            if own is not None:
                envelope = next_message(envelope, own, self.request.retries + 1)
                schedule.add_attempt(envelope, own.queue, str(own.lineage), number, delay)

    def _beside_namesake(self, attempts: Attempts) -> Attempts | None:
        """Follow a message that is on record already: a twin of this run stored it, and there is nothing to do (None).

        Unless the record may be of another message with the same task id: then this one gets a lineage of its own.
        """
        is_redelivered = (self.request.delivery_info or {}).get("redelivered")
        if self.attempts.lineage is not None or is_redelivered or has_own_lineage(self.request.properties):
            return None
        return replace(attempts, lineage=f"{attempts.lineage}:{self.runtime.clock.token()}")

    def _publish(self, attempts: Attempts, delay: float, arguments: Arguments | None) -> None:
        """Let Celery publish the next attempt with a delay: natively on quorum queues, else by ETA."""
        headers = {**(self.request.headers or {}), HEADER: attempts.to_header()}
        headers.pop("redelivered", None)
        args: Any
        kwargs: Any
        args, kwargs = arguments or (None, None)
        signature = self.task.signature_from_request(
            self.request,
            args,
            kwargs,
            queue=attempts.queue,
            countdown=delay,
            retries=self.request.retries + 1,
            headers=headers,
        )
        signature.apply_async()

    def after(self, failure: Failure, delay: float) -> Attempts:
        worker = str(self.request.hostname or "")
        now = self.runtime.clock.time()
        return self.started(now).after_failure(failure, delay=delay, at=now, worker=worker)

    def started(self, now: float) -> Attempts:
        """Give the attempts with a deadline, which counts from here if no publish of ours has set it."""
        seconds, deadline_at = self._deadline_seconds(), self.attempts.deadline_at
        if deadline_at is None and seconds is not None:
            deadline_at = now + seconds
        return replace(self.attempts, task_id=self.request.id, deadline_at=deadline_at)

    def _deadline_seconds(self) -> float | None:
        of_call = self.attempts.options.get("deadline_seconds")
        return of_call if of_call is not None else self.plan.deadline_seconds

    def _policy(self, kind: FailureClass) -> RetryPolicy:
        of_call = policy_of_call(self.attempts.options)
        return policies_from("resilience", of_call, self.plan.policies)[kind]

    def _is_behind(self) -> bool:
        """Look whether a redelivered message was followed by a later attempt before its ack was lost."""
        schedule = self.runtime.schedule
        if schedule is None or not (self.request.delivery_info or {}).get("redelivered"):
            return False
        try:
            return schedule.highest_attempt(self.attempts.lineage or lineage_of(self.request)) > self.attempts.step + 1
        except StoreUnavailableError as problem:
            tell(logger, logging.WARNING, Event.REDELIVERY_UNCHECKED, **self._fields(), error=problem)
            return False

    def _log(self, failure: Failure, reason: str) -> None:
        told = {"reason": reason, "failure_class": failure.failure_class, "fingerprint": failure.fingerprint}
        tell(logger, failure.severity, Event.TASK_ENDED, **self._fields(), **told)

    def _fields(self) -> dict[str, Any]:
        return {"task_id": self.request.id, "task": self.task.name, "attempt": self.attempts.attempt}


def attempts_of(request: Any) -> Attempts:
    """Read the attempts from a request, where a worker or an eager call left them."""
    header = request.__dict__.get(HEADER)
    if header is None and request.headers:
        header = request.headers.get(HEADER)
    return attempts_for(header, request.id)


def celery_retry(error: BaseException | None, delay: float, *, is_eager: bool = False) -> CeleryRetry:
    """Give what has Celery store RETRY, call `on_retry`, and ack."""
    make: Callable[..., CeleryRetry] = CeleryRetry
    return make(exc=error, when=round(delay, 3), is_eager=is_eager)


def past_deadline(refusal: Exception) -> DeadlineExceededError:
    """Give the end of a task that may not run before its deadline, with the refusal in its words and as its cause."""
    ended = DeadlineExceededError(f"The deadline comes before the task may be tried again. {refusal}")
    ended.__cause__ = refusal
    return ended


def lineage_of(request: Any) -> str:
    """Name the line of attempts that begins with this message."""
    return lineage_name(request.properties, request.id, request.replaced_task_nesting)


def heals(problem: BaseException) -> bool:
    """Say whether what kept us from storing may be over when the message comes back."""
    if isinstance(problem, StoreUnavailableError):
        return True
    return Classifier.default().classify(problem).failure_class in RETRYABLE


def next_message(envelope: Envelope, attempts: Attempts, retries: int) -> Envelope:
    """Give the message of the next attempt: the same bytes, with new numbers and no ETA."""
    headers = {**envelope.headers, HEADER: attempts.to_header(), "retries": retries, "eta": None}
    return replace(envelope, headers=headers)
