"""The DLQ over every broker: what is published is taken once, byte for byte, and comes back unless it is acked."""

from __future__ import annotations

import contextlib
import datetime
import json
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Exchange, Producer, Queue

from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.deadletter import DeadLetter, DeadLetterQueue, make_letter
from celery_resilience.deadletter.queue import Batch
from celery_resilience.decision import DeadReason
from celery_resilience.errors import StoreUnavailableError
from celery_resilience.runtime import Runtime
from celery_resilience.testing import EmbeddedRedis
from celery_resilience.transport.envelope import Envelope
from tests.support.rabbitmq import RabbitMQ
from tests.support.waiting import wait_until

BODIES = {
    "json": b'[[1], {"a": "\xc3\xa9"}, {}]',
    "pickle": pickle.dumps(((1,), {}, {})),
    "yaml": b"!!python/object/apply:os.system ['false']",
    "not utf-8": b"\xff\xfe\x00\x80",
    "deep": b"[" * 50_000 + b"]" * 50_000,
    "20 MB": b"0123456789abcdef" * (20 * 2**16),
    "empty": b"",
}


def message(body: bytes = b"[[], {}, {}]", **headers: Any) -> Envelope:
    headers = {"id": str(uuid.uuid4()), "task": "shop.charge", **headers}
    return Envelope(body, "application/json", "utf-8", headers, {"priority": 3, "delivery_mode": 2}, "", "shop")


def a_letter(body: bytes = b"[[], {}, {}]", **headers: Any) -> DeadLetter:
    return make_letter(message(body, **headers), DeadReason.PERMANENT, error="no")


class Place:
    """A DLQ of its own on one broker; `twin()` is the same in another process."""

    def __init__(self, url: str, arguments: dict[str, Any] | None = None, **conf: Any) -> None:
        self.url = url
        self.name = f"dlq-{uuid.uuid4().hex[:8]}"
        self.conf = {"resilience_dlq_queue": self.name, "task_default_queue": f"{self.name}-shop", **conf}
        self._made: list[DeadLetterQueue] = []
        if arguments:
            with Connection(url) as connection:
                queue = Queue(self.name, Exchange(""), routing_key=self.name, queue_arguments=arguments)
                queue.bind(connection.channel()).declare()
        self.queue = self.twin()

    def app(self) -> Celery:
        app = Celery("dlq", broker=self.url, set_as_current=False)
        app.conf.update(self.conf)
        return app

    def twin(self) -> DeadLetterQueue:
        self._app = self.app()  # a runtime holds its app weakly
        runtime = Runtime(self._app)
        queue = runtime.dead_letters
        self._made.append(queue)
        return queue

    def take(self, limit: int = 500) -> Batch:
        """Take a batch; RabbitMQ may count a confirmed message a moment later."""
        found: list[Batch] = []

        def some() -> bool:
            found.append(self.queue.take(limit))
            return bool(found[-1].letters)

        wait_until(some, 5, "a letter")
        return found[-1]

    def close(self) -> None:
        for queue in self._made:
            queue.close()
        if self.url.startswith("amqp"):
            with Connection(self.url) as connection:
                for name in self.queue.names():
                    with contextlib.suppress(Exception):
                        connection.channel().queue_delete(name)


@pytest.fixture(params=["redis", "kombu on redis", "classic", "quorum"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param in ("redis", "kombu on redis"):
        url = request.getfixturevalue("resilience_redis").url
        # Two URLs are alternatives, so nothing may be pushed directly: everything goes through kombu.
        url = url if request.param == "redis" else f"{url};{url}"
        place = Place(url)
    else:
        kind = {"x-queue-type": "quorum"} if request.param == "quorum" else None
        place = Place(request.getfixturevalue("rabbitmq").url, kind)
    with contextlib.closing(place):
        yield place


class TestEveryBroker:
    @pytest.mark.parametrize("kind", BODIES)
    def test_a_letter_is_taken_as_it_was_published(self, place: Place, kind: str) -> None:
        letter = a_letter(BODIES[kind], mine=["x", 1, None], retries=2)
        place.queue.publish(letter)
        batch = place.take()

        assert batch.letters == [letter]
        batch.ack()

    def test_it_is_gone_once_it_is_acked(self, place: Place) -> None:
        place.queue.publish(a_letter())
        wait_until(lambda: place.queue.depth() == 1, 5, "the letter")
        place.take().ack()

        assert place.queue.take().letters == []
        assert place.queue.depth() == 0

    def test_what_is_released_is_taken_again(self, place: Place) -> None:
        letters = [a_letter() for _ in range(3)]
        for letter in letters:
            place.queue.publish(letter)
        wait_until(lambda: place.queue.depth() == 3, 5, "the letters")
        place.take(2).release()
        taken = [*place.take(2).letters, *place.take(2).letters]

        assert {one.id for one in taken} == {one.id for one in letters}

    def test_what_a_closed_taker_held_is_taken_by_another(self, place: Place) -> None:
        place.queue.publish(a_letter())
        first = place.take()
        place.queue.close()
        if place.queue._store is not None:  # its lease ends
            leases = f"resilience:{{dlq}}:leases:{place.name}"
            for member in place.queue._store.command("ZRANGE", leases, 0, -1):
                place.queue._store.command("ZADD", leases, "XX", 0, member)
        place.queue = place.twin()

        assert place.take().letters == first.letters

    def test_a_batch_has_its_limit_and_the_rest_follows(self, place: Place) -> None:
        letters = [a_letter() for _ in range(5)]
        for letter in letters:
            place.queue.publish(letter)
        wait_until(lambda: place.queue.depth() == 5, 5, "the letters")
        first = place.queue.take(3)
        first.ack()
        second = place.queue.take(3)
        second.ack()

        assert [one.id for one in [*first.letters, *second.letters]] == [one.id for one in letters]

    def test_nothing_is_taken_where_nothing_was_published(self, place: Place) -> None:
        assert place.queue.take().letters == []
        assert place.queue.depth() == 0

    def test_headers_too_many_for_one_frame_arrive(self, place: Place) -> None:
        letter = a_letter(mine="x" * 200_000)
        place.queue.publish(letter)

        assert place.take().letters == [letter]

    def test_threads_publish_side_by_side(self, place: Place) -> None:
        letters = [a_letter() for _ in range(20)]
        threads = [
            threading.Thread(target=lambda some=letters[n::4]: [place.queue.publish(one) for one in some])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        wait_until(lambda: place.queue.depth() == 20, 5, "20 letters")

        assert {one.id for one in place.take().letters} == {one.id for one in letters}

    def test_a_plain_message_of_somebody_else_is_a_letter_too(self, place: Place) -> None:
        place.queue.publish(a_letter())  # declares the queue
        place.take().ack()
        with (
            Connection(place.url) as connection,
            connection.SimpleQueue(Queue(place.name, Exchange(""), routing_key=place.name, no_declare=True)) as queue,
        ):
            queue.put([[1], {}, {}], headers={"id": "x-1", "task": "t"})
        letter = place.take().letters[0]

        assert (letter.reason, letter.task_id, json.loads(letter.envelope.body)) == ("rejected", "x-1", [[1], {}, {}])


class TestRedis:
    def place(self, server: EmbeddedRedis, **conf: Any) -> Place:
        return Place(server.url, **conf)

    def test_kombu_can_consume_the_queue(self, resilience_redis: EmbeddedRedis) -> None:
        place = self.place(resilience_redis)
        letter = a_letter()
        place.queue.publish(letter)
        with Connection(place.url) as connection:
            message = connection.channel().basic_get(place.name)

            assert bytes(message.body) == letter.envelope.body
            assert message.headers["id"] == letter.task_id

    def test_what_is_no_message_at_all_is_kept_by_its_bytes(self, resilience_redis: EmbeddedRedis) -> None:
        place = self.place(resilience_redis)
        with resilience_redis.client() as client:
            client.lpush(place.name, b"\xff not json", b'{"body": 1}')
        letters = place.take().letters

        assert [one.envelope.body for one in letters] == [b"\xff not json", b'{"body": 1}']
        assert len({one.id for one in letters}) == 2

    @pytest.mark.parametrize(
        "change",
        [
            {"headers": None},
            {"headers": []},
            {"content-type": None},
            {"properties": {}},
            {"content-encoding": 7},
            {"body": "!"},
        ],
        ids=str,
    )
    def test_whatever_shape_a_message_has_it_is_a_letter(
        self, resilience_redis: EmbeddedRedis, change: dict[str, Any]
    ) -> None:
        place = self.place(resilience_redis)
        with resilience_redis.client() as client:
            client.lpush(place.name, json.dumps({**json.loads(message().pack("tag")), **change}))

        assert len(place.take().letters) == 1

    def test_the_brokers_own_prefix_is_kept(self, resilience_redis: EmbeddedRedis) -> None:
        place = self.place(resilience_redis, broker_transport_options={"global_keyprefix": "mine:"})
        place.queue.publish(a_letter())
        with resilience_redis.client() as client:
            assert client.llen(f"mine:{place.name}") == 1
        assert len(place.take().letters) == 1

    def test_each_queue_may_have_its_own(self, resilience_redis: EmbeddedRedis) -> None:
        queues = [Queue("shop"), Queue("mail")]
        place = self.place(resilience_redis, resilience_dlq_queue="{queue}.dlq", task_queues=queues)
        for queue in ("shop", "mail", "unheard of", None):
            place.queue.publish(replace(a_letter(), queue=queue))
        with resilience_redis.client() as client:
            lengths = {name: client.llen(name) for name in place.queue.names()}

        assert lengths == {"mail.dlq": 1, "shop.dlq": 1, f"{place.name}-shop.dlq": 2}
        assert place.queue.depth() == 4
        taken = 0
        while letters := place.queue.take().letters:
            taken += len(letters)
        assert taken == 4

    def test_a_redis_that_hangs_is_given_up_within_a_second(self, redis_server: EmbeddedRedis) -> None:
        place = self.place(redis_server)
        place.queue.publish(a_letter())
        redis_server.pause()
        try:
            first = seconds(lambda: place.queue.publish(a_letter()))
            second = seconds(lambda: place.queue.publish(a_letter()))
        finally:
            redis_server.resume()

        assert first < 2
        assert second < 0.05


class TestRabbitMQ:
    def test_a_queue_deleted_meanwhile_is_made_again(self, rabbitmq: RabbitMQ) -> None:
        place = Place(rabbitmq.url)
        place.queue.publish(a_letter())
        with Connection(place.url) as connection:
            connection.channel().queue_delete(place.name)
        letter = a_letter()
        place.queue.publish(letter)

        assert place.take().letters == [letter]
        place.close()

    def test_headers_that_amqp_cannot_write_travel_in_the_body(self, rabbitmq: RabbitMQ) -> None:
        place = Place(rabbitmq.url)
        letter = a_letter(mine=2**70)
        place.queue.publish(letter)

        assert place.take().letters == [letter]
        place.close()

    def test_what_rabbitmq_dead_letters_itself_is_understood(self, rabbitmq: RabbitMQ) -> None:
        place = Place(rabbitmq.url)
        place.queue.publish(a_letter())
        place.take().ack()
        source = f"{place.name}-source"
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": place.name, "x-message-ttl": 1}
        with Connection(place.url) as connection:
            channel = connection.channel()
            channel.queue_declare(source, durable=True, arguments=arguments, auto_delete=False)
            headers, kind = {"id": "x", "task": "t"}, {"content_type": "a/b", "content_encoding": "binary"}
            Producer(channel).publish(b"\xff", routing_key=source, headers=headers, **kind)
            letter = place.take().letters[0]
            channel.queue_delete(source)

        assert (letter.reason, letter.queue, letter.envelope.body) == (DeadReason.EXPIRED, source, b"\xff")
        assert "x-death" not in letter.envelope.headers
        place.close()

    def test_a_broker_that_is_gone_is_given_up_within_a_second_and_then_left_alone(self) -> None:
        app = Celery("gone", broker="amqp://guest:guest@127.0.0.1:1//", set_as_current=False)
        queue = DeadLetterQueue(app, None, name="x", cooldown_seconds=60, clock=SYSTEM_CLOCK)

        assert seconds(lambda: queue.publish(a_letter())) < 1.5
        assert seconds(lambda: queue.publish(a_letter())) < 0.05
        with pytest.raises(StoreUnavailableError):
            queue.take()


def seconds(publish: Callable[[], None]) -> float:
    """Give how long it took to refuse."""
    start = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        publish()
    return time.monotonic() - start


def test_dates_in_headers_survive_redis(resilience_redis: EmbeddedRedis) -> None:
    place = Place(resilience_redis.url)
    letter = a_letter(when=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc))
    place.queue.publish(letter)

    assert place.take().letters == [letter]
