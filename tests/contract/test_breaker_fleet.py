"""Processes on one breaker, with lost requests, lost replies and crashes: it stays legal, and it never wedges."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from celery_resilience import BreakerPolicy
from celery_resilience.breaker import CircuitBreaker, Permit
from celery_resilience.testing import EmbeddedRedis, FakeClock
from tests.support.breakers import UnreliableStore, move_with, succeed
from tests.support.proof import size

POLICY = BreakerPolicy(
    window_seconds=10,
    minimum_calls=4,
    open_seconds=2,
    open_cap_seconds=20,
    half_open_permits=2,
    probe_lease_seconds=5,
    ramp_seconds=3,
)
PROCESSES = st.integers(0, 2)
LEGAL = {
    "opened": {("closed", "open"), ("half-open", "open")},
    "half-opened": {("open", "half-open")},
    "closed": {("half-open", "closed")},
}


class FleetOnBadLines(RuleBasedStateMachine):
    """Three processes; any line may lose requests or replies, any process may die with permits in its hands."""

    server: EmbeddedRedis
    permits = Bundle("permits")

    @initialize()
    def begin(self) -> None:
        self.client = self.server.client()
        self.client.flushdb()
        self.clock = FakeClock()
        self.fleet = [self._process() for _ in range(3)]
        self.observer = self._process()

    def _process(self) -> CircuitBreaker:
        store = UnreliableStore(self.server.url, timeout_seconds=5, cooldown_seconds=1, clock=self.clock)
        return move_with(CircuitBreaker("pay", POLICY, store=store, clock=self.clock))

    def teardown(self) -> None:
        """Whatever happened: once the lines hold and the dependency works, every process gets through."""
        if not hasattr(self, "fleet"):
            return
        for process in self.fleet:
            process.store.lost = ""  # type: ignore[union-attr]  # an UnreliableStore
        self.clock.chance = 0.05
        for _ in range(200):
            self.clock.move(0.3)
            if all([succeed(process) for process in self.fleet]):
                break
        else:
            raise AssertionError(f"wedged: {self.observer.snapshot()}")
        for process in [*self.fleet, self.observer]:
            process.store.close()  # type: ignore[union-attr]  # it has one
        self.client.close()

    @rule(target=permits, process=PROCESSES, times=st.integers(1, 4))
    def admit(self, process: int, times: int) -> Any:
        answers = [self.fleet[process].admit() for _ in range(times)]
        return multiple(*(one for one in answers if isinstance(one, Permit)))

    @rule(permit=consumes(permits))
    def succeed_late(self, permit: Permit) -> None:
        permit.success()

    @rule(permit=consumes(permits))
    def fail_late(self, permit: Permit) -> None:
        permit.failure(ConnectionError())

    @rule(permit=consumes(permits))
    def give_back(self, permit: Permit) -> None:
        permit.cancel()

    @rule(process=PROCESSES)
    def outage(self, process: int) -> None:
        for _ in range(6):
            answer = self.fleet[process].admit()
            if isinstance(answer, Permit):
                answer.failure(ConnectionError())

    @rule(process=PROCESSES, lost=st.sampled_from(["", "", "before", "after"]))
    def line_changes(self, process: int, lost: str) -> None:
        self.fleet[process].store.lost = lost  # type: ignore[union-attr]  # an UnreliableStore

    @rule(process=PROCESSES)
    def process_is_killed(self, process: int) -> None:
        self.fleet[process].store.close()  # type: ignore[union-attr]  # it has one
        self.fleet[process] = self._process()

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.1, 2.5, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.move(seconds)

    @rule()
    def scripts_are_lost(self) -> None:
        self.client.script_flush()

    @invariant()
    def transitions_are_legal_and_told_once(self) -> None:
        if not hasattr(self, "observer"):
            return
        told = list(reversed(self.observer.history(1000)))
        state = "closed"
        for one in told:
            assert (one.from_state, one.to_state) in LEGAL[one.event]
            assert one.from_state == state
            state = one.to_state
        generations = [one.generation for one in told]
        assert generations == sorted(set(generations))

    @invariant()
    def probes_never_exceed_permits(self) -> None:
        if hasattr(self, "observer"):
            assert self.observer.snapshot().probes <= POLICY.half_open_permits


def test_a_fleet_on_bad_lines_stays_legal_and_never_wedges(resilience_redis: EmbeddedRedis) -> None:
    machine = type("Machine", (FleetOnBadLines,), {"server": resilience_redis})

    run_machine(
        machine,
        settings=settings(
            max_examples=size(50, 500),
            stateful_step_count=size(40, 80),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
