"""A payment service goes down under a fleet: the fleet stops calling, spends nothing, and finishes when it is back."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_resilience import runtime_of
from celery_resilience.breaker import Transition
from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.testing import embedded_redis
from tests.apps import fleet
from tests.support.payment_service import Call, payment_service
from tests.support.proof import Figures, size
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

UP_SECONDS, DOWN_SECONDS, PER_SECOND = size(1.0, 5.0), size(3.5, 30.0), size(40, 50)


@dataclass
class Story:
    """What happened, as the service and the breaker saw it."""

    down_at: float = 0.0
    back_at: float = 0.0
    done_at: float = 0.0
    calls: list[Call] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)
    parked: int = 0
    sent: int = 0

    def between(self, begin: float, end: float) -> list[Call]:
        return [call for call in self.calls if begin <= call.at < end]


def send_evenly(stage: Stage, results: list[Any], stop: threading.Event) -> None:
    """Send orders at an even pace until told to stop."""
    while not stop.wait(1 / PER_SECOND):
        results.append(stage.send("pay", len(results)))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Up for a while, then down, then up again, under even load, until every task is done."""
    told, directory = Story(), tmp_path_factory.mktemp("outage")
    with (
        embedded_redis(url="") as server,
        payment_service(directory) as service,
        open_stage(
            directory,
            server,
            app="tests.apps.fleet",
            make=lambda env: fleet.build(env, set_as_current=False),
            SERVICE_URL=service.url,
            RETRY_POLICY="{}",  # that of the class: exponential from 1 s, 5 attempts
        ) as stage,
    ):
        workers = [stage.worker(concurrency=4, wait=False) for _ in range(2)]
        for worker in workers:
            worker.wait_ready()
        results: list[Any] = []
        stop = threading.Event()
        sender = threading.Thread(target=send_evenly, args=(stage, results, stop))
        sender.start()
        try:
            wait_for_moment(SYSTEM_CLOCK.time() + UP_SECONDS)
            told.down_at = service.go_down()
            wait_for_moment(told.down_at + DOWN_SECONDS)
            told.parked = sum(row.kind == "park" for row in stage.schedule.find(limit=10_000))
        finally:
            stop.set()
            sender.join()
        told.back_at = service.come_back()
        told.sent = len(results)
        wait_until(lambda: len({c.order for c in service.calls() if c.status == 200}) == told.sent, 60, "all orders")
        told.done_at = SYSTEM_CLOCK.time()
        states: dict[str, int] = defaultdict(int)
        for result in results:
            stage.wait_state(result, "SUCCESS", 10)
            states[result.state] += 1
        told.states = states
        told.calls = service.calls()
        told.transitions = runtime_of(stage.app).breakers.history(1000, "payments")[::-1]
        yield told


def wait_for_moment(moment: float) -> None:
    wait_until(lambda: SYSTEM_CLOCK.time() >= moment, DOWN_SECONDS + 30, "the moment")


def test_within_a_second_the_fleet_stops_calling(story: Story, figures: Figures) -> None:
    opened = next(one for one in story.transitions if one.event == "opened")
    first = story.between(story.down_at, story.down_at + 1)
    late = story.between(story.down_at + 1, story.back_at)
    half_opened = [one for one in story.transitions if one.event == "half-opened" and one.at < story.back_at]
    figures.add("outage: seconds until the breaker trips", wanted="< 1", measured=opened.at - story.down_at)
    figures.add("outage: calls in its first second", wanted="few", measured=len(first))
    figures.add(f"outage: calls in the {DOWN_SECONDS - 1:g} s after (each a probe)", wanted=f"<= {len(half_opened)}",
                measured=len(late))  # fmt: skip

    assert opened.at - story.down_at < 1.0
    assert len(half_opened) >= 1
    assert len(late) <= len(half_opened)  # one permit each
    assert story.parked > 0


def test_no_task_spends_an_attempt_that_was_not_made(story: Story, figures: Figures) -> None:
    made: dict[int, list[int]] = defaultdict(list)
    for call in story.calls:
        made[call.order].append(call.attempt)
    wrong = {order: numbers for order, numbers in made.items() if numbers != list(range(1, len(numbers) + 1))}
    figures.add("outage: tasks that spent an attempt without a call", wanted="0", measured=len(wrong))
    figures.add("outage: attempts of the unluckiest task", wanted="<= 5", measured=max(map(len, made.values())))

    assert wrong == {}


def test_when_it_is_back_probes_find_it_and_every_task_completes(story: Story, figures: Figures) -> None:
    first = next(call for call in story.calls if call.at >= story.back_at and call.status == 200)
    closed = next(one for one in story.transitions if one.event == "closed" and one.at >= story.back_at)
    figures.add("outage: seconds from the return to the first success", wanted="< 4", measured=first.at - story.back_at)
    figures.add("outage: seconds from the return to closed", wanted="< 6", measured=closed.at - story.back_at)
    took = story.done_at - story.back_at
    figures.add("outage: tasks done", wanted=f"{story.sent}", measured=f"{story.states['SUCCESS']}, {took:.1f} s after")

    assert story.states == {"SUCCESS": story.sent}
    assert first.at - story.back_at < 4
    paid = [call.order for call in story.calls if call.status == 200]
    assert len(paid) == len(set(paid)) == story.sent
