"""One run of a body and what may follow it: another message that is stored, or the same one that goes back.

Whoever stores raises nothing before it is stored; `Reject` is raised where it could not be.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from celery.exceptions import Reject

from .attempts import HEADER, Attempts, attempts_for
from .errors import StoreUnavailableError
from .events import Event, tell
from .failure import Classifier
from .gates import Gates
from .policy import RETRYABLE, RetryPolicies
from .runtime import Runtime
from .schedule import Schedule
from .transport.envelope import Envelope, original, with_arguments
from .transport.lineage import has_own_lineage, lineage_name
from .transport.queues import delays_natively, origin_queue

logger = logging.getLogger(__name__)

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of one task, laid over those of its app."""

    policies: RetryPolicies
    classifier: Classifier
    deadline_seconds: float | None
    gates: Gates


class Run:
    """One run of a body, and the storing of what follows it."""

    def __init__(self, task: Any, request: Any, runtime: Runtime, plan: Plan) -> None:
        self.task = task
        self.request = request
        self.runtime = runtime
        self.plan = plan
        self.attempts = attempts_of(request)
        self.is_on_record = False

    def store(
        self, attempts: Attempts, delay: float, error: BaseException | None, arguments: Arguments | None = None
    ) -> None:
        """Store the next attempt, with other arguments if some are given; else the message goes back, after a pause."""
        self.keep_or_give_back(lambda: self._store(attempts, delay, arguments), error)

    def store_park(
        self, schedule: Schedule, envelope: Envelope, attempts: Attempts, delay: float, waits_for: str
    ) -> None:
        """Store the same attempt again, in the schedule."""
        attempts, number = self.travelling(attempts), attempts.step + 1
        message = next_message(envelope, attempts, self.request.retries)
        if not schedule.add_park(message, attempts.queue, str(attempts.lineage), number, delay, waits_for):
            own = self._beside_namesake(attempts)
            if own is not None:
                message = next_message(envelope, own, self.request.retries)
                schedule.add_park(message, own.queue, str(own.lineage), number, delay, waits_for)

    def keep_or_give_back(
        self, keep: Callable[[], None], error: BaseException | None, otherwise: Event = Event.ATTEMPT_NOT_STORED
    ) -> None:
        """Store something, or raise what has the message go back; the error where that cannot help."""
        try:
            keep()
        except Exception as problem:
            tell(logger, logging.WARNING, otherwise, **self.fields(), error=problem)
            if not (self.task.acks_late and heals(problem)):
                raise (error or problem) from problem  # acked before it ran, or nothing to hope for
            self.give_back(problem)
        self.runtime.forget_pauses()

    def give_back(self, problem: Exception) -> NoReturn:
        """Have the message go back to its queue, after a pause that grows while nothing can be stored."""
        pause = self.runtime.next_pause()
        self.runtime.clock.sleep(self.runtime.clock.uniform(pause / 2, pause))
        self.forget_start()
        raise Reject(problem, requeue=True) from problem

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

    def started(self, now: float) -> Attempts:
        """Give the attempts with a deadline, which counts from here if no publish of ours has set it."""
        seconds, deadline_at = self._deadline_seconds(), self.attempts.deadline_at
        if deadline_at is None and seconds is not None:
            deadline_at = now + seconds
        return replace(self.attempts, task_id=self.request.id, deadline_at=deadline_at)

    def _deadline_seconds(self) -> float | None:
        of_call = self.attempts.options.get("deadline_seconds")
        return of_call if of_call is not None else self.plan.deadline_seconds

    def forget_start(self) -> None:
        """Take the start of this run off the record: it comes to an orderly end."""
        deliveries = self.runtime.deliveries
        if not self.is_on_record or deliveries is None:
            return
        self.is_on_record = False
        try:
            deliveries.ended(self.attempts, self.attempts.lineage or lineage_of(self.request))
        except StoreUnavailableError as problem:
            tell(logger, logging.WARNING, Event.REDELIVERY_UNCHECKED, **self.fields(), error=problem)

    def fields(self) -> dict[str, Any]:
        """Give what every event of this run is told with."""
        return {"task_id": self.request.id, "task": self.task.name, "attempt": self.attempts.attempt}


def attempts_of(request: Any) -> Attempts:
    """Read the attempts from a request, where a worker or an eager call left them."""
    header = request.__dict__.get(HEADER)
    if header is None and request.headers:
        header = request.headers.get(HEADER)
    return attempts_for(header, request.id)


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
