"""The classifier: whose opinion counts first, and that nothing an exception does can break it."""

from __future__ import annotations

import builtins
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_resilience.errors import ConfigurationError, PermanentError, RetryableError
from celery_resilience.failure import (
    NOT_A_FAILURE,
    Classifier,
    Failure,
    FailureClass,
    FailureContext,
    Severity,
)

CONTEXT = FailureContext(
    task="shop.fetch", args=("https://x/upload/1",), kwargs={"n": 1}, headers={"h": "v"}, attempt=2
)


def made(name: str, *bases: type, module: str = "somewhere", **attributes: Any) -> BaseException:
    """Give an instance of a new exception class that pretends to live in a module."""
    return type(name, bases or (Exception,), {"__module__": module, **attributes})("text")


def class_of(exc: BaseException) -> FailureClass:
    return Classifier.default().classify(exc).failure_class


def caused(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


class TestOrder:
    def test_the_exceptions_own_opinion_comes_before_every_rule(self) -> None:
        exc = made("Busy", ValueError, failure_class="SYSTEM")
        classifier = Classifier(task_rules={ValueError: "TRANSIENT"})

        assert classifier.classify(exc).failure_class is FailureClass.SYSTEM

    def test_an_opinion_that_is_no_class_is_ignored(self) -> None:
        for nonsense in ("NOPE", "NOT_A_FAILURE", 7, None, object(), lambda: "SYSTEM"):
            assert class_of(made("Odd", ValueError, failure_class=nonsense)) is FailureClass.VALIDATION

    def test_our_own_errors_say_what_they_are(self) -> None:
        retryable = Classifier.default().classify(RetryableError("later", retry_after=12.5))

        assert (retryable.failure_class, retryable.retry_after) == (FailureClass.TRANSIENT, 12.5)
        assert class_of(PermanentError("no")) is FailureClass.PERMANENT

    def test_rules_of_the_task_come_before_those_of_the_app(self) -> None:
        classifier = Classifier(task_rules={KeyError: "TRANSIENT"}, app_rules={KeyError: "SYSTEM", TypeError: "SYSTEM"})

        assert classifier.classify(KeyError("x")).failure_class is FailureClass.TRANSIENT
        assert classifier.classify(TypeError("x")).failure_class is FailureClass.SYSTEM
        assert "app" in classifier.classify(TypeError("x")).reason

    def test_a_rule_comes_before_the_libraries(self) -> None:
        exc = made("ReadTimeout", OSError, module="requests.exceptions")
        classifier = Classifier(app_rules=lambda exc, context: FailureClass.POISON)

        assert class_of(exc) is not FailureClass.POISON
        assert classifier.classify(exc).failure_class is FailureClass.POISON

    def test_an_explicit_cause_tells_what_a_runtime_error_is(self) -> None:
        assert class_of(caused(RuntimeError("x"), ConnectionResetError(104, "r"))) is FailureClass.NETWORK

    def test_an_implicit_context_counts_only_if_it_heals(self) -> None:
        cleanup, cache_miss = RuntimeError("cleanup"), made("OrderError")
        cleanup.__context__, cache_miss.__context__ = ConnectionResetError(104, "r"), KeyError("miss")

        assert class_of(cleanup) is FailureClass.NETWORK
        assert class_of(cache_miss) is FailureClass.UNKNOWN

    def test_raise_from_none_hides_the_context(self) -> None:
        exc = made("OrderError")
        exc.__context__ = ConnectionResetError(104, "r")
        exc.__suppress_context__ = True

        assert class_of(exc) is FailureClass.UNKNOWN

    def test_a_type_nobody_knows_is_unknown(self) -> None:
        failure = Classifier.default().classify(made("OrderError"))

        assert failure.failure_class is FailureClass.UNKNOWN
        assert failure.error_type == "somewhere.OrderError"


class TestGroups:
    def test_the_least_curable_member_decides(self) -> None:
        group = made("Group", exceptions=(ConnectionResetError(104, "r"), ValueError("v")))

        assert class_of(group) is FailureClass.VALIDATION

    def test_the_longest_wait_of_the_members_counts(self) -> None:
        members = tuple(made("E", status_code=429, retry_after=wait) for wait in (3, 9, 5))

        assert Classifier.default().classify(made("Group", exceptions=members)).retry_after == 9

    def test_a_real_group_is_understood(self) -> None:
        group_class = getattr(builtins, "ExceptionGroup", None)
        if group_class is None:
            pytest.skip("Python 3.10 has no ExceptionGroup")

        assert class_of(group_class("g", [group_class("h", [ConnectionResetError()])])) is FailureClass.NETWORK


class TestControlFlow:
    @pytest.mark.parametrize("exc", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
    def test_interpreter_exits_are_no_failures(self, exc: BaseException) -> None:
        assert Classifier.default().classify(exc) is NOT_A_FAILURE

    def test_celery_control_flow_is_no_failure_whatever_the_rules_say(self) -> None:
        predicate = type("TaskPredicate", (Exception,), {"__module__": "celery.exceptions"})
        retry = made("Retry", predicate, module="celery.exceptions", failure_class="SYSTEM")

        assert Classifier(task_rules=lambda exc, context: "SYSTEM").classify(retry) is NOT_A_FAILURE

    def test_control_flow_as_a_cause_says_nothing(self) -> None:
        assert class_of(caused(made("OrderError"), SystemExit(1))) is FailureClass.UNKNOWN


class TestUserRules:
    def test_a_rule_sees_the_task_and_its_arguments(self) -> None:
        def still_replicating(exc: BaseException, context: FailureContext) -> str | None:
            return "TRANSIENT" if getattr(exc, "status", 0) == 404 and "/upload/" in str(context.args[0]) else None

        classifier = Classifier(task_rules=still_replicating)
        page = FailureContext(task="t", args=("https://x/page",), kwargs={}, headers={}, attempt=1)

        assert classifier.classify(made("E", status=404), CONTEXT).failure_class is FailureClass.TRANSIENT
        assert classifier.classify(made("E", status=404), page).failure_class is FailureClass.PERMANENT

    def test_of_a_mapping_the_nearest_type_counts(self) -> None:
        classifier = Classifier(task_rules={LookupError: "SYSTEM", KeyError: "TRANSIENT"})

        assert classifier.classify(KeyError("x")).failure_class is FailureClass.TRANSIENT
        assert classifier.classify(IndexError("x")).failure_class is FailureClass.SYSTEM

    @pytest.mark.parametrize("path", ["vendor.api.errors.Refused", "vendor.api.Refused", "vendor.Refused", "Refused"])
    def test_a_dotted_path_needs_no_import(self, path: str) -> None:
        exc = made("Refused", module="vendor.api.errors")

        assert Classifier(app_rules={path: "RATE_LIMITED"}).classify(exc).failure_class is FailureClass.RATE_LIMITED

    def test_a_dotted_path_may_be_where_the_class_is_imported_from(self) -> None:
        classifier = Classifier(app_rules={"json.JSONDecodeError": "POISON"})
        import json

        assert classifier.classify(json.JSONDecodeError("m", "d", 0)).failure_class is FailureClass.POISON

    def test_another_package_of_the_same_start_is_not_meant(self) -> None:
        exc = made("Refused", module="vendors.api")

        assert Classifier(app_rules={"vendor.Refused": "SYSTEM"}).classify(exc).failure_class is FailureClass.UNKNOWN

    def test_a_rule_that_raises_is_ignored_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        def broken(exc: BaseException, context: FailureContext) -> str:
            raise ZeroDivisionError

        with caplog.at_level(logging.WARNING):
            failure = Classifier(task_rules=[broken]).classify(ValueError("x"), CONTEXT)

        assert failure.failure_class is FailureClass.VALIDATION
        assert "broken" in caplog.text
        assert "shop.fetch" in caplog.text

    def test_a_rule_that_gives_nonsense_is_ignored_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            failure = Classifier(task_rules=lambda exc, context: "SOMETIMES").classify(ValueError("x"))

        assert failure.failure_class is FailureClass.VALIDATION
        assert "SOMETIMES" in caplog.text

    @pytest.mark.parametrize(
        ("rules", "named"),
        [
            (3, "task_rules=3"),
            ("TRANSIENT", "task_rules='TRANSIENT'"),
            ([1], "task_rules=1"),
            ({ValueError: "SOMETIMES"}, "'SOMETIMES'"),
            ({ValueError: "NOT_A_FAILURE"}, "'NOT_A_FAILURE'"),
            ({int: "SYSTEM"}, "int"),
            ({"not a path": "SYSTEM"}, "'not a path'"),
        ],
    )
    def test_a_wrong_rule_is_refused_at_once(self, rules: Any, named: str) -> None:
        with pytest.raises(ConfigurationError, match="task_rules") as caught:
            Classifier(task_rules=rules)

        assert named in str(caught.value)
        assert caught.value.remedy

    def test_with_task_rules_keeps_the_rules_of_the_app(self) -> None:
        classifier = Classifier(app_rules={TypeError: "SYSTEM"}).with_task_rules({KeyError: "NETWORK"})

        assert classifier.classify(TypeError("x")).failure_class is FailureClass.SYSTEM
        assert classifier.classify(KeyError("x")).failure_class is FailureClass.NETWORK


class TestValues:
    def test_the_default_classifier_is_always_the_same_and_cannot_change(self) -> None:
        assert Classifier.default() is Classifier.default()
        with pytest.raises(AttributeError):
            Classifier.default().anything = 1  # type: ignore[attr-defined]

    def test_every_class_has_a_severity_that_logging_understands(self) -> None:
        for one in FailureClass:
            failure = Failure(failure_class=one, retry_after=None, fingerprint="", reason="", error_type="", message="")
            assert failure.severity in Severity
            assert logging.getLevelName(failure.severity) in ("INFO", "WARNING", "ERROR", "CRITICAL")

    def test_a_class_is_its_name(self) -> None:
        assert [str(one) for one in FailureClass] == [one.name for one in FailureClass]

    def test_the_reason_names_the_library_and_the_status(self) -> None:
        exc = made("HTTPStatusError", module="httpx", status_code=429)

        assert Classifier.default().classify(exc).reason == "library httpx: HTTPStatusError, status 429"


def raising(*_: object) -> Any:
    raise SystemExit("hostile")


class Junk:
    """Answers everything with more of itself, as a MagicMock does, and lies about its class."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return int

    def __getattr__(self, name: str) -> Junk:
        return Junk()

    def __call__(self, *_: object, **__: object) -> Junk:
        return Junk()

    def __iter__(self) -> Any:
        while True:
            yield Junk()

    def __len__(self) -> int:
        return 10**9

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        raise SystemExit("hostile")

    def __bool__(self) -> bool:
        raise KeyboardInterrupt


class MockedError(Exception):
    def __getattr__(self, name: str) -> Junk:
        return Junk()


ATTRIBUTES = """
    failure_class status_code status code response headers resp meta retry_after wait seconds exceptions errno details
    body sqlstate pgcode args trailing_metadata __cause__ __context__ __traceback__ __class__ __dict__ __str__ __repr__
    __module__
"""
LIBRARY_CLASSES = [
    ("requests.exceptions", "HTTPError"),
    ("httpx", "HTTPStatusError"),
    ("botocore.exceptions", "ClientError"),
    ("grpc", "RpcError"),
    ("psycopg", "OperationalError"),
    ("sqlalchemy.exc", "DBAPIError"),
    ("pymongo.errors", "BulkWriteError"),
    ("slack_sdk.errors", "SlackApiError"),
    ("github", "GithubException"),
    ("elasticsearch.helpers", "BulkIndexError"),
    ("tenacity", "RetryError"),
    ("cimpl", "KafkaException"),
    ("celery.utils.serialization", "UnpickleableExceptionWrapper"),
    ("smtplib", "SMTPRecipientsRefused"),
    ("kubernetes.client", "ApiException"),
]
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.builds(Junk),
    st.builds(object),
    st.just(property(raising)),
    st.just(raising),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    st.lists(st.integers(), max_size=3),
    st.just(10**400),
    st.just(ValueError("inner")),
)


class TestHostileExceptions:
    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        place=st.sampled_from(LIBRARY_CLASSES),
        base=st.sampled_from([Exception, OSError, ValueError, RuntimeError, KeyError]),
        attributes=st.dictionaries(st.sampled_from(ATTRIBUTES.split()), values, max_size=6),
    )
    def test_nothing_an_exception_carries_breaks_classification(
        self, place: tuple[str, str], base: type[Exception], attributes: dict[str, Any]
    ) -> None:
        attributes.setdefault("__module__", place[0])
        try:
            exc = type(place[1], (base,), attributes)("text")
        except Exception:
            return  # Python itself refuses to make it

        failure = Classifier.default().classify(exc, CONTEXT, now=1_800_000_000.0)

        assert failure.failure_class in FailureClass
        assert failure.retry_after is None or failure.retry_after >= 0
        assert len(failure.message) <= 2_000

    def test_an_exception_that_answers_everything_with_junk(self) -> None:
        failure = Classifier.default().classify(MockedError("x"))

        assert failure.retry_after is None
        assert failure.failure_class in (FailureClass.UNKNOWN, FailureClass.TRANSIENT)

    def test_properties_that_raise_an_exit_do_not_end_the_process(self) -> None:
        exc = made("E", **{name: property(raising) for name in ("status_code", "response", "headers", "failure_class")})

        assert class_of(exc) is FailureClass.TRANSIENT

    def test_a_text_that_cannot_be_made(self) -> None:
        failure = Classifier.default().classify(made("E", module="vendor", __str__=raising))

        assert failure.message == "<vendor.E without text>"

    def test_a_text_of_a_megabyte_is_cut(self) -> None:
        assert len(Classifier.default().classify(ValueError("x" * 1_000_000)).message) == 2_000

    def test_a_metaclass_that_hides_the_names(self) -> None:
        class Hidden(type):
            @property
            def __module__(cls) -> str:  # type: ignore[override]
                raise SystemExit

        exc = Hidden("E", (Exception,), {})("x")

        assert Classifier.default().classify(exc).error_type == "?.E"

    def test_cycles_of_causes_end(self) -> None:
        one, other, third = RuntimeError("1"), RuntimeError("2"), RuntimeError("3")
        one.__cause__, other.__cause__, third.__cause__ = other, third, one

        assert class_of(one) is FailureClass.TRANSIENT

    def test_an_inner_exception_that_lies_about_its_class(self) -> None:
        for lie in (property(lambda self: FailureClass), property(raising)):
            inner = made("Inner", OSError, __class__=lie)
            group = made("Group", exceptions=(inner,))

            assert class_of(caused(RuntimeError("x"), inner)) is FailureClass.SYSTEM
            assert class_of(group) is FailureClass.SYSTEM

    def test_a_very_long_chain_of_causes_ends(self) -> None:
        exc: BaseException = ConnectionResetError()
        for _ in range(5_000):
            exc = caused(RuntimeError("x"), exc)

        assert class_of(exc) is FailureClass.TRANSIENT

    def test_a_group_that_contains_itself_ends(self) -> None:
        group = made("Group")
        group.exceptions = (group, ValueError("x"))  # type: ignore[attr-defined]

        assert class_of(group) is FailureClass.VALIDATION

    def test_wide_and_deep_groups_end_soon(self) -> None:
        exc: BaseException = ConnectionResetError()
        for _ in range(9):
            exc = made("Group", exceptions=(exc,) * 40)

        assert class_of(exc) is FailureClass.NETWORK

    @pytest.mark.parametrize("status", ["429", True, 429.0, 99, 600, 10**30, -1, b"429", None, Junk()])
    def test_only_a_real_int_from_100_to_599_is_a_status(self, status: object) -> None:
        assert class_of(made("E", status_code=status)) is FailureClass.TRANSIENT

    def test_a_code_is_no_status(self) -> None:
        assert class_of(made("E", code=401)) is FailureClass.TRANSIENT
        assert class_of(made("E", code=lambda self: 401)) is FailureClass.TRANSIENT
