"""Retries in a real worker: each failure by its class, each attempt once, everything of the message intact."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.exceptions import MaxRetriesExceededError

from celery_resilience.errors import DeadlineExceededError, PermanentError, RetryableError
from celery_resilience.testing import embedded_redis
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import WorkerProcess

DOWN, DONE = ["raise", "network"], ["return", "done"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with embedded_redis(url="") as server, open_stage(tmp_path_factory.mktemp("logs"), server) as stage:
        yield stage


@pytest.fixture(scope="module", autouse=True)
def the_worker(stage: Stage) -> WorkerProcess:
    return stage.worker(concurrency=4, args=("--without-mingle", "--without-gossip", "-E"))


class TestByClass:
    def test_a_failure_that_heals_is_retried_until_it_succeeds(self, stage: Stage) -> None:
        key, result = stage.script(DOWN, DOWN, DONE)

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2, 3]
        assert [run["retries"] for run in stage.runs(key)] == [0, 1, 2]

    def test_the_attempts_end_with_the_original_exception(self, stage: Stage) -> None:
        key, result = stage.script(DOWN)

        with pytest.raises(ConnectionError, match="down"):
            result.get(timeout=15)
        assert stage.attempts(key) == [1, 2, 3, 4, 5]
        wait_until(lambda: stage.record.llen(f"on_failure:{result.id}"), 5, "on_failure, which comes after the result")
        assert stage.record.lrange(f"on_failure:{result.id}", 0, -1) == ["ConnectionError"]

    def test_a_permanent_failure_ends_at_once(self, stage: Stage) -> None:
        key, result = stage.script(["raise", "permanent"])

        with pytest.raises(PermanentError):
            result.get(timeout=15)
        assert stage.attempts(key) == [1]
        assert stage.schedule.count() == 0

    def test_a_validation_failure_ends_at_once_unless_the_task_says_otherwise(self, stage: Stage) -> None:
        first, ends = stage.script(["raise", "validation"])
        second, retried = stage.script(["raise", "validation"], DONE, task="stubborn")

        with pytest.raises(ValueError, match="not so"):
            ends.get(timeout=15)
        assert retried.get(timeout=15) == "done"
        assert (stage.attempts(first), stage.attempts(second)) == ([1], [1, 2])

    def test_an_unknown_failure_gets_three_attempts(self, stage: Stage) -> None:
        key, result = stage.script(["raise", "tenant"])

        with pytest.raises(Exception, match="unknown"):
            result.get(timeout=15)
        assert stage.attempts(key) == [1, 2, 3]

    def test_a_rule_decides_by_the_arguments_of_the_task(self, stage: Stage) -> None:
        new, retried = stage.script(["raise", "tenant"], DONE, task="ruled", kwargs={"tenant": "new"})
        old, ends = stage.script(["raise", "tenant"], DONE, task="ruled", kwargs={"tenant": "old"})

        assert retried.get(timeout=15) == "done"
        with pytest.raises(Exception, match="unknown"):
            ends.get(timeout=15)
        assert (stage.attempts(new), stage.attempts(old)) == ([1, 2], [1])

    def test_a_hint_is_waited_for_and_not_the_policys_delay(self, stage: Stage) -> None:
        key, result = stage.script(["raise", "hint"], DONE)

        assert result.get(timeout=15) == "done"
        first, second = stage.runs(key)
        assert 0.6 <= second["at"] - first["at"] < 3

    def test_a_hint_of_a_day_is_capped_by_the_policy(self, stage: Stage) -> None:
        key, result = stage.script(["raise", "long_hint"], DONE, resilience={"cap_seconds": 0.3})

        assert result.get(timeout=15) == "done"
        first, second = stage.runs(key)
        assert second["at"] - first["at"] < 3

    @pytest.mark.parametrize("error", ["huge", "unpicklable"])
    def test_an_exception_that_cannot_travel_is_classified_where_it_was_raised(self, stage: Stage, error: str) -> None:
        key, result = stage.script(["raise", error], DONE)

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2]

    def test_a_call_with_wrong_arguments_is_not_tried_again(self, stage: Stage) -> None:
        result = stage.app.send_task("resilient.add", ("one",))

        with pytest.raises(TypeError):
            result.get(timeout=15)
        assert stage.record.get(f"task_retry:{result.id}") is None

    def test_a_task_with_early_ack_is_retried_too(self, stage: Stage) -> None:
        key, result = stage.script(DOWN, DONE, task="early")

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2]

    def test_a_plain_task_of_the_same_app_is_left_to_celery(self, stage: Stage) -> None:
        key, result = stage.script(DOWN, DONE, task="plain")

        with pytest.raises(ConnectionError):
            result.get(timeout=15)
        assert len(stage.runs(key)) == 1


class TestLayers:
    def test_the_task_wins_over_the_app_and_the_call_over_the_task(self, stage: Stage) -> None:
        of_task, first = stage.script(DOWN, task="thrice")
        of_call, second = stage.script(DOWN, task="thrice", resilience={"max_attempts": 2})

        for result in (first, second):
            with pytest.raises(ConnectionError):
                result.get(timeout=15)
        assert stage.attempts(of_task) == [1, 2, 3]
        assert stage.attempts(of_call) == [1, 2]

    def test_the_options_of_a_call_by_set_and_in_a_chain_hold_through_all_attempts(self, stage: Stage) -> None:
        task = stage.app.tasks["resilient.script"]
        first, second = stage.key(), stage.key()
        result = (
            task.si(first, DOWN, DONE).set(resilience={"max_attempts": 2})
            | task.si(second, DOWN).set(resilience={"max_attempts": 3})
        ).apply_async()

        with pytest.raises(ConnectionError):
            result.get(timeout=15)
        assert stage.attempts(first) == [1, 2]
        assert stage.attempts(second) == [1, 2, 3]


class TestDeadlines:
    def test_no_attempt_follows_past_the_deadline(self, stage: Stage) -> None:
        options = {"deadline_seconds": 0.7, "base_seconds": 0.25, "max_attempts": 50}
        key, result = stage.script(DOWN, resilience=options)

        with pytest.raises(ConnectionError):
            result.get(timeout=15)
        runs = stage.runs(key)
        assert 2 <= len(runs) <= 3
        assert runs[-1]["at"] - runs[0]["at"] <= 0.7

    def test_a_message_that_comes_too_late_never_runs(self, stage: Stage) -> None:
        blockers = [stage.script(["sleep", 1.2])[1] for _ in range(4)]
        key, result = stage.script(DONE, resilience={"deadline_seconds": 0.05})

        with pytest.raises(DeadlineExceededError):
            result.get(timeout=15)
        assert stage.runs(key) == []
        assert [blocker.get(timeout=15) for blocker in blockers] == ["slept"] * 4

    def test_without_a_publish_of_ours_the_deadline_counts_from_the_first_outcome(self, stage: Stage) -> None:
        key = stage.key()
        result = stage.app.send_task("resilient.hurried", (key, ["raise", "hint"]))

        with pytest.raises(RetryableError):
            result.get(timeout=15)
        assert stage.attempts(key) == [1, 2]


class TestTheBodysOwnRetry:
    def test_it_is_stored_and_spends_none_of_our_attempts(self, stage: Stage) -> None:
        asks = ["self.retry", {"countdown": 0.1}]
        key, result = stage.script(asks, asks, DOWN, DOWN, DOWN, DOWN, DONE, task="endless")

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2, 3, 4, 5, 6, 7]

    @pytest.mark.parametrize("when", [{"countdown": 0.5}, {"eta_in": 0.5}])
    def test_it_waits_as_long_as_was_asked(self, stage: Stage, when: dict[str, Any]) -> None:
        key, result = stage.script(["self.retry", when], DONE)

        assert result.get(timeout=15) == "done"
        first, second = stage.runs(key)
        assert 0.45 <= second["at"] - first["at"] < 3
        assert second["eta"] is None

    def test_it_may_change_the_arguments(self, stage: Stage) -> None:
        key = stage.key()
        result = stage.send(
            "script", key, ["self.retry", {"args": [key, DOWN, DONE], "kwargs": {"new": 1}, "countdown": 0.1}]
        )

        assert result.get(timeout=15) == "done"
        assert [run["kwargs"] for run in stage.runs(key)] == [{}, {"new": 1}]

    def test_changed_arguments_hold_through_later_failures(self, stage: Stage) -> None:
        key = stage.key()
        steps = [DOWN, DOWN, DONE]
        result = stage.send(
            "script", key, ["self.retry", {"args": [key, *steps], "kwargs": {"new": 1}, "countdown": 0.1}]
        )

        assert result.get(timeout=15) == "done"
        assert [run["kwargs"] for run in stage.runs(key)] == [{}, {"new": 1}, {"new": 1}]

    def test_it_ends_at_celerys_limit_and_that_is_the_end(self, stage: Stage) -> None:
        key, result = stage.script(["self.retry", {"countdown": 0.1, "max_retries": 2}])

        with pytest.raises(MaxRetriesExceededError):
            result.get(timeout=15)
        assert stage.attempts(key) == [1, 2, 3]

    def test_at_the_limit_the_given_exception_is_raised_and_not_retried_by_class(self, stage: Stage) -> None:
        key, result = stage.script(["self.retry", {"countdown": 0.1, "max_retries": 1, "exc": "network"}])

        with pytest.raises(ConnectionError):
            result.get(timeout=15)
        assert stage.attempts(key) == [1, 2]

    def test_what_the_body_raises_after_the_limit_is_the_end_too(self, stage: Stage) -> None:
        key, result = stage.script(["try self.retry", {"countdown": 0.1, "max_retries": 1}])

        with pytest.raises(ConnectionError, match="after MaxRetriesExceededError"):
            result.get(timeout=15)
        assert stage.attempts(key) == [1, 2]

    def test_the_limit_of_the_task_is_obeyed(self, stage: Stage) -> None:
        key, result = stage.script(["self.retry", {"countdown": 0.05}])

        with pytest.raises(MaxRetriesExceededError):
            result.get(timeout=15)
        assert len(stage.attempts(key)) == 4  # Celery's default max_retries is 3

    def test_classified_retries_do_not_use_up_the_bodys_limit(self, stage: Stage) -> None:
        asks = ["self.retry", {"countdown": 0.05, "max_retries": 1}]
        key, result = stage.script(DOWN, DOWN, asks, DONE)

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2, 3, 4]

    def test_without_a_limit_it_goes_on(self, stage: Stage) -> None:
        asks = ["self.retry", {"countdown": 0.02}]
        key, result = stage.script(*[asks] * 8, DONE, task="endless")

        assert result.get(timeout=20) == "done"
        assert len(stage.attempts(key)) == 9

    def test_without_throw_the_body_goes_on(self, stage: Stage) -> None:
        key, _ = stage.script(["self.retry", {"countdown": 0.1, "throw": False}], DONE)

        assert [run["attempt"] for run in stage.wait_runs(key, 2)] == [1, 2]

    def test_its_other_options_are_obeyed(self, stage: Stage) -> None:
        key, result = stage.script(["self.retry", {"countdown": 0.1, "priority": 6, "headers": {"more": "1"}}], DONE)

        assert result.get(timeout=15) == "done"
        second = stage.runs(key)[1]
        assert (second["priority"], second["headers"].get("more"), second["attempt"]) == (6, "1", 2)

    def test_it_takes_its_options_by_position_too(self, stage: Stage) -> None:
        key = stage.key()
        result = stage.send("script", key, ["self.retry by position", [[key, DOWN, DONE], {"new": 1}]])

        assert result.get(timeout=15) == "done"
        assert [run["kwargs"] for run in stage.runs(key)] == [{}, {"new": 1}]

    def test_arguments_that_cannot_be_written_fail_the_task_at_once(self, stage: Stage) -> None:
        key, result = stage.script(["self.retry with an object", None])

        with pytest.raises(Exception, match="not JSON serializable"):
            result.get(timeout=15)
        assert stage.attempts(key) == [1]

    def test_arguments_that_cannot_be_compared_are_no_problem(self, stage: Stage) -> None:
        key, result = stage.script(["self.retry with an ambiguous key", None], DONE)

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2]


class TestControlFlow:
    def test_ignore_ends_without_a_result_or_another_attempt(self, stage: Stage) -> None:
        key, result = stage.script(["raise", "ignore"])
        stage.wait_runs(key, 1)
        stage.wait_idle()

        assert stage.attempts(key) == [1]
        assert result.state not in ("SUCCESS", "FAILURE", "RETRY")

    def test_reject_fails_the_task_without_another_attempt(self, stage: Stage) -> None:
        key, _ = stage.script(["raise", "reject"])
        stage.wait_runs(key, 1)
        stage.wait_idle()

        assert stage.attempts(key) == [1]

    def test_reject_with_requeue_gives_the_message_back_and_costs_no_attempt(
        self, stage: Stage, the_worker: Any
    ) -> None:
        key, result = stage.script(["raise", "requeue"])
        stage.wait_runs(key, 3)
        stage.app.control.revoke(result.id)

        assert set(stage.attempts(key)) == {1}
        stage.wait_state(result, "REVOKED")

    def test_a_retry_raised_by_the_body_is_celerys_and_nothing_of_ours(self, stage: Stage) -> None:
        key, result = stage.script(["raise", "retry"])
        stage.wait_state(result, "RETRY")

        assert stage.attempts(key) == [1]
        assert stage.schedule.count() == 0

    def test_what_a_task_throws_by_plan_is_logged_quietly(self, stage: Stage, the_worker: WorkerProcess) -> None:
        _, quiet = stage.script(["raise", "expected"], task="quiet", resilience={"max_attempts": 1})
        _, loud = stage.script(["raise", "expected"], resilience={"max_attempts": 1})
        for result in (quiet, loud):
            stage.wait_state(result, "FAILURE")

        the_worker.wait_for_log(f"[{loud.id}] raised unexpected")
        assert f"[{quiet.id}] raised expected" in the_worker.log()
        assert f"[{quiet.id}] raised unexpected" not in the_worker.log()


class TestWhatCelerySays:
    def test_each_attempt_is_told_once_in_state_hook_signal_and_event(self, stage: Stage) -> None:
        events: list[dict[str, Any]] = []
        over = threading.Event()
        connection = stage.app.connection_for_read()
        receiver = stage.app.events.Receiver(connection, handlers={"*": events.append})
        listening = threading.Thread(target=_listen, args=(receiver, over))
        listening.start()
        try:
            wait_until(lambda: events or not stage.send("note"), 10, "the first event")  # the receiver listens
            key, result = stage.script(DOWN, DOWN, ["self.retry", {"countdown": 0.3}], ["sleep", 0.2])
            stage.wait_state(result, "RETRY")
            assert isinstance(result.info, ConnectionError)
            assert result.get(timeout=15) == "slept"
            of_this = lambda kind: [e for e in events if e.get("uuid") == result.id and e["type"] == kind]  # noqa: E731
            wait_until(lambda: of_this("task-succeeded"), 10, "the event of success")
        finally:
            over.set()
            listening.join()
            connection.release()

        assert stage.attempts(key) == [1, 2, 3, 4]
        assert stage.record.get(f"task_retry:{result.id}") == "3"
        assert len(stage.record.lrange(f"on_retry:{result.id}", 0, -1)) == 3
        assert stage.record.lrange(f"on_retry:{result.id}", 0, 1) == ["ConnectionError:True"] * 2
        assert len(of_this("task-retried")) == 3
        assert len(of_this("task-started")) == len(of_this("task-received")) == 4
        assert "ConnectionError" in of_this("task-retried")[0]["exception"]

    def test_a_last_failure_is_told_once(self, stage: Stage) -> None:
        _, result = stage.script(DOWN, resilience={"max_attempts": 2})

        with pytest.raises(ConnectionError):
            result.get(timeout=15)
        wait_until(lambda: stage.record.get(f"task_failure:{result.id}"), 5, "the signal")
        assert stage.record.get(f"task_failure:{result.id}") == "1"
        assert stage.record.llen(f"on_failure:{result.id}") == 1

    def test_the_end_is_logged_with_class_and_reason_and_never_the_arguments(
        self, stage: Stage, the_worker: WorkerProcess
    ) -> None:
        _, result = stage.script(["raise", "permanent"], kwargs={"secret": "hunter2"})
        stage.wait_state(result, "FAILURE")
        the_worker.wait_for_log(f"resilience-task-ended task_id={result.id}")

        line = next(
            line for line in the_worker.log().splitlines() if f"resilience-task-ended task_id={result.id}" in line
        )
        assert "failure_class=PERMANENT" in line
        assert "reason=permanent" in line
        assert "hunter2" not in line


def _listen(receiver: Any, over: threading.Event) -> None:
    while not over.is_set():
        try:
            receiver.capture(limit=None, timeout=0.3, wakeup=False)
        except TimeoutError:
            continue


class TestTheMessage:
    @pytest.mark.parametrize("priority", [0, 3, 6, 9])
    def test_its_priority_survives(self, stage: Stage, priority: int) -> None:
        key, result = stage.script(DOWN, DONE, priority=priority)

        assert result.get(timeout=15) == "done"
        assert [run["priority"] for run in stage.runs(key)] == [priority, priority]

    def test_headers_expiry_limits_stamps_and_ids_survive(self, stage: Stage) -> None:
        expires = datetime.now(timezone.utc) + timedelta(hours=1)
        key = stage.key()
        signature = stage.app.tasks["resilient.script"].si(key, DOWN, DOWN, DONE)
        signature.stamp(customer="acme")
        result = signature.apply_async(
            headers={"mine": {"deep": [1, None]}, "attempt": 77, "queue": "elsewhere", "lineage": "x", "class": "y"},
            expires=expires,
            time_limit=50,
            soft_time_limit=40,
        )

        assert result.get(timeout=15) == "done"
        first, *others = stage.runs(key)
        for run in others:
            for name in (
                "headers",
                "expires",
                "timelimit",
                "stamps",
                "id",
                "root_id",
                "reply_to",
                "correlation_id",
                "queue",
            ):
                assert run[name] == first[name], name
        assert first["headers"]["attempt"] == 77
        assert first["timelimit"] == [50, 40]
        assert first["stamps"] == {"customer": ["acme"]} or first["stamps"] == {"customer": "acme"}
        assert first["expires"] is not None

    def test_a_message_that_expires_while_it_waits_is_revoked(self, stage: Stage) -> None:
        key, result = stage.script(DOWN, DONE, expires=0.4, resilience={"base_seconds": 0.8})

        stage.wait_state(result, "REVOKED")
        assert stage.attempts(key) == [1]

    def test_a_header_of_ours_from_somebody_else_does_not_break_the_task(self, stage: Stage) -> None:
        key, result = stage.script(DOWN, DONE, headers={"resilience": '{"options": {"color": "red"}}'})

        assert result.get(timeout=15) == "done"
        assert len(stage.runs(key)) == 2

    @pytest.mark.parametrize("header", ["not ours", 5, {"attempt": "x"}, ["a"], ""])
    def test_a_header_that_cannot_be_ours_counts_as_none(self, stage: Stage, header: Any) -> None:
        key, result = stage.script(DOWN, DONE, headers={"resilience": header})

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2]

    def test_links_are_called_once_at_the_end(self, stage: Stage) -> None:
        key = stage.key()
        note = stage.app.tasks["resilient.note"]
        _, result = stage.script(DOWN, DONE, link=note.s(key=key), link_error=note.s(key=f"error-{key}"))

        assert result.get(timeout=15) == "done"
        wait_until(lambda: stage.record.llen(f"note:{key}"), 10, "the link")
        assert stage.record.llen(f"note:{key}") == 1
        assert stage.record.llen(f"note:error-{key}") == 0

    def test_errbacks_are_called_once_at_the_end(self, stage: Stage) -> None:
        key = stage.key()
        _, result = stage.script(
            DOWN, resilience={"max_attempts": 2}, link_error=stage.app.tasks["resilient.note"].si(key=key)
        )

        with pytest.raises(ConnectionError):
            result.get(timeout=15)
        wait_until(lambda: stage.record.llen(f"note:{key}"), 10, "the errback")
        assert stage.record.llen(f"note:{key}") == 1

    def test_a_compressed_message_is_retried_readable(self, stage: Stage) -> None:
        key, result = stage.script(DOWN, DONE, compression="gzip")

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2]

    def test_nothing_is_left_behind(self, stage: Stage) -> None:
        stage.wait_idle()

        assert stage.record.zcard("unacked_index") == 0
