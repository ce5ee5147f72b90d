"""The intake: no message that arrives ends the worker, and none that cannot be run is dropped.

Celery's own handlers of unknown, invalid and undecodable messages still do what they did, after the letter is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from celery import bootsteps
from celery.app.task import Context
from celery.exceptions import InvalidTaskError
from celery.signals import task_rejected
from kombu.exceptions import ContentDisallowed
from kombu.message import Message

from ..decision import DeadReason
from ..errors import shorten
from ..events import Event, tell
from ..runtime import runtime_of
from ..transport.envelope import Envelope, received
from ..transport.sound import bound_decompression, tolerate
from .burial import Death, letter_of, waiting_group
from .shape import is_name, problem_of
from .undertaker import Undertaker, undertaker_of

logger = logging.getLogger(__name__)


class IntakeStep(bootsteps.StartStopStep):
    """Wraps the consumer's handlers before it begins to consume; absent where dead letters are switched off."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.enabled = runtime_of(consumer.app).settings.dlq_enabled
        if self.enabled:
            self._undertaker = Undertaker(consumer.app, consumer.call_soon)
            bound_decompression()
            Intake(consumer, self._undertaker).wrap()

    def start(self, consumer: Any) -> None:
        """Let the new channel deliver whatever it finds."""
        if consumer.connection.transport.driver_type == "redis":
            queues = consumer.app.amqp.queues
            tolerate(consumer.task_consumer.channel, lambda queue: queue in queues.consume_from)

    def stop(self, consumer: Any) -> None:
        """Forget what waits for burial: it is delivered again."""
        self._undertaker.forget()

    def shutdown(self, consumer: Any) -> None:
        """End with the worker."""
        self._undertaker.close()


class Intake:
    """The handlers of one consumer, each with a letter before the ack."""

    def __init__(self, consumer: Any, undertaker: Undertaker) -> None:
        self._consumer = consumer
        self._undertaker = undertaker
        self._runtime = runtime_of(consumer.app)

    def wrap(self) -> None:
        """Put ours around those of Celery."""
        consumer = self._consumer
        make_handler = consumer.create_task_handler
        on_decode_error, on_invalid_task = consumer.on_decode_error, consumer.on_invalid_task
        on_unknown_message, on_unknown_task = consumer.on_unknown_message, consumer.on_unknown_task

        def decode_error(message: Message, error: Exception) -> None:
            self._bury(message, DeadReason.UNDECODABLE, error, partial(on_decode_error, message, error))

        def invalid_task(body: Any, message: Message, error: Exception) -> None:
            kind = DeadReason.UNDECODABLE if isinstance(error, ContentDisallowed) else DeadReason.MALFORMED
            self._bury(message, kind, error, partial(on_invalid_task, body, message, error))

        def unknown_message(body: Any, message: Message) -> None:
            then = partial(on_unknown_message, body, message)
            self._bury(message, DeadReason.MALFORMED, "it is no task message", then)

        def unknown_task(body: Any, message: Message, error: Exception) -> None:
            words = f"no task of this name is registered: {error}"
            self._bury(message, DeadReason.UNKNOWN_TASK, words, partial(on_unknown_task, body, message, error))

        consumer.on_decode_error, consumer.on_invalid_task = decode_error, invalid_task
        consumer.on_unknown_message, consumer.on_unknown_task = unknown_message, unknown_task
        consumer.create_task_handler = lambda *args, **kwargs: self._guard(make_handler(*args, **kwargs))

    def _guard(self, handle: Callable[[Message], Any]) -> Callable[[Message], Any]:
        consumer = self._consumer
        errors = (*consumer.connection_errors, *consumer.connection.channel_errors, OSError)

        def on_task_received(message: Message) -> Any:
            problem = problem_of(message, consumer.app)
            if problem is not None:
                reason, error = problem
                return self._bury(message, reason, error, partial(self._reject, message, error))
            try:
                return handle(message)
            except errors:
                raise  # of the connection, not of the message
            except Exception as error:
                if message.acknowledged:
                    raise
                return self._bury(message, DeadReason.MALFORMED, error, partial(self._reject, message, error))

        return on_task_received

    def _bury(
        self, message: Message, reason: DeadReason, error: BaseException | str, then: Callable[[], object]
    ) -> None:
        make = partial(
            letter_of,
            self._runtime,
            death=Death(reason=reason, error=error),
            delivery_tag=message.delivery_tag,
            worker=str(self._consumer.hostname),
        )
        try:
            letter = make(received(message), group=self._group(message))
        except Exception:  # the last resort: whatever it is in the headers, the body is kept
            letter = make(replace(received(message), headers={}, properties={}))
        self._undertaker.bury(letter, partial(self._let_go, message, then))

    def _let_go(self, message: Message, then: Callable[[], object]) -> None:
        """Ack, after Celery's own handler has done what it does: what it would reject has its letter already."""
        acknowledge = message.ack_log_error
        message.reject_log_error = acknowledge  # type: ignore[method-assign, assignment]  # on this one
        try:
            then()
        except self._consumer.connection_errors:
            raise
        except Exception as error:  # of a result backend, or of a handler that cannot read this message either
            tell(logger, logging.WARNING, Event.HANDLER_FAILED, error=repr(error))
        if not message.acknowledged:
            acknowledge(logger, self._consumer.connection_errors)

    def _group(self, message: Message) -> str | None:
        """Name the group whose chord waits for this one, if any does: its task may be known to the next deployment."""
        try:
            _, _, embed = message.payload
            request = Context({**message.headers, **embed})
            when_dead = getattr(self._consumer.app.tasks.get(message.headers["task"]), "when_dead", "auto")
            return waiting_group(self._consumer.app.backend, when_dead, request)
        except Exception:  # no body that could name a chord
            return None

    def _reject(self, message: Message, error: BaseException | str) -> None:
        """Tell of a message that did not get to Celery's handlers as they would; who waits for its result is told."""
        exc = error if isinstance(error, Exception) else InvalidTaskError(str(error))
        task_rejected.send(sender=self._consumer, message=message, exc=exc)
        headers: Any = message.headers
        task_id = headers.get("id") if isinstance(headers, dict) else None
        if is_name(task_id) and self._group(message) is None:
            self._consumer.app.backend.mark_as_failure(task_id, InvalidTaskError(shorten(exc)))


def bury_unreadable(consumer: Any, name: str, packed: bytes, let_go: Callable[[], None]) -> None:
    """Make a letter of what lay in a Redis queue and is no message; where letters are switched off it stays aside."""
    undertaker = undertaker_of(consumer.app)
    if undertaker is None:
        return
    queue = name.split(":", 2)[-1]
    envelope = Envelope(packed, "application/data", "binary", {}, {}, "", queue)
    death = Death(reason=DeadReason.MALFORMED, error="it is no message: not a JSON object")
    letter = letter_of(runtime_of(consumer.app), envelope, death, delivery_tag=name, worker=str(consumer.hostname))
    undertaker.bury(letter, let_go)
