"""Wait hints: what a server asked for, in all the places and notations it is asked in."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_resilience.failure import Classifier
from celery_resilience.hints import header_hint, seconds, wait_hint
from celery_resilience.libraries.retry_info import retry_info_seconds

NOW = 1_800_000_000.0


def made(name: str = "E", **attributes: Any) -> BaseException:
    return type(name, (Exception,), attributes)("text")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "30"}, 30),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": formatdate(NOW + 60, usegmt=True)}, 60),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "99"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "99"}, 99),
        ({"x-ms-retry-after-ms": "900"}, 0.9),
        ({"x-amz-retry-after": "2500"}, 2.5),
        ({"x-ratelimit-reset-after": "2.5"}, 2.5),
        ({"x-ratelimit-reset": str(NOW + 90)}, 90),
        ({"x-ratelimit-reset": str(int(NOW + 90) * 1000)}, 90),
        ({"x-ratelimit-reset": str(NOW - 90)}, 0),
        ({"x-ratelimit-reset": "17", "x-ratelimit-remaining": "0"}, 17),
        ({"ratelimit-reset": "17"}, 17),
        ({"x-ratelimit-reset-requests": "1m30s"}, 90),
        ({"x-ratelimit-reset-tokens": "250ms"}, 0.25),
        ({"anthropic-ratelimit-requests-reset": "2027-01-15T08:00:33Z"}, 33),
    ],
)
def test_each_notation_of_a_limit_is_read(headers: dict[str, str], expected: float) -> None:
    assert header_hint(headers, NOW, rate_limited=True) == pytest.approx(expected)


@pytest.mark.parametrize(
    "value", ["", "soon", "-5", "nan", "inf", "-inf", "1e400", "٣", "12 apples", "x" * 10_000, "Mon, 99"]
)
def test_garbage_is_no_hint(value: str) -> None:
    assert header_hint({"retry-after": value}, NOW) is None


def test_a_reset_header_says_nothing_while_calls_are_left() -> None:
    headers = {"x-ratelimit-reset": str(NOW + 900), "x-ratelimit-remaining": "4999"}

    assert header_hint(headers, NOW, rate_limited=True) is None


def test_a_reset_header_says_nothing_about_another_failure() -> None:
    assert header_hint({"x-ratelimit-reset": str(NOW + 900)}, NOW, rate_limited=False) is None


def test_a_far_hint_is_not_capped_here() -> None:
    assert header_hint({"retry-after": "31536000"}, NOW) == 31_536_000


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"retry_after": 12}, 12),
        ({"retry_after": "12"}, 12),
        ({"retry_after": timedelta(seconds=8)}, 8),
        ({"retry_after": datetime.fromtimestamp(NOW + 5, timezone.utc)}, 5),
        ({"retry_after": True}, None),
        ({"retry_after": -1}, None),
        ({"retry_after": math.nan}, None),
        ({"retry_after": math.inf}, None),
        ({"retry_after": 10**400}, None),
        ({"retry_after": timedelta(seconds=-8)}, None),
        ({"retry_after": lambda self: 3}, None),
        ({"response": SimpleNamespace(headers={"Retry-After": "3"})}, 3),
        ({"response": SimpleNamespace(headers=[("Retry-After", "3")])}, 3),
        ({"response": SimpleNamespace(headers={b"retry-after": b"3"})}, 3),
        ({"response": SimpleNamespace(headers={"Retry-After": 3})}, 3),
        ({"headers": {"RETRY-AFTER": "3"}}, 3),
        ({"headers": 7, "response": 8, "meta": 9}, None),
        ({"response": {"ResponseMetadata": {"HTTPHeaders": {"retry-after": "3"}}}}, 3),
        ({"response": {"retryAfterSeconds": "3"}}, 3),
        ({"details": {"RetryAfterMs": 34}}, 0.034),
        ({"body": '{"details": {"retryAfterSeconds": 4}}'}, 4),
        ({"body": b'{"retry_after": 4}'}, 4),
        ({"body": '{"retry_after": '}, None),
        ({"body": "[" * 10_000 + "retry"}, None),
        ({"error_details": [{"@type": "RetryInfo", "retryDelay": "34s"}]}, 34),
        ({"details": [SimpleNamespace(retry_delay=SimpleNamespace(seconds=7, nanos=500_000_000))]}, 7.5),
        ({"trailing_metadata": lambda self: (("grpc-retry-pushback-ms", "1500"),)}, 1.5),
    ],
)
def test_each_place_is_searched(attributes: dict[str, Any], expected: float | None) -> None:
    assert wait_hint(made(**attributes), NOW) == (None if expected is None else pytest.approx(expected))


def test_wait_and_seconds_count_only_for_a_limit() -> None:
    assert wait_hint(made(wait=9), NOW, rate_limited=True) == 9
    assert wait_hint(made(seconds=9), NOW, rate_limited=True) == 9
    assert wait_hint(made(seconds=9), NOW) is None  # gevent.Timeout


def test_cosmos_tells_the_wait_only_in_its_text() -> None:
    exc = Exception("Error=16500, RetryAfterMs=34, Details=x")

    assert wait_hint(exc, NOW, rate_limited=True) == pytest.approx(0.034)


def test_grpc_retry_info_is_read_without_protobuf() -> None:
    # Status(code=8, message="m", details=[Any(RetryInfo(retry_delay=Duration(seconds=4, nanos=5e8)))])
    duration = bytes([0x08, 4, 0x10]) + _varint(500_000_000)
    retry_info = b"\x0a" + bytes([len(duration)]) + duration
    url = b"type.googleapis.com/google.rpc.RetryInfo"
    detail = b"\x0a" + bytes([len(url)]) + url + b"\x12" + bytes([len(retry_info)]) + retry_info
    status = b"\x08\x08\x12\x01m\x1a" + bytes([len(detail)]) + detail
    exc = made(trailing_metadata=lambda self: (("grpc-status-details-bin", status),))

    assert wait_hint(exc, NOW) == 4.5


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200))
def test_no_bytes_break_the_reading_of_retry_info(garbage: bytes) -> None:
    found = retry_info_seconds(garbage)

    assert found is None or found >= 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(), st.integers(), st.floats(), st.binary(), st.timedeltas(), st.datetimes(), st.none()))
def test_a_hint_is_a_finite_wait_or_none(value: object) -> None:
    for may_be_epoch in (True, False):
        found = seconds(value, NOW, may_be_epoch=may_be_epoch)

        assert found is None or (math.isfinite(found) and found >= 0)


def test_the_hint_of_an_inner_exception_counts() -> None:
    outer = RuntimeError("wrapped")
    outer.__cause__ = made(response=SimpleNamespace(status_code=429, headers={"Retry-After": "9"}))

    assert Classifier.default().classify(outer).retry_after == 9


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
