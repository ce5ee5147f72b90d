"""Taking messages from a Redis broker in one step: by a real worker, and the script alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from kombu import Connection

from celery_resilience import DeadLetter, lua, runtime_of
from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.testing import EmbeddedRedis, embedded_redis
from celery_resilience.transport.fetch import PATIENT_LOSSES, Fetch
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import QUICK_START

DONE = ["return", "done"]
SLOW_LOOKS = {"broker_transport_options": {"polling_interval": 60}}  # only word of a push is in time for a test


@pytest.fixture
def own_server() -> Iterator[EmbeddedRedis]:
    with embedded_redis(url="") as server:
        yield server


class TestAWorker:
    @pytest.mark.parametrize("args", [(), QUICK_START], ids=["as by default", "without mingle and gossip"])
    @pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
    def test_hears_of_each_push_at_any_priority(
        self, tmp_path: Path, own_server: EmbeddedRedis, pool: str, args: tuple[str, ...]
    ) -> None:
        with open_stage(tmp_path, own_server, conf=SLOW_LOOKS) as stage:
            stage.worker(pool=pool, concurrency=2, args=args)
            for priority in (0, 9, 3, 0, 6, 9):
                assert stage.script(DONE, priority=priority)[1].get(timeout=10) == "done"
            assert args == () or "brpop" not in commands(stage)  # mingle itself uses it

    def test_shares_messages_with_another_that_hears(self, tmp_path: Path, own_server: EmbeddedRedis) -> None:
        with open_stage(tmp_path, own_server, conf=SLOW_LOOKS) as stage:
            for _ in range(2):
                stage.worker(pool="solo")
            for _ in range(30):
                key, result = stage.script(DONE)
                assert result.get(timeout=10) == "done"
                assert len(stage.runs(key)) == 1

    def test_goes_on_after_its_scripts_were_flushed(self, tmp_path: Path, own_server: EmbeddedRedis) -> None:
        with open_stage(tmp_path, own_server, conf=SLOW_LOOKS) as stage:
            stage.worker(concurrency=1)
            stage.record.script_flush()

            assert stage.script(DONE)[1].get(timeout=10) == "done"

    def test_goes_on_after_its_connections_were_cut(self, tmp_path: Path, own_server: EmbeddedRedis) -> None:
        with open_stage(tmp_path, own_server, conf=SLOW_LOOKS) as stage:
            worker = stage.worker(concurrency=1)
            stage.record.client_kill_filter(_type="normal", skipme=True)
            wait_until(lambda: worker.log().count("Connected to") == 2, 20, worker.log)

            assert stage.script(DONE)[1].get(timeout=10) == "done"

    def test_makes_letters_of_what_is_no_message_and_goes_on(self, tmp_path: Path, own_server: EmbeddedRedis) -> None:
        properties = b'{"properties": {"delivery_tag": "t"}, '
        strange = [
            *(b"garbage", b"", b"[]", b"5", b"null", b'"text"', b"\x00\xff", b"{", b"{} {}", b"\xef\xbb\xbf{}"),
            *(b'{"properties": 5, "n": 0x10}', properties + b'"n": ' + b"9" * 10_000 + b"}"),
            properties + b'"n": ' + b"[" * 990 + b"]" * 990 + b"}",
            properties + b'"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            properties + b'"n": {"__type__": "datetime", "__value__": "never"}}',
        ]
        with open_stage(tmp_path, own_server) as stage, own_server.client() as client:
            client.lpush("resilient", *strange)
            worker = stage.worker(concurrency=1)

            assert stage.script(DONE)[1].get(timeout=15) == "done"
            wait_until(lambda: not client.hlen("resilience.unreadable"), 10, worker.log)
            letters = [letter for letter in letters_of(stage) if letter.reason == "malformed"]
            assert sorted(letter.envelope.body for letter in letters) == sorted(strange)
            assert {letter.queue for letter in letters} == {"resilient"}
            stage.wait_idle()
            assert worker.is_alive

    def test_finds_what_a_killed_worker_has_set_aside(self, tmp_path: Path, own_server: EmbeddedRedis) -> None:
        with open_stage(tmp_path, own_server) as stage, own_server.client() as client:
            client.hset("resilience.unreadable", "token:1:resilient", b"\xfegarbage")
            worker = stage.worker(concurrency=1)

            wait_until(lambda: not client.hlen("resilience.unreadable"), 10, worker.log)
            assert [letter.envelope.body for letter in letters_of(stage)] == [b"\xfegarbage"]

    def test_keeps_aside_what_is_no_message_where_letters_are_switched_off(
        self, tmp_path: Path, own_server: EmbeddedRedis
    ) -> None:
        conf = {"resilience_dlq_enabled": False}
        broken = json.dumps({"body": "abcde", "properties": {"delivery_tag": "b", "body_encoding": "base64"}}).encode()
        with open_stage(tmp_path, own_server, conf=conf) as stage, own_server.client() as client:
            client.lpush("resilient", b"\xff", broken)
            stage.worker(concurrency=1)

            assert stage.script(DONE)[1].get(timeout=15) == "done"
            assert sorted(client.hvals("resilience.unreadable")) == sorted([b"\xff", broken])
            stage.wait_idle()

    def test_goes_on_as_kombu_does_where_the_server_refuses(self, tmp_path: Path, own_server: EmbeddedRedis) -> None:
        own_server.client().execute_command(
            "ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-client|tracking"
        )
        broker = own_server.url.replace("redis://", "redis://poor:pw@")
        with open_stage(tmp_path, own_server, broker=broker) as stage:
            worker = stage.worker(concurrency=1)

            assert stage.script(DONE)[1].get(timeout=15) == "done"
            assert "resilience-fetch-degraded" in worker.log()

    def test_takes_messages_while_memory_is_used_up(self, tmp_path: Path, own_server: EmbeddedRedis) -> None:
        with open_stage(tmp_path, own_server, VISIBILITY_TIMEOUT="2", conf={"task_ignore_result": True}) as stage:
            worker = stage.worker(concurrency=1)
            worker.freeze()
            key, _ = stage.script(DONE)
            with own_server.client() as client:
                client.config_set("maxmemory", "1")
                worker.thaw()
                wait_until(lambda: not client.llen("resilient"), 20, worker.log)
                client.config_set("maxmemory", "0")
            stage.wait_runs(key, 1, 20)
            stage.wait_idle(20)

    def test_lives_on_when_it_cannot_give_back(self, tmp_path: Path, own_server: EmbeddedRedis) -> None:
        conf = {"task_ignore_result": True, "resilience_requeue_pause_seconds": 0.1}
        with open_stage(tmp_path, own_server, VISIBILITY_TIMEOUT="2", conf=conf) as stage:
            worker = stage.worker(pool="solo")
            worker.freeze()
            key = stage.key()
            stage.send("flaky", key, 1)
            with own_server.client() as client:
                client.config_set("maxmemory", "1")
                worker.thaw()
                wait_until(lambda: "resilience-broker-lost" in worker.log(), 20, worker.log)
                client.config_set("maxmemory", "0")
            stage.wait_runs(key, 2, 20)
            stage.wait_idle(20)

    def test_keeps_a_net_under_broadcasts(self, tmp_path: Path, own_server: EmbeddedRedis) -> None:
        queues = json.dumps([{"name": "resilient"}, {"name": "all", "exchange": "all", "type": "fanout"}])
        with open_stage(tmp_path, own_server, VISIBILITY_TIMEOUT="2", QUEUES=queues) as stage:
            worker = stage.worker(concurrency=1)
            keys = [stage.script(["sleep", 1.0], queue="all")[0] for _ in range(3)]
            wait_until(lambda: stage.unacked() == 3, 10, worker.log)
            for key in keys:
                stage.wait_runs(key, 1, 20)
            wait_until(lambda: not stage.unacked(), 20, worker.log)

            assert "resilience-lease-lost" not in worker.log()
            assert [len(stage.runs(key)) for key in keys] == [1, 1, 1]


class TestWordOfPushes:
    """One channel, driven by hand, of a worker that others have beaten again and again."""

    @pytest.fixture
    def channel(self, own_server: EmbeddedRedis) -> Iterator[Any]:
        with Connection(own_server.url) as connection:
            channel: Any = connection.channel()
            channel.basic_qos(0, 8, False)
            yield channel

    def test_that_comes_while_a_question_is_open_costs_no_answer(
        self, channel: Any, own_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[str] = []
        timers: list[Callable[[], None]] = []
        hub = SimpleNamespace(call_later=lambda _seconds, call: timers.append(call))
        monkeypatch.setattr("celery_resilience.transport.fetch.get_event_loop", lambda: hub)
        for queue in ("a", "b"):
            channel.queue_declare(queue)
            channel.basic_consume(queue, False, lambda raw: taken.append(raw.delivery_tag), f"tag-{queue}")
        fetch = Fetch(channel, SYSTEM_CLOCK)
        assert fetch.install()
        channel.connection.cycle._register_BRPOP(channel)
        fetch.read()
        fetch._losses = PATIENT_LOSSES
        with own_server.client() as client:
            for n in range(20):
                for queue in ("a", "b"):
                    client.lpush(queue, message(f"{queue}{n}"))
                    self.listen(fetch, channel)
                fetch._look_again_at = 0.0
                fetch.can_consume()
                channel.connection.cycle._register_BRPOP(channel)
                client.lpush("a", message(f"late{n}"))
                for timer in timers:  # they fire while the question is open
                    timer()
                fetch.can_consume()
                channel.connection.cycle._register_BRPOP(channel)
                self.listen(fetch, channel)
                for tag in list(channel.qos._delivered):
                    channel.basic_ack(tag)
                fetch._losses = PATIENT_LOSSES

            def all_taken() -> bool:
                fetch._look_again_at = 0.0
                fetch.can_consume()
                channel.connection.cycle._register_BRPOP(channel)
                self.listen(fetch, channel)
                for tag in list(channel.qos._delivered):
                    channel.basic_ack(tag)
                return len(taken) == 60

            wait_until(all_taken, 10, lambda: f"60 messages, not {len(taken)}")
            assert client.hlen("unacked") == 0

    @staticmethod
    def listen(fetch: Fetch, channel: Any) -> None:
        if channel.client.connection.can_read(timeout=0.05):
            fetch.read()


class TestTheScript:
    KEYS = ("u", "i", "strange")

    @pytest.fixture
    def client(self, own_server: EmbeddedRedis) -> redis.Redis:
        return own_server.client(decode_responses=True)

    @staticmethod
    def push(client: redis.Redis, name: str, *tags: str) -> None:
        for tag in tags:
            client.lpush(name, message(tag))

    def fetch(
        self, client: redis.Redis, limit: int, *queues: str, turns: int = 1
    ) -> tuple[bool, list[tuple[str, str]]]:
        lists = [f"{queue}{suffix}" for suffix in ("", "\x06\x163") for queue in queues]
        keys = [*self.KEYS, *lists]
        answer: Any = client.eval(lua.source("fetch"), len(keys), *keys, limit, "token", turns, *queues)
        found = [(answer[n], answer[n + 1]) for n in range(1, len(answer), 3)]
        return bool(answer[0]), [(queues[at - 1] if at > 0 else "", tag) for at, tag in found]

    def test_takes_higher_priorities_first_and_queues_in_turn(self, client: redis.Redis) -> None:
        self.push(client, "a\x06\x163", "late")
        self.push(client, "a", "a1", "a2", "a3")
        self.push(client, "b", "b1")

        has_more, taken = self.fetch(client, 10, "a", "b")

        assert taken == [("a", "a1"), ("b", "b1"), ("a", "a2"), ("a", "a3"), ("a", "late")]
        assert not has_more

    def test_empties_one_queue_after_the_other_where_order_is_wanted(self, client: redis.Redis) -> None:
        self.push(client, "a", "a1", "a2")
        self.push(client, "b", "b1", "b2")

        assert self.fetch(client, 3, "a", "b", turns=0)[1] == [("a", "a1"), ("a", "a2"), ("b", "b1")]

    def test_reads_half_a_pair_of_surrogates_as_python_does(self, client: redis.Redis) -> None:
        client.lpush("a", json.dumps({"headers": {"x": "caf\udce9"}, "properties": {"delivery_tag": "t"}}))

        assert self.fetch(client, 1, "a") == (True, [("a", "t")])

    def test_takes_no_more_than_asked(self, client: redis.Redis) -> None:
        self.push(client, "a", "1", "2", "3")

        assert self.fetch(client, 2, "a") == (True, [("a", "1"), ("a", "2")])
        assert client.llen("a") == 1

    def test_notes_a_message_as_kombu_does(self, client: redis.Redis) -> None:
        self.push(client, "a", "t")
        packed = json.loads(message("t"))
        self.fetch(client, 1, "a")

        assert json.loads(str(client.hget("u", "t"))) == [packed, "x", "k/1"]
        seconds = client.time()
        assert seconds[0] - 5 < float(str(client.zscore("i", "t"))) <= seconds[0] + 1

    @pytest.mark.parametrize("properties", [{}, {"delivery_info": None}, {"delivery_info": {"exchange": 3}}])
    def test_a_message_without_origin_goes_back_to_its_queue(
        self, client: redis.Redis, properties: dict[str, Any]
    ) -> None:
        client.lpush("a", json.dumps({"properties": {"delivery_tag": 7, **properties}}))
        self.fetch(client, 1, "a")

        assert json.loads(str(client.hget("u", "7")))[1:] == ["", "a"]

    def test_a_message_without_a_tag_gets_one(self, client: redis.Redis) -> None:
        client.lpush("a", json.dumps({"body": "x"}))

        assert self.fetch(client, 1, "a") == (True, [("a", "token:1:a")])
        assert json.loads(str(client.hget("u", "token:1:a"))) == [{"body": "x"}, "", "a"]

    def test_counts_what_is_no_message_and_keeps_each(self, client: redis.Redis) -> None:
        client.lpush("a", *["junk"] * 5)

        assert self.fetch(client, 3, "a") == (True, [("", f"token:{n}:a") for n in (1, 2, 3)])
        assert client.hgetall("strange") == {f"token:{n}:a": "junk" for n in (1, 2, 3)}
        assert client.llen("a") == 2


def message(tag: str) -> str:
    info = {"exchange": "x", "routing_key": "k/1"}
    return json.dumps({"body": "é", "headers": {}, "properties": {"delivery_tag": tag, "delivery_info": info}})


def commands(stage: Stage) -> set[str]:
    return {name.removeprefix("cmdstat_") for name in stage.record.info("commandstats")}


def letters_of(stage: Stage) -> list[DeadLetter]:
    """Collect what is in the DLQ, and give every letter of the ledger."""
    desk = runtime_of(stage.app).desk
    desk.collect()
    found = [desk.get(one.id) for one in desk.find(LetterFilter())]
    return [whole[1] for whole in found if whole is not None]
