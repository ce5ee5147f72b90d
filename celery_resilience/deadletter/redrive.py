"""Redrive: a letter becomes a message again, in its origin queue, under the same task id.

On a Redis broker the push and its record are one step, so that a crash after it is seen on the next run. Elsewhere each
publish carries the letter's id and a nonce of its own, by which workers tell a second copy from the first.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from celery.utils.saferepr import saferepr

from ..attempts import HEADER, MAX_ERROR, MAX_TRAIL, Attempts, attempts_for
from ..clock import Clock
from ..decision import DeadReason
from ..errors import ResilienceError, StoreUnavailableError
from ..redis_store import RedisStore
from ..transport.bulk import BulkPublisher
from ..transport.envelope import Envelope, unpack
from ..transport.queues import redis_list_of
from .claims import Claim, Held
from .letter import has_run

_GROUP = "dlq"
_OF_ONE_DELIVERY = ("delivery_info", "delivery_tag", "body_encoding")


class Redrive:
    """Sends letters back. `store` is the broker's own Redis if it has one."""

    def __init__(self, app: Celery, store: RedisStore | None, *, keep_seconds: float, clock: Clock) -> None:
        self._app = app
        self._store = store
        self._keep_seconds = int(keep_seconds)
        self._clock = clock
        self._publisher = BulkPublisher(app, clock)
        self._lists: dict[tuple[str, int], str] = {}

    def now(self) -> float:
        """Give the time by which claims end: the broker's own where it has a clock, so that hosts need not agree."""
        if self._store is None:
            return self._clock.time()
        seconds, micros = self._store.command("TIME")
        return int(seconds) + int(micros) / 1e6

    def send(self, claim: Claim, letters: Sequence[Held], problems: Counter[str]) -> list[Held]:
        """Send letters back; gives those that a queue has now, and counts what was wrong with the others.

        Raises StoreUnavailableError if it is not known what became of them.
        """
        ready = []
        for held in letters:
            try:
                nonce = "" if self._store is not None else f"{held.id}:{self._clock.token()}"
                ready.append((held, prepared(held, claim.plan, requeue=nonce)))
            except ResilienceError as problem:
                problems[str(problem)] += 1
        if self._store is not None:
            self._push(self._store, claim, ready)
            return [held for held, _ in ready]
        to = claim.plan.get("to")
        messages = [(_envelope(known), str(to or held.queue), HEADER) for held, known in ready]
        fates = self._publisher.publish(messages)
        for (_, queue, _), is_there in zip(messages, fates, strict=True):
            problems.update([] if is_there else [f"No queue takes {queue!r}: declare it, or give another."])
        return [held for (held, _), is_there in zip(ready, fates, strict=True) if is_there]

    def forget(self, ids: Sequence[str]) -> None:
        """Drop the records of letters that the ledger knows to be requeued."""
        if self._store is not None and ids:
            self._store.command("UNLINK", *(self._store.key(_GROUP, "requeued", one) for one in ids))

    def close(self) -> None:
        """Close the connection."""
        self._publisher.close()

    def _push(self, store: RedisStore, claim: Claim, ready: Sequence[tuple[Held, dict[str, Any]]]) -> None:
        if not ready:
            return
        keys, messages, to = [], [], claim.plan.get("to")
        for held, known in ready:
            priority = known["properties"].get("priority")
            known["properties"]["delivery_tag"] = self._clock.token()
            keys += [self._list(str(to or held.queue), priority if isinstance(priority, int) else 0)]
            keys += [store.key(_GROUP, "requeued", held.id)]
            messages.append(json.dumps(known))
        args = [int(claim.until * 1000), self._keep_seconds, *messages]
        if store.run("letters_requeue", keys, args) < 0:
            raise StoreUnavailableError("The claim on these letters has ended: another run settles them.")

    def _list(self, queue: str, priority: int) -> str:
        if (queue, priority) not in self._lists:
            self._lists[queue, priority] = redis_list_of(self._app, queue, priority)
        return self._lists[queue, priority]


def prepared(held: Held, plan: Mapping[str, Any], *, requeue: str) -> dict[str, Any]:
    """Give the message as kombu packs it, for another run: same id and canvas, no ETA and no end, numbers that go on.

    Worked on as plain JSON: the body is not even taken out of its base64 unless arguments are to be changed.
    """
    known: dict[str, Any] = json.loads(held.packed)
    headers, properties = known["headers"], known["properties"]
    queue = str(plan.get("to") or held.queue)
    attempts = _attempts(held, headers, requeue, queue)
    headers.update({HEADER: attempts.to_header(), "retries": 0, "eta": None, "expires": None})
    properties.pop("expiration", None)
    properties["delivery_info"] = {"exchange": "", "routing_key": queue}
    if plan.get("args") or plan.get("kwargs"):
        _edit(known, plan)
    return known


def check_edits(args: Mapping[int, Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse edits that JSON cannot carry."""
    try:
        json.dumps([list(args.values()), dict(kwargs)])
    except (TypeError, ValueError) as error:
        raise ResilienceError(f"Arguments can only be set to values of JSON: {error}") from None


def _attempts(held: Held, headers: Mapping[str, Any], requeue: str, queue: str) -> Attempts:
    task_id = headers.get("id")
    attempts = attempts_for(headers.get(HEADER), task_id)
    trail, ran = attempts.trail, has_run(DeadReason(held.reason))
    if ran:
        last = {
            "attempt": held.attempt,
            "class": held.failure_class,
            "error": f"{held.error_type}: {held.error_message}"[:MAX_ERROR],
            "fingerprint": held.fingerprint,
            "at": round(held.failed_at, 3),
        }
        trail = (*trail, last)[-MAX_TRAIL:]
    return attempts.after_requeue(
        requeue,
        held.id,
        attempt=held.attempt + 1 if ran else held.attempt,
        generation=held.generation + 1,
        task_id=task_id if isinstance(task_id, str) else None,
        queue=queue,
        trail=trail,
    )


def _envelope(known: dict[str, Any]) -> Envelope:
    """Give the message as a value; only where kombu has marked a date or the like must it read the text itself."""
    text = json.dumps(known)
    if "__type__" in text:
        return unpack(text)
    properties = known["properties"]
    return Envelope(
        base64.b64decode(known["body"]),
        known["content-type"],
        known["content-encoding"],
        known["headers"],
        {name: value for name, value in properties.items() if name not in _OF_ONE_DELIVERY},
        "",
        properties["delivery_info"]["routing_key"],
    )


def _edit(known: dict[str, Any], plan: Mapping[str, Any]) -> None:
    """Change arguments in the body; only JSON is read for that."""
    if known["content-type"] != "application/json":
        raise ResilienceError(f"Arguments of a {known['content-type']} message cannot be set: only JSON is read.")
    try:
        args, kwargs, embed = json.loads(base64.b64decode(known["body"]))
        for place, value in dict(plan.get("args") or {}).items():
            args[int(place)] = value
        kwargs.update(plan.get("kwargs") or {})
    except (ValueError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ResilienceError(f"The arguments of this letter cannot be set: {error}") from None
    known["body"] = base64.b64encode(json.dumps([args, kwargs, embed]).encode()).decode("ascii")
    known["headers"].update(argsrepr=saferepr(args), kwargsrepr=saferepr(kwargs))
