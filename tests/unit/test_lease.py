"""Leases: renewed while held, lost after a whole timeout, and never answered for once lost."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import pytest
from kombu import Connection
from kombu.transport import redis as kombu_redis
from kombu.transport.virtual import base as kombu_virtual

from celery_resilience.testing import FakeClock
from celery_resilience.transport.lease import HeldTag, Holding

TIMEOUT = 10.0


class BrokerInMemory:
    """An unacked index as a set of tags."""

    def __init__(self) -> None:
        self.client = self
        self.forget = lambda tag: self.dropped.append(tag)
        self.restore = lambda tag: self.restored.append(tag)
        self.index: set[str] = set()
        self.renewed: list[str] = []
        self.dropped: list[str] = []
        self.restored: list[str] = []
        self.lapsed: list[str] = []
        self.is_away = False
        self.is_closed = False

    def renew(self, tags: Sequence[str]) -> set[str]:
        if self.is_away:
            raise ConnectionError("away")
        self.renewed += tags
        return set(tags) - self.index

    def orphans(self, timeout: float) -> list[str]:
        return self.lapsed

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker() -> BrokerInMemory:
    return BrokerInMemory()


@pytest.fixture
def holding(broker: BrokerInMemory, clock: FakeClock) -> Holding:
    return Holding(broker, TIMEOUT, clock)


def deliver(holding: Holding, broker: BrokerInMemory, tag: str) -> HeldTag:
    broker.index.add(tag)
    return holding.take(tag)


def test_a_lease_that_is_renewed_never_lapses(holding: Holding, broker: BrokerInMemory, clock: FakeClock) -> None:
    tag = deliver(holding, broker, "a")
    for _ in range(20):
        clock.move(TIMEOUT / 4)
        holding.renew()

    assert broker.renewed == ["a"] * 20
    assert holding.end(tag)
    assert not holding.holds("a")


def test_a_lease_not_renewed_for_a_whole_timeout_is_no_longer_ours(
    holding: Holding, broker: BrokerInMemory, clock: FakeClock
) -> None:
    tag = deliver(holding, broker, "a")
    clock.move(TIMEOUT + 0.1)

    assert not holding.end(tag)


def test_after_a_freeze_the_first_renewal_lets_go_instead_of_taking_back(
    holding: Holding, broker: BrokerInMemory, clock: FakeClock
) -> None:
    tag = deliver(holding, broker, "a")
    clock.move(TIMEOUT + 0.1)
    holding.renew()

    assert broker.renewed == []
    assert broker.dropped == ["a"]
    assert not holding.end(tag)


def test_a_tag_that_is_gone_from_the_index_is_lost_at_once(holding: Holding, broker: BrokerInMemory) -> None:
    tag = deliver(holding, broker, "a")
    broker.index.clear()
    holding.renew()

    assert broker.dropped == ["a"]
    assert not holding.end(tag)


def test_two_runs_under_one_tag_are_told_apart(holding: Holding, broker: BrokerInMemory, clock: FakeClock) -> None:
    stale = deliver(holding, broker, "a")
    clock.move(TIMEOUT + 1)
    live = deliver(holding, broker, "a")

    assert stale == live
    assert not holding.end(stale)
    assert holding.holds("a")
    assert holding.end(live)


def test_a_stale_runs_loss_does_not_take_the_live_ones_lease(
    holding: Holding, broker: BrokerInMemory, clock: FakeClock
) -> None:
    deliver(holding, broker, "a")
    clock.move(TIMEOUT + 1)
    live = deliver(holding, broker, "a")
    holding.renew()

    assert broker.dropped == []
    assert broker.renewed == ["a"]
    assert holding.end(live)


def test_a_broker_that_is_away_costs_the_lease_only_after_the_timeout(
    holding: Holding, broker: BrokerInMemory, clock: FakeClock
) -> None:
    tag = deliver(holding, broker, "a")
    broker.is_away = True
    for _ in range(3):
        clock.move(TIMEOUT / 4)
        with pytest.raises(ConnectionError):
            holding.renew()
    broker.is_away = False
    holding.renew()
    clock.move(TIMEOUT * 0.9)

    assert holding.end(tag)


def test_time_spent_in_the_renewal_itself_does_not_count_as_held(broker: BrokerInMemory, clock: FakeClock) -> None:
    class Slow(BrokerInMemory):
        def renew(self, tags: Sequence[str]) -> set[str]:
            clock.move(4)
            return super().renew(tags)

    slow = Slow()
    holding = Holding(slow, TIMEOUT, clock)
    tag = deliver(holding, slow, "a")
    holding.renew()
    clock.move(TIMEOUT - 3)

    assert not holding.end(tag)


def test_a_closing_channel_keeps_what_still_runs_and_gives_up_the_rest(
    holding: Holding, broker: BrokerInMemory
) -> None:
    running, prefetched = deliver(holding, broker, "running"), deliver(holding, broker, "prefetched")
    holding.keep_only({"running"})
    holding.renew()

    assert broker.renewed == ["running"]
    assert holding.end(running)
    assert not holding.end(prefetched)
    assert len(holding) == 0


def test_closing_closes_the_connection_that_renews(holding: Holding, broker: BrokerInMemory) -> None:
    holding.close()

    assert broker.is_closed


def test_tags_taken_before_the_watch_began_are_answered_for_as_ever(holding: Holding) -> None:
    assert holding.end("unknown")


def test_orphans_of_others_are_put_back(holding: Holding, broker: BrokerInMemory) -> None:
    broker.lapsed = ["x", "y"]

    assert holding.restore_orphans() == 2
    assert broker.restored == ["x", "y"]


@pytest.mark.parametrize(("timeout", "pause"), [(1, 0.25), (5, 1.25), (60, 15), (3600, 15), (0.01, 0.1)])
def test_leases_are_renewed_four_times_in_a_timeout(timeout: float, pause: float, clock: FakeClock) -> None:
    assert Holding(BrokerInMemory(), timeout, clock).renewal_seconds == pause


def test_many_leases_are_renewed_in_batches(holding: Holding, broker: BrokerInMemory) -> None:
    for n in range(2500):
        deliver(holding, broker, str(n))
    holding.renew()

    assert len(broker.renewed) == 2500


class TestKombuIsAsWeKnowIt:
    """These fail when kombu changes what `hold` relies on; then read `transport/lease.py` again."""

    @pytest.mark.parametrize(
        ("method", "parameters"),
        [
            ("append", ["self", "message", "delivery_tag"]),
            ("ack", ["self", "delivery_tag"]),
            ("reject", ["self", "delivery_tag", "requeue"]),
            ("restore_by_tag", ["self", "tag", "client", "leftmost"]),
        ],
    )
    def test_the_signatures_of_qos(self, method: str, parameters: list[str]) -> None:
        assert list(inspect.signature(getattr(kombu_redis.QoS, method)).parameters) == parameters

    def test_the_names_of_the_channel(self) -> None:
        channel = kombu_redis.Channel

        assert list(inspect.signature(channel._get_pool).parameters) == ["self", "asynchronous"]
        assert channel.unacked_index_key == "unacked_index"
        assert channel.visibility_timeout == 3600
        assert isinstance(channel.global_keyprefix, str)
        assert "self.Client = self._get_client()" in inspect.getsource(channel.__init__)

    def test_a_message_is_appended_before_anybody_sees_its_tag(self) -> None:
        source = inspect.getsource(kombu_virtual.Channel.basic_consume)

        assert source.index("qos.append(message, message.delivery_tag)") < source.index("callback(message)")

    def test_the_names_that_the_fetch_takes_the_place_of(self) -> None:
        channel, poller = kombu_redis.Channel, kombu_redis.MultiChannelPoller

        assert "'BRPOP': self._brpop_read" in inspect.getsource(channel.__init__)
        assert "channel._brpop_start()" in inspect.getsource(poller._register_BRPOP)
        assert "if not channel._in_poll" in inspect.getsource(poller._register_BRPOP)
        assert "client.connection" in inspect.getsource(poller._client_registered)
        assert "if channel.qos.can_consume():" in inspect.getsource(poller.on_poll_start)
        assert "chan.handlers[type]()" in inspect.getsource(poller.on_readable)
        assert "self._brpop_read()" in inspect.getsource(channel.close)
        assert "self.connection._deliver(loads(bytes_to_str(item)), dest)" in inspect.getsource(channel._brpop_read)

    def test_acks_and_rejects_go_through_the_qos_of_the_channel(self) -> None:
        assert "self.qos.ack(delivery_tag)" in inspect.getsource(kombu_virtual.Channel.basic_ack)
        assert "self.qos.reject(delivery_tag, requeue=requeue)" in inspect.getsource(kombu_virtual.Channel.basic_reject)

    def test_an_ack_marks_the_tag_and_a_dirty_tag_is_no_longer_delivered(self) -> None:
        with Connection("memory://") as connection:
            qos = connection.channel().qos
            qos.append(object(), "a")
            qos._quick_ack("a")
            qos._flush()

        assert "a" not in qos._delivered

    def test_redelivery_is_still_under_the_same_tag_with_both_marks(self) -> None:
        source = inspect.getsource(kombu_redis.Channel._do_restore_message)

        assert "payload['headers']['redelivered'] = True" in source
        assert "delivery_tag" not in source
