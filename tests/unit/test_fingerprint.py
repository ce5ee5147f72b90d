"""The fingerprint: equal for failures that one fix would end, different for others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from celery_resilience.fingerprint import fingerprint


def raised(body: Callable[[], object]) -> BaseException:
    try:
        body()
    except BaseException as exc:
        return exc
    raise AssertionError("it did not raise")


def charge(order: int) -> None:
    raise ValueError(f"order {order} is refused")


def refund(order: int) -> None:
    raise ValueError(f"order {order} is refused")


def descend(depth: int) -> None:
    if depth:
        descend(depth - 1)
    raise ValueError("bottom")


def test_it_is_a_short_hex_digest() -> None:
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(ValueError("x")))


def test_numbers_in_the_text_make_no_difference() -> None:
    assert fingerprint(raised(lambda: charge(1))) == fingerprint(raised(lambda: charge(2)))


def test_another_place_makes_a_difference() -> None:
    first, second = raised(lambda: charge(1)), raised(lambda: refund(1))

    assert fingerprint(first) != fingerprint(second)


def test_another_type_makes_a_difference() -> None:
    assert fingerprint(ValueError("x")) != fingerprint(TypeError("x"))


def test_the_depth_of_a_recursion_makes_no_difference() -> None:
    assert fingerprint(raised(lambda: descend(5))) == fingerprint(raised(lambda: descend(500)))


def test_the_frames_of_libraries_make_no_difference() -> None:
    def parse(text: str) -> object:
        return json.loads(text)

    short, deep = raised(lambda: parse("{")), raised(lambda: parse("[1, {"))

    assert fingerprint(short) == fingerprint(deep)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 of customer 4", "order 18 of customer 5"),
        ("object at 0x7f62d694ae10", "object at 0x7f62d694ffff"),
        ("job 123e4567-e89b-12d3-a456-426614174000", "job 99999999-e89b-12d3-a456-ffffffffffff"),
        ("no column 'email'", "no column 'name'"),
    ],
)
def test_without_frames_the_text_counts_without_ids(one: str, other: str) -> None:
    assert fingerprint(ValueError(one)) == fingerprint(ValueError(other))


def test_without_frames_another_text_makes_a_difference() -> None:
    assert fingerprint(ValueError("no such order")) != fingerprint(ValueError("card refused"))


def test_text_that_cannot_be_encoded_is_no_problem() -> None:
    assert fingerprint(ValueError("\udcff" * 10))
