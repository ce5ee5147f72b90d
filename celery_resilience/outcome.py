"""Act on the outcome of an attempt: store what follows, then tell Celery.

The only raiser of Retry, Reject and Ignore. The order is the promise: the next attempt is stored before the exception
that has Celery ack the message; if it cannot be stored, the message goes back.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from celery.exceptions import Ignore, Reject
from celery.exceptions import Retry as CeleryRetry

from .admission import Admission, Refused
from .attempts import Attempts, slot_of
from .clock import Clock
from .crashpoints import crashpoint
from .decision import DeadLetter, DeadReason, Decision, History, Retry, decide
from .deliveries import Begun, is_redelivered
from .ending import is_lettered, letter_for, written
from .errors import (
    BreakerOpenError,
    DeadlineExceededError,
    LimitReachedError,
    PoisonError,
    QueueFullError,
    ResilienceError,
    StoreUnavailableError,
)
from .events import Event, tell
from .failure import Failure, FailureClass, FailureContext
from .limits import BUDGET_COST
from .onward import Run, lineage_of
from .policy import RetryPolicy, policies_from
from .settings import policy_of_call
from .signals import task_parked
from .transport.envelope import original
from .worker.burial import BURIED, Death, store_dead, tell_of

logger = logging.getLogger(__name__)


LONGEST_PARK_SECONDS = 60.0  # then it asks again: a refusal may have come from knowledge that was out of date
LEAST_PARK_SECONDS = 0.05  # a refusal that is about to end may say 0: do not spin
REFUSED = "_resilience_refused"  # set on a request whose body was told that Celery's own limit is reached


class Outcome(Run):
    """One run of a body: what may start it, and what follows from its end."""

    def admit(self) -> None:
        """Let the body of a message that is not the first start, or raise what keeps it from starting."""
        begun = self._begin()
        match begun.verdict:
            case "behind":
                tell(logger, logging.INFO, Event.ATTEMPT_SUPERSEDED, **self.fields())
                raise Ignore(f"Attempt {self.attempts.attempt} has been followed by a later one.")
            case "duplicate":
                tell(logger, logging.INFO, Event.DELIVERY_DUPLICATED, **self.fields())
                raise Ignore("Another message of the same requeue has run.")
            case "poison":
                poison = PoisonError(begun.starts)
                instead = self.end(Death(reason=DeadReason.POISON, error=poison), poison)
                self.is_on_record = True  # until its letter is stored: a message that goes back stays poison
                self.forget_start()
                raise instead or poison
        self.is_on_record = begun.starts > 0
        deadline_at = self.attempts.deadline_at
        if deadline_at is not None and self.runtime.clock.time() > deadline_at:
            late = DeadlineExceededError()
            raise self.end(Death(reason=DeadReason.DEADLINE, error=late), late) or late

    @contextmanager
    def on_record(self) -> Iterator[None]:
        """Keep the start of a redelivered message on record until it ends, be it by an exception.

        An exit of the process is no end: if it goes on like that, the message is poison.
        """
        try:
            yield
        except Exception:
            self.forget_start()
            raise
        self.forget_start()

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
            ended = self._ended_by(error)
            if ended is not None:
                return None if ended is error else ended
            return self.park(error.name, error.retry_after, error)  # nobody was called: no attempt was made
        if isinstance(error, MemoryError):
            traceback.clear_frames(error.__traceback__)  # its locals may be what took all the memory
        failure = self.classify(error)
        if admission is not None:
            if isinstance(error, QueueFullError):
                admission.cancel()  # our own queue is full: that says nothing about the dependency
            else:
                admission.failed(failure)
        if failure.failure_class is FailureClass.NOT_A_FAILURE:
            is_rejected = isinstance(error, Reject) and not getattr(error, "requeue", False)
            return self.end(Death(reason=DeadReason.REJECTED, error=error), error) if is_rejected else None
        match self.decide(failure):
            case Retry(delay):
                delay, owed = (delay, ()) if admission is None else self._budgeted(delay, failure, admission)
                self.store(replace(self.after(failure, delay), owed=owed), delay, error)
                return celery_retry(error, delay)
            case DeadLetter(reason):
                death = Death(reason=reason, failure=failure, error=error, traceback=written(error))
                return self.end(death, error)

    def end(self, death: Death, error: Exception) -> BaseException | None:
        """Bury the task, which no attempt follows; gives what to raise, None if the error itself is the outcome."""
        self._tell_end(death)
        letter = letter_for(self.task, self.request, self.runtime, self.attempts, death)
        if letter is None:
            return None
        self.keep_or_give_back(lambda: self.runtime.dead_letters.publish(letter), error, Event.LETTER_NOT_STORED)
        crashpoint("letter.stored")
        self.request.__dict__[BURIED] = True
        self.forget_start()
        tell_of(self.task.app, letter)
        if not letter.parked:
            return None
        store_dead(self.task, self.request, letter)
        return Ignore(f"Dead, and its chord waits: letter {letter.id}.")

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
            delay = spread(delay, clock)
        attempts = self.started(now).after_park(waits_for, reserved, owed)
        schedule = self.runtime.schedule
        is_too_late = attempts.deadline_at is not None and now + delay > attempts.deadline_at
        envelope = original(self.request.properties, self.request.delivery_info)
        if is_too_late or schedule is None or envelope is None:
            if is_too_late:
                late = past_deadline(error)
                return self.end(Death(reason=DeadReason.DEADLINE, error=late), late) or late
            return self.end(Death(reason=DeadReason.REFUSED_BY_GATE, error=error), error)
        self.keep_or_give_back(lambda: self.store_park(schedule, envelope, attempts, delay, waits_for), error)
        tell(logger, logging.INFO, Event.TASK_PARKED, **self.fields(), waits_for=waits_for, delay=round(delay, 3))
        task_parked.send(sender=self.task.name, task_id=self.request.id, waits_for=waits_for, delay=delay)
        return Ignore(str(error))

    def refuse(self, refused: Refused) -> BaseException:
        """Give what to raise when a gate refuses: the refusal itself, or what sets the message aside."""
        ended = self._ended_by(refused.error)
        if ended is not None:
            return ended
        parked = self.park(refused.by, refused.delay, refused.error, refused.reserved, refused.owed)
        return parked or refused.error

    def _ended_by(self, refusal: Exception) -> BaseException | None:
        """Give what to raise where the task shall end with a refusal, wherever it met it; None if it shall wait."""
        if not isinstance(refusal, BreakerOpenError):
            return None
        match self.plan.gates.when_open:
            case "fail":
                self._tell_end(Death(reason=DeadReason.REFUSED_BY_GATE, error=refusal))
                self.request.__dict__[BURIED] = True  # the caller wants to know at once, not a letter
                return refusal
            case "dead_letter":
                return self.end(Death(reason=DeadReason.CIRCUIT_OPEN, error=refusal), refusal) or refusal
        return None

    def _budgeted(self, delay: float, failure: Failure, admission: Admission) -> tuple[float, tuple[str, ...]]:
        """Hold a retry back when retries are more than their share of successes: a storm becomes a queue.

        Gives the delay, and what it still owes to budgets. Never past the deadline: there the attempt is made without
        waiting longer.
        """
        turn, owed = admission.spend(BUDGET_COST.get(failure.failure_class, 1.0))
        held, now = max(delay, turn), self.runtime.clock.time()
        deadline_at = self.started(now).deadline_at
        return (delay, ()) if deadline_at is not None and now + held > deadline_at else (held, owed)

    def after(self, failure: Failure, delay: float) -> Attempts:
        worker = str(self.request.hostname or "")
        now = self.runtime.clock.time()
        return self.started(now).after_failure(failure, delay=delay, at=now, worker=worker)

    def _policy(self, kind: FailureClass) -> RetryPolicy:
        of_call = policy_of_call(self.attempts.options)
        return policies_from("resilience", of_call, self.plan.policies)[kind]

    def _begin(self) -> Begun:
        """Ask whether a redelivered or requeued message may run; unasked, the one runs and the other goes back."""
        deliveries, request = self.runtime.deliveries, self.request
        is_again = is_redelivered(request.delivery_info, request.__dict__)
        if deliveries is None or not (is_again or self.attempts.requeue):
            return Begun("run", 0)
        limit = self.task.max_crashes if is_lettered(self.task, self.runtime) else 0
        lineage = self.attempts.lineage or lineage_of(request)
        try:
            return deliveries.begin(self.attempts, lineage, is_redelivered=is_again, max_crashes=limit)
        except StoreUnavailableError as problem:
            tell(logger, logging.WARNING, Event.REDELIVERY_UNCHECKED, **self.fields(), error=problem)
            if self.attempts.requeue and self.task.acks_late:
                self.give_back(problem)  # its twin may have run
            return Begun("run", 0)

    def _tell_end(self, death: Death) -> None:
        failure = death.failure
        told: dict[str, Any] = {"reason": death.reason}
        if failure is not None:
            told |= {"failure_class": failure.failure_class, "fingerprint": failure.fingerprint}
        else:
            told |= {"error": death.error}
        tell(logger, logging.ERROR if failure is None else failure.severity, Event.TASK_ENDED, **self.fields(), **told)


def celery_retry(error: BaseException | None, delay: float, *, is_eager: bool = False) -> CeleryRetry:
    """Give what has Celery store RETRY, call `on_retry`, and ack."""
    make: Callable[..., CeleryRetry] = CeleryRetry
    return make(exc=error, when=round(delay, 3), is_eager=is_eager)


def spread(delay: float, clock: Clock) -> float:
    """Give when to look again after a refusal, in seconds: not all in one instant, and within about a minute.

    A body may raise a refusal of its own making, whose number is any float.
    """
    delay = min(delay, LONGEST_PARK_SECONDS) if delay > 0 else 0.0
    least = LEAST_PARK_SECONDS if delay < LEAST_PARK_SECONDS else 0.0
    return delay + clock.uniform(least, max(0.5, delay / 4))


def past_deadline(refusal: Exception) -> DeadlineExceededError:
    """Give the end of a task that may not run before its deadline, with the refusal in its words and as its cause."""
    ended = DeadlineExceededError(f"The deadline comes before the task may be tried again. {refusal}")
    ended.__cause__ = refusal
    return ended
