"""The scripts in Redis and the local machine are one state machine: told the same, they answer the same."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from celery_resilience.breaker.local import LocalMachine
from celery_resilience.breaker.shared import breaker_keys
from celery_resilience.breaker.values import Mode, Outcome, Reply, Report, Run
from celery_resilience.breaker_policy import BreakerPolicy
from celery_resilience.redis_store import RedisStore
from celery_resilience.testing import EmbeddedRedis, FakeClock
from tests.support.breakers import MovedMachine
from tests.support.proof import size

POLICIES = [
    BreakerPolicy(window_seconds=10, minimum_calls=4, open_seconds=5, open_cap_seconds=40, half_open_permits=2),
    BreakerPolicy(
        window_calls=7, minimum_calls=3, failure_rate=0.3, open_seconds=1, successes_to_close=3, ramp_seconds=9
    ),
    BreakerPolicy(
        failure_rate=None, consecutive_failures=3, open_seconds=2, successes_to_close=1, probe_lease_seconds=3
    ),
    BreakerPolicy(
        window_seconds=0.7,
        failure_rate=0.9,
        minimum_calls=5,
        slow_call_seconds=1,
        slow_call_rate=0.4,
        half_open_permits=3,
    ),
]
COUNTS = st.integers(0, 3)
HINTS = st.sampled_from([-1, -1, -1, 0, 250, 7000, 10**9])


class MachineAgainstModel(RuleBasedStateMachine):
    """Processes report, probe, crash, lose replies and come late; operators override; time moves; scripts get lost."""

    server: EmbeddedRedis
    probes = Bundle("probes")
    generations = Bundle("generations")

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: BreakerPolicy) -> None:
        self.client = self.server.client()
        self.client.flushdb()
        self.policy = policy
        self.clock = FakeClock()
        self.store = RedisStore(self.server.url, timeout_seconds=5)
        self.redis = MovedMachine("pay", policy, self.store, self.clock)
        self.model = LocalMachine("pay", policy, self.clock)
        self.tokens = 0
        self.generation = 0
        self.transitions = 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.client.close()

    def _same(self, one: Reply, other: Reply) -> Reply:
        assert dataclasses.replace(one, breakers=0) == other
        self.generation = one.generation
        self.transitions += len(one.told)
        return one

    @rule(target=generations, counts=st.tuples(COUNTS, COUNTS, COUNTS, COUNTS), hint=HINTS)
    def report(self, counts: tuple[int, int, int, int], hint: int) -> int:
        report = Report(self.generation, *counts, hint)
        self._same(self.redis.sync(report, ""), self.model.sync(report, ""))
        return self.generation

    @rule(
        runs=st.lists(
            st.tuples(st.sampled_from([0, 3, 400, 2000, 9000, 70_000]), COUNTS, COUNTS, COUNTS, COUNTS), max_size=6
        )
    )
    def resend(self, runs: list[tuple[int, int, int, int, int]]) -> None:
        """A process comes back with what it counted while Redis was away."""
        earlier = [Run(*run) for run in sorted(runs, reverse=True)]
        report = Report(self.generation)
        self._same(self.redis.sync(report, "", earlier), self.model.sync(report, "", earlier))

    @rule(probe=probes)
    def ask_within(self, probe: tuple[int, str]) -> None:
        """A call within a probe asks, in time or after its lease."""
        report, token = Report(self.generation), probe[1]
        self._same(self.redis.sync(report, token), self.model.sync(report, token))

    @rule(generation=generations, failures=COUNTS)
    def report_late(self, generation: int, failures: int) -> None:
        """A call of some older generation ends."""
        report = Report(generation, failures=failures)
        self._same(self.redis.sync(report, ""), self.model.sync(report, ""))

    @rule(target=probes, times=st.integers(1, 5))
    def admit(self, times: int) -> Any:
        """Several processes ask for permits at once; what they do with them, or that they die, is another rule's."""
        granted = []
        for _ in range(times):
            self.tokens += 1
            token, report = f"t{self.tokens}", Report(self.generation)
            reply = self._same(self.redis.sync(report, token), self.model.sync(report, token))
            if reply.granted:
                granted.append((reply.generation, token))
        assert len(granted) <= self.policy.half_open_permits
        return multiple(*granted)

    @rule(probe=probes, outcome=st.sampled_from(["success", "success", "failure", "slow", "cancel"]), hint=HINTS)
    def settle(self, probe: tuple[int, str], outcome: Outcome, hint: int) -> None:
        """A probe ends: in time, after its lease, in another generation, or a second time."""
        generation, token = probe
        told = (generation, token, outcome, hint)
        self._same(self.redis.settle(*told), self.model.settle(*told))

    @rule(target=probes, probe=probes)
    def flap(self, probe: tuple[int, str]) -> Any:
        """A probe fails, the open time passes, others probe: now earlier permits are of an older generation."""
        self.settle(probe, "failure", -1)
        self.open_time_passes()
        return self.admit(2)

    @rule(mode=st.sampled_from(["open", "closed", "disabled", ""]), lasts=st.sampled_from([0, 500, 8000]))
    def override(self, mode: Mode, lasts: int) -> None:
        self._same(
            self.redis.override(mode, "ann", "why not", lasts), self.model.override(mode, "ann", "why not", lasts)
        )

    @rule(seconds=st.sampled_from([0.001, 0.07, 0.5, 1.0, 3.0, 6.0, 11.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.move(seconds)

    @rule(wait=st.booleans())
    def outage(self, wait: bool) -> None:
        """Everything fails for a while, so that half-open is reached often enough."""
        report = Report(self.generation, failures=20)
        self._same(self.redis.sync(report, ""), self.model.sync(report, ""))
        if wait:
            self.open_time_passes()

    @rule()
    def leases_end(self) -> None:
        self.clock.move(self.policy.probe_lease_seconds)

    @rule()
    def open_time_passes(self) -> None:
        """Move to where the interesting things happen."""
        seen = self.model.look()
        if seen is not None and seen.open_until:
            self.clock.move(max(0.0, seen.open_until - self.clock.time()) + 0.002)

    @rule()
    def scripts_are_lost(self) -> None:
        self.client.script_flush()

    @invariant()
    def everything_looks_the_same(self) -> None:
        if not hasattr(self, "redis"):
            return
        seen, expected = self.redis.look(), self.model.look()
        if expected is None or seen is None:
            assert seen is None
            assert expected is None
            return
        assert dataclasses.replace(seen, policy={}) == dataclasses.replace(expected, policy={})
        assert seen.probes <= self.policy.half_open_permits

    @invariant()
    def each_transition_is_told_once(self) -> None:
        if hasattr(self, "redis"):
            assert self.redis.history(1000) == self.model.history(1000)
            assert len(self.redis.history(1000)) == self.transitions

    @invariant()
    def every_key_has_an_end_or_a_bound(self) -> None:
        if hasattr(self, "redis") and (seen := self.redis.look()) is not None:
            endless = seen.override_who and not seen.override_until
            assert (self.client.ttl(breaker_keys(self.store, "pay")[0]) > 0) != bool(endless)
            probes = breaker_keys(self.store, "pay")[1]
            assert not self.client.exists(probes) or self.client.pttl(probes) > 0


def test_the_scripts_behave_like_the_local_machine(resilience_redis: EmbeddedRedis) -> None:
    machine = type("Machine", (MachineAgainstModel,), {"server": resilience_redis})

    run_machine(
        machine,
        settings=settings(
            max_examples=size(60, 400),
            stateful_step_count=size(40, 80),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
