"""The schedule on a real Redis: nothing is lost, nothing comes twice, and twins are told apart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from celery_resilience.attempts import HEADER, Attempts
from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.errors import StoreUnavailableError
from celery_resilience.redis_store import RedisStore
from celery_resilience.schedule import KEEP_RECORD_SECONDS, Place, Schedule
from celery_resilience.testing import EmbeddedRedis
from celery_resilience.transport.envelope import Envelope, unpack
from tests.support.failures import failure_of
from tests.support.proof import size

HOUR = 3600.0
DUE, ENTRIES = "resilience:{schedule:test}:due", "resilience:{schedule:test}:entries"


def letter(body: bytes = b"x", priority: int = 0, **headers: Any) -> Envelope:
    """Make a message that can be told from others by its body."""
    return Envelope(body, "application/json", "utf-8", {"id": "1", **headers}, {"priority": priority}, "", "q")


@pytest.fixture
def schedule(resilience_redis: EmbeddedRedis) -> Iterator[Schedule]:
    store = RedisStore(resilience_redis.url, timeout_seconds=2)
    yield Schedule(store, SYSTEM_CLOCK, broker="test", shared=True)
    store.close()


@pytest.fixture
def client(resilience_redis: EmbeddedRedis) -> Iterator[redis.Redis]:
    with resilience_redis.client() as client:
        yield client


def place_of(lineage: str, attempt: int, queue: str = "q", priority: int = 0) -> Place:
    return Place(queue, priority, "retry", f"{lineage}:{attempt}")


class TestAdding:
    def test_an_attempt_is_stored_once(self, schedule: Schedule) -> None:
        assert schedule.add_attempt(letter(b"first"), "q", "a", 2, 0)
        assert not schedule.add_attempt(letter(b"twin"), "q", "a", 2, 0)

        assert schedule.count() == 1
        assert schedule.claim(schedule.due(10).places, 1)[0][1].body == b"first"

    def test_a_lineage_that_is_behind_adds_nothing(self, schedule: Schedule) -> None:
        schedule.add_attempt(letter(), "q", "a", 3, 0)

        assert not schedule.add_attempt(letter(), "q", "a", 2, 0)
        assert schedule.highest_attempt("a") == 3
        assert schedule.highest_attempt("unknown") == 0

    def test_an_attempt_is_on_record_after_it_was_moved(self, schedule: Schedule) -> None:
        schedule.add_attempt(letter(), "q", "a", 2, 0)
        schedule.release("q", schedule.due(10).places)

        assert not schedule.add_attempt(letter(), "q", "a", 2, 0)
        assert schedule.count() == 0

    def test_the_record_outlives_the_delay(self, schedule: Schedule, client: redis.Redis) -> None:
        schedule.add_attempt(letter(), "q", "a", 2, 48 * HOUR)

        ttl = client.ttl("resilience:{schedule:test}:highest:a")
        assert 48 * HOUR < ttl <= 48 * HOUR + KEEP_RECORD_SECONDS

    def test_a_users_eta_is_stored_once_and_for_its_time(self, schedule: Schedule) -> None:
        due_at = SYSTEM_CLOCK.time() + 48 * HOUR

        assert schedule.add_eta(letter(eta="2030"), "q", "eta:1", due_at)
        assert not schedule.add_eta(letter(eta="2030"), "q", "eta:1", due_at)
        assert abs(schedule.find()[0].due_at - due_at) < 0.01
        assert schedule.due(1).places == []
        assert abs((schedule.due(1).next_in_seconds or 0) - 48 * HOUR) < 60

    def test_nothing_but_records_with_an_end_is_left_over(self, schedule: Schedule, client: redis.Redis) -> None:
        schedule.add_attempt(letter(), "q", "a", 2, 0)
        schedule.add_eta(letter(), "q", "eta:1", 1.0)
        schedule.release("q", schedule.due(10).places)
        client.delete("q")

        assert all(client.ttl(key) > 0 for key in client.keys("*"))

    def test_families_do_not_see_each_other(self, schedule: Schedule) -> None:
        other = Schedule(schedule.store, SYSTEM_CLOCK, broker="other", shared=False)
        schedule.add_attempt(letter(), "q", "a", 2, 0)

        assert other.count() == 0
        assert other.add_attempt(letter(), "q", "a", 2, 0)


class TestWhatIsDue:
    def test_the_earliest_come_first_and_the_rest_waits(self, schedule: Schedule) -> None:
        for n, delay in enumerate([HOUR, 0, 2 * HOUR, 0]):
            schedule.add_attempt(letter(), "q", f"l{n}", 2, delay)
        due = schedule.due(10)

        assert {place.name for place in due.places} == {"l1:2", "l3:2"}
        assert HOUR - 5 < (due.next_in_seconds or 0) <= HOUR
        assert len(schedule.due(1).places) == 1

    def test_an_empty_schedule_has_nothing_to_wait_for(self, schedule: Schedule) -> None:
        due = schedule.due(10)

        assert (due.places, due.next_in_seconds) == ([], None)

    def test_what_is_not_due_is_neither_moved_nor_leased(self, schedule: Schedule, client: redis.Redis) -> None:
        schedule.add_attempt(letter(), "q", "a", 2, HOUR)

        assert schedule.release("q", [place_of("a", 2)]) == 0
        assert schedule.claim([place_of("a", 2)], 1) == []
        assert client.llen("q") == 0
        assert schedule.count() == 1

    def test_a_lease_hides_a_message_until_it_ends(self, schedule: Schedule) -> None:
        schedule.add_attempt(letter(b"body"), "q", "a", 2, 0)
        first = schedule.claim(schedule.due(10).places, HOUR)

        assert [envelope.body for _, envelope in first] == [b"body"]
        assert schedule.due(10).places == []
        assert schedule.claim([place_of("a", 2)], HOUR) == []
        assert schedule.count() == 1

    def test_a_member_whose_message_is_gone_is_cleaned_up(self, schedule: Schedule, client: redis.Redis) -> None:
        schedule.add_attempt(letter(), "q", "a", 2, 0)
        schedule.add_attempt(letter(), "q", "b", 2, 0)
        client.delete(ENTRIES)

        assert schedule.claim([place_of("a", 2)], 1) == []
        assert schedule.release("q", [place_of("b", 2)]) == 0
        assert schedule.count() == 0

    def test_what_moves_is_what_kombu_would_have_put_there(self, schedule: Schedule, client: redis.Redis) -> None:
        envelope = letter(bytes(range(256)), priority=6, task="t")
        schedule.add_attempt(envelope, "q", "a", 2, 0)
        schedule.release("list", schedule.due(10).places)
        raw = client.lpop("list")

        assert isinstance(raw, bytes)
        assert unpack(raw) == envelope

    def test_workers_that_race_move_each_message_once(self, schedule: Schedule, client: redis.Redis) -> None:
        wanted = size(200, 2000)
        for n in range(wanted):
            schedule.add_attempt(letter(str(n).encode()), "q", f"l{n}", 2, 0)
        moved: list[int] = []

        def work() -> None:
            store = RedisStore(schedule.store.url, timeout_seconds=5)
            mine = Schedule(store, SYSTEM_CLOCK, broker="test", shared=True)
            while places := mine.due(20).places:
                moved.append(mine.release("q", places))
            store.close()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        bodies = [unpack(raw).body for raw in client.lrange("q", 0, -1)]
        assert sum(moved) == len(bodies) == len(set(bodies)) == wanted


class TestListing:
    def test_a_row_says_what_waits_and_why(self, schedule: Schedule) -> None:
        state = Attempts().after_failure(failure_of(message="refused"), delay=5, at=1, worker="w")
        schedule.add_attempt(letter(task="shop.pay", **{HEADER: state.to_header()}), "mail", "a", 2, HOUR)
        row = schedule.find()[0]

        assert (row.task, row.task_id, row.queue, row.kind, row.attempt) == ("shop.pay", "1", "mail", "retry", 2)
        assert row.why == "NETWORK: tests.Made: refused"
        assert set(row.as_dict()) == {"task", "task_id", "queue", "kind", "due_at", "attempt", "why"}

    def test_a_retry_the_body_asked_for_and_an_eta_say_so(self, schedule: Schedule) -> None:
        schedule.add_attempt(letter(**{HEADER: Attempts().after_asking().to_header()}), "q", "a", 2, 10)
        schedule.add_eta(letter(eta="2030-01-01"), None, "eta:1", SYSTEM_CLOCK.time() + HOUR)

        assert [row.why for row in schedule.find()] == ["asked by the body", "ETA 2030-01-01"]
        assert schedule.find()[1].queue == "/q"

    def test_pages_follow_each_other(self, schedule: Schedule) -> None:
        for n in range(7):
            schedule.add_attempt(letter(id=str(n)), "q", f"l{n}", 2, 100 + n)

        pages = [[row.task_id for row in schedule.find(3, after)] for after in (0, 3, 6, 9)]
        assert pages == [["0", "1", "2"], ["3", "4", "5"], ["6"], []]
        assert schedule.count() == 7

    def test_queue_names_with_any_letters_come_back(self, schedule: Schedule) -> None:
        schedule.add_attempt(letter(), 'odd "[],é\x06\x16', "a", 2, 0)

        assert schedule.due(1).places[0].queue == 'odd "[],é\x06\x16'


class TestTrouble:
    def test_lost_scripts_are_no_trouble(self, schedule: Schedule, client: redis.Redis) -> None:
        schedule.add_attempt(letter(), "q", "a", 2, 0)
        client.script_flush()

        assert schedule.release("q", schedule.due(10).places) == 1

    def test_a_full_redis_refuses_and_loses_nothing(self, redis_server: EmbeddedRedis) -> None:
        store = RedisStore(redis_server.url, timeout_seconds=2)
        schedule = Schedule(store, SYSTEM_CLOCK, broker="test", shared=True)
        schedule.add_attempt(letter(b"kept"), "q", "a", 2, 0)
        with redis_server.client() as client:
            client.config_set("maxmemory", "1mb")
            with pytest.raises(StoreUnavailableError, match="refused"):
                schedule.add_attempt(letter(b"new"), "q", "b", 2, 0)
            with pytest.raises(StoreUnavailableError, match="refused"):
                schedule.release("q", schedule.due(10).places)
            client.config_set("maxmemory", "0")

            assert schedule.highest_attempt("b") == 0
            assert schedule.release("q", schedule.due(10).places) == 1
            assert [unpack(raw).body for raw in client.lrange("q", 0, -1)] == [b"kept"]
        store.close()

    def test_with_an_append_only_file_a_power_cut_loses_nothing(self) -> None:
        with EmbeddedRedis(url="", appendonly=True) as server:
            store = RedisStore(server.url, timeout_seconds=2, cooldown_seconds=0.1)
            schedule = Schedule(store, SYSTEM_CLOCK, broker="test", shared=True)
            schedule.add_attempt(letter(b"kept"), "q", "a", 2, 0)
            server.kill()
            server.start()
            store.close()

            assert schedule.claim(schedule.due(10).places, 1)[0][1].body == b"kept"
            assert schedule.highest_attempt("a") == 2
            store.close()

    def test_a_horde_that_waits_does_not_slow_the_look(self, schedule: Schedule, client: redis.Redis) -> None:
        wanted = size(20_000, 1_000_000)
        for start in range(0, wanted, 10_000):
            members = [place_of(f"l{n}", 2).member() for n in range(start, start + 10_000)]
            client.zadd(DUE, dict.fromkeys(members, 9e12))
        schedule.add_attempt(letter(), "q", "a", 2, 0)
        began = SYSTEM_CLOCK.monotonic()
        due = schedule.due(200)

        assert SYSTEM_CLOCK.monotonic() - began < 0.1
        assert [place.name for place in due.places] == ["a:2"]


class ScheduleAgainstModel(RuleBasedStateMachine):
    """Workers add, look, move, lease, crash and remove in any order; a dictionary says what must be where."""

    server: EmbeddedRedis
    places = Bundle("places")
    leased = Bundle("leased")

    def __init__(self) -> None:
        super().__init__()
        self.client = self.server.client()
        self.client.flushdb()
        self.store = RedisStore(self.server.url, timeout_seconds=5)
        self.schedule = Schedule(self.store, SYSTEM_CLOCK, broker="test", shared=True)
        self.waiting: dict[Place, bytes] = {}
        self.due: set[Place] = set()
        self.highest: dict[str, int] = {}
        self.stored: dict[Place, bytes] = {}
        self.queue: list[bytes] = []
        self.published: list[bytes] = []
        self.bodies = 0

    def teardown(self) -> None:
        """Whatever happened: in the end everything that was stored has come out."""
        self.client.zadd(DUE, {place.member(): 0 for place in self.waiting}) if self.waiting else None
        places = self.schedule.due(1000).places
        self.schedule.release("q", places)
        moved = {unpack(raw).body for raw in self.client.lrange("q", 0, -1)}
        assert moved | set(self.published) == set(self.stored.values())
        assert self.schedule.count() == 0
        self.store.close()
        self.client.close()

    def _body(self) -> bytes:
        self.bodies += 1
        return str(self.bodies).encode()

    def _note(self, place: Place, body: bytes, is_due: bool) -> None:
        self.waiting[place] = self.stored[place] = body
        if is_due:
            self.due.add(place)

    @rule(target=places, lineage=st.sampled_from("abc"), step=st.integers(-1, 2), is_due=st.booleans())
    def add_attempt(self, lineage: str, step: int, is_due: bool) -> Any:
        attempt = max(1, self.highest.get(lineage, 1) + step)
        body = self._body()
        stored = self.schedule.add_attempt(letter(body), "q", lineage, attempt, 0 if is_due else HOUR)
        assert stored == (attempt > self.highest.get(lineage, 0))
        if not stored:
            return multiple()
        self.highest[lineage] = attempt
        self._note(place_of(lineage, attempt), body, is_due)
        return place_of(lineage, attempt)

    @rule(target=places, name=st.sampled_from("xyz"), is_due=st.booleans())
    def add_eta(self, name: str, is_due: bool) -> Any:
        body, place = self._body(), Place("q", 0, "eta", name)
        due_at = 1.0 if is_due else SYSTEM_CLOCK.time() + HOUR
        stored = self.schedule.add_eta(letter(body), "q", name, due_at)
        assert stored == (place not in self.stored)
        if not stored:
            return multiple()
        self._note(place, body, is_due)
        return place

    @rule(place=places)
    def time_passes(self, place: Place) -> None:
        """A delay or a lease runs out."""
        if self.client.zadd(DUE, {place.member(): 0}, xx=True, ch=True):
            self.due.add(place)

    @rule(limit=st.integers(1, 10))
    def look(self, limit: int) -> None:
        found = self.schedule.due(limit).places
        assert set(found) <= self.due
        assert len(found) == min(limit, len(self.due))

    @rule(chosen=st.lists(places, max_size=6, unique=True))
    def release(self, chosen: list[Place]) -> None:
        """A worker moves what it saw as due some time ago."""
        movable = [place for place in chosen if place in self.due]
        assert self.schedule.release("q", chosen) == len(movable)
        for place in movable:
            self.due.remove(place)
            self.queue.append(self.waiting.pop(place))

    @rule(target=leased, chosen=st.lists(places, max_size=6, unique=True))
    def claim(self, chosen: list[Place]) -> Any:
        """A worker leases; what it does next, or that it dies, is another rule's business."""
        got = self.schedule.claim(chosen, HOUR)
        assert [(place, envelope.body) for place, envelope in got] == [
            (place, self.waiting[place]) for place in chosen if place in self.due
        ]
        for place, _ in got:
            self.due.remove(place)
        return multiple(*(place for place, _ in got))

    @rule(place=consumes(leased))
    def publish_and_remove(self, place: Place) -> None:
        """The worker lives on; its lease may have run out and somebody else may have been there."""
        self.published.append(self.stored[place])
        is_there = place in self.waiting
        assert self.schedule.remove([place]) == int(is_there)
        self.waiting.pop(place, None)
        self.due.discard(place)

    @rule(place=consumes(leased))
    def publish_and_crash(self, place: Place) -> None:
        self.published.append(self.stored[place])

    @rule()
    def scripts_are_lost(self) -> None:
        self.client.script_flush()

    @invariant()
    def everything_is_where_it_belongs(self) -> None:
        assert self.schedule.count() == len(self.waiting) == self.client.hlen(ENTRIES)
        assert [unpack(raw).body for raw in reversed(self.client.lrange("q", 0, -1))] == self.queue
        assert len(self.queue) == len(set(self.queue))


def test_the_schedule_behaves_like_its_model(resilience_redis: EmbeddedRedis) -> None:
    machine = type("Machine", (ScheduleAgainstModel,), {"server": resilience_redis})

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=size(60, 1000),
            stateful_step_count=size(30, 60),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
