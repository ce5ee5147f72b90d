"""The parent's view of one running task: deaths that the process which ran it cannot tell of.

A process that died is counted, and its message goes back until it is poison. The letter is stored before the ack.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from functools import cached_property, partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import Ignore, InvalidTaskError, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request
from kombu.exceptions import ContentDisallowed, DecodeError

from ..attempts import HEADER, Attempts, attempts_for
from ..deadletter import DeadLetter
from ..decision import DeadReason
from ..deliveries import is_redelivered
from ..errors import OutOfMemoryError, PoisonError, StoreUnavailableError
from ..events import Event, tell
from ..runtime import Runtime, runtime_of
from ..transport.envelope import original, received
from ..transport.lineage import lineage_name
from .burial import BURIED, Death, letter_of, store_dead, waiting_group
from .undertaker import Undertaker, undertaker_of

logger = logging.getLogger(__name__)

UNREADABLE = (ContentDisallowed, DecodeError, InvalidTaskError)
CONTROL_FLOW = (Ignore, Reject, Retry)
EXITS = (SystemExit, KeyboardInterrupt)
MAX_COUNTED_HERE = 10_000
_crashes_here: OrderedDict[str, int] = OrderedDict()  # by message, for as long as Redis cannot count


_Request: Any = Request  # the stubs know the half of it


class ResilientRequest(_Request):  # type: ignore[misc]  # see above
    """One delivery of a resilient task."""

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Follow the end of a run that did not succeed; `return_ok` means that its own process told of it."""
        error = exc_info.exception
        error = getattr(error, "exc", error) if type(error).__name__ == "ExceptionWithTraceback" else error
        proceed = partial(super().on_failure, send_failed_event=send_failed_event, return_ok=return_ok)
        undertaker = self._undertaker
        if isinstance(error, MemoryError) and (return_ok or undertaker is None):
            proceed(_as_info(OutOfMemoryError(str(error))))  # Celery would raise it here and end the worker
        elif undertaker is None or (return_ok and self._is_handed_over) or isinstance(error, CONTROL_FLOW):
            proceed(exc_info)
        elif self._already_cancelled or self._already_revoked or isinstance(error, Terminated):
            self._forget_starts()  # it was told to stop
            proceed(exc_info)
        elif isinstance(error, TimeLimitExceeded):
            state.task_ready(self)  # `on_timeout` follows, and does everything once
        elif isinstance(error, (WorkerLostError, MemoryError, *EXITS)):
            self._lose(undertaker, exc_info, error, proceed)
        else:
            reason = DeadReason.MALFORMED if isinstance(error, UNREADABLE) else DeadReason.PERMANENT
            self._bury(undertaker, Death(reason=reason, error=error), partial(proceed, exc_info))

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Follow a time limit: the soft one is an exception in the body, the hard one is the end."""
        undertaker = self._undertaker
        proceed = partial(super().on_timeout, soft, timeout)
        if soft or undertaker is None:
            proceed()
        elif not (self._is_wanted_back and self._goes_back(TimeLimitExceeded(timeout))):
            death = Death(reason=DeadReason.TIME_LIMIT, error=TimeLimitExceeded(timeout))
            self._bury(undertaker, death, proceed)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Tell that the task is not run; what expired becomes a letter if that was asked for."""
        undertaker = self._undertaker
        proceed = partial(super()._announce_revoked, reason, terminated, signum, expired)
        if expired and undertaker is not None and self._runtime.settings.dlq_expired:
            self._bury(undertaker, Death(reason=DeadReason.EXPIRED, error="it expired before it ran"), proceed)
        else:
            proceed()

    def _lose(self, undertaker: Undertaker, exc_info: Any, error: BaseException, proceed: Any) -> None:
        """Follow the death of the process that ran the task."""
        if getattr(self.task, "retry_on_worker_lost", False) or self._has_succeeded():
            proceed(exc_info)  # Celery was told to decide, or the task had ended before its process did
        elif _is_ending():
            self._forget_starts()  # the worker ends and takes its processes along: it is delivered again
            state.task_ready(self)
        elif not self.task.acks_late:
            death = Death(reason=DeadReason.WORKER_LOST, error=error)
            self._bury(undertaker, death, partial(proceed, exc_info))
        elif not self._goes_back(error):
            limit = self.task.max_crashes
            death = Death(reason=DeadReason.POISON if limit > 1 else DeadReason.WORKER_LOST, error=error)
            self._bury(undertaker, death, partial(proceed, _as_info(PoisonError(limit))))

    def _goes_back(self, error: BaseException) -> bool:
        """Count this crash; the message goes back to its queue unless that was one too many."""
        crashes = self._count_crash()
        if crashes >= self.task.max_crashes:
            return False
        told = {"task_id": self.id, "task": self.task.name, "attempt": self._attempts.attempt}
        tell(logger, logging.WARNING, Event.TASK_CRASHED, **told, crashes=crashes, error=repr(error))
        state.task_ready(self)
        self.reject(requeue=True)
        return True

    def _bury(self, undertaker: Undertaker, death: Death, then: Any) -> None:
        message = self.message
        letter = letter_of(
            self._runtime,
            original(message.properties, message.delivery_info) or received(message),
            death,
            attempts=self._attempts,
            delivery_tag=message.delivery_tag,
            worker=str(self.hostname),
            group=waiting_group(self.task.backend, self.task.when_dead, self._context),
        )
        undertaker.bury(letter, partial(self._die, letter, then))

    def _die(self, letter: DeadLetter, then: Any) -> None:
        """End the delivery whose letter is stored: acked first, because Celery would reject some."""
        self._forget_starts()
        self._context.__dict__[BURIED] = True
        state.task_ready(self)
        self.acknowledge()
        if letter.parked:
            store_dead(self.task, self._context, letter)
        else:
            then()

    def _count_crash(self) -> int:
        deliveries, lineage = self._runtime.deliveries, self._lineage
        if deliveries is not None:
            try:
                return deliveries.crashed(self._attempts, lineage, is_redelivered=self._is_redelivered)
            except StoreUnavailableError:
                pass
        name = f"{lineage}:{self._attempts.generation}:{self._attempts.step}"
        _crashes_here[name] = _crashes_here.pop(name, 0) + 1
        if len(_crashes_here) > MAX_COUNTED_HERE:
            _crashes_here.popitem(last=False)
        return _crashes_here[name]

    def _forget_starts(self) -> None:
        deliveries = self._runtime.deliveries
        if deliveries is not None:
            try:
                deliveries.ended(self._attempts, self._lineage)
            except StoreUnavailableError as error:
                told = {"task_id": self.id, "task": self.task.name, "attempt": self._attempts.attempt}
                tell(logger, logging.WARNING, Event.REDELIVERY_UNCHECKED, **told, error=error)

    def _has_succeeded(self) -> bool:
        """Ask Celery, of whom older versions do not look, whether the result was stored before its process died."""
        look = getattr(self, "_success_was_stored", None)
        return bool(look is not None and look())

    @property
    def _is_handed_over(self) -> bool:
        """Say whether the process that ran the task had the message, as it has not with Celery's first protocol."""
        return original(self.message.properties, self.message.delivery_info) is not None

    @property
    def _is_wanted_back(self) -> bool:
        """Say whether the user has what ran out of time delivered again."""
        task: Any = self.task
        acks = getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout)
        return bool(task.acks_late and not acks)

    @property
    def _runtime(self) -> Runtime:
        return runtime_of(self.app)

    @property
    def _undertaker(self) -> Undertaker | None:
        return undertaker_of(self.app) if self.task.dlq else None

    @property
    def _is_redelivered(self) -> bool:
        return is_redelivered(self.delivery_info, self.request_dict)

    @cached_property
    def _attempts(self) -> Attempts:
        return attempts_for(self.request_dict.get(HEADER), self.id)

    @cached_property
    def _lineage(self) -> str:
        nesting = self.request_dict.get("replaced_task_nesting")
        return self._attempts.lineage or lineage_name(self.message.properties, self.id, nesting)


def _is_ending() -> bool:
    terminates: Any = state.should_terminate  # None, or a code that may be 0
    return terminates is not None and terminates is not False


def _as_info(error: Exception) -> Any:
    """Give an exception as Celery hands it from process to process."""
    try:
        raise error
    except Exception:
        return ExceptionInfo()
