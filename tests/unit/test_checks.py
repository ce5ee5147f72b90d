"""Checks name the field, the value, the bound and the remedy; names a slip away are recognised."""

from __future__ import annotations

import json
import pickle

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_resilience.checks import near_miss, number, one_of, required, suggestion, text, whole_number
from celery_resilience.errors import ConfigurationError, shorten
from celery_resilience.task_options import OPTIONS


@given(st.floats(0, 10) | st.integers(0, 10) | st.none())
def test_numbers_within_the_bounds_pass(value: float | None) -> None:
    number("f", value, low=0, high=10)


@given(st.floats().filter(lambda x: not 0 <= x <= 10) | st.text() | st.booleans() | st.lists(st.integers()))
def test_everything_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        number("the_field", value, low=0, high=10)

    assert str(caught.value).startswith("the_field=")
    assert "0 to 10" in str(caught.value)


@pytest.mark.parametrize("value", [1.5, "3", 0, 11])
def test_whole_numbers_are_whole_and_bounded(value: object) -> None:
    with pytest.raises(ConfigurationError, match="1 to 10"):
        whole_number("f", value, low=1, high=10)


def test_names_texts_and_presence_are_checked() -> None:
    one_of("f", "a", ("a", "b"))
    text("f", "x", "example")
    required("f", 0)

    with pytest.raises(ConfigurationError, match="Use one of 'a', 'b'"):
        one_of("f", "c", ("a", "b"))
    with pytest.raises(ConfigurationError, match="Write for example 'example'"):
        text("f", "  ", "example")
    with pytest.raises(ConfigurationError, match="must be set"):
        required("f", None)


@pytest.mark.parametrize("value", ["", " ", "\udcff", 5, b"text"])
def test_a_text_can_be_written_down(value: object) -> None:
    with pytest.raises(ConfigurationError, match="is not a text"):
        text("why", value, "maintenance")


def test_the_remedy_of_a_number_lies_within_its_bounds() -> None:
    with pytest.raises(ConfigurationError) as caught:
        number("store_timeout", 9, low=0.01, high=0.5)

    assert 0.01 <= float(caught.value.remedy.rstrip(".").split()[-1]) <= 0.5


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("retry_polcy", "retry_policy"),
        ("retry_policies", "retry_policy"),
        ("retrypolicy", "retry_policy"),
        ("deadline", "deadline_seconds"),
        ("deadline_second", "deadline_seconds"),
        ("dead_line_seconds", "deadline_seconds"),
        ("failure_rule", "failure_rules"),
    ],
)
def test_a_slip_of_the_pen_is_recognised(name: str, meant: str) -> None:
    assert near_miss(name, OPTIONS) == meant


@pytest.mark.parametrize(
    "name", ["run", "queue", "database", "api_key", "seconds", "rules", "policy", "retries_wanted"]
)
def test_other_names_are_the_users_own(name: str) -> None:
    assert near_miss(name, OPTIONS) is None


@given(st.sampled_from([option for option in OPTIONS if len(option) > 4]), st.data())
def test_every_single_slip_is_caught_and_the_right_name_never(option: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(option) - 1))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_"))
    slip = data.draw(st.sampled_from(["drop", "add", "change"]))
    rest = option[place:] if slip == "add" else option[place + 1 :]
    slipped = option[:place] + ("" if slip == "drop" else letter) + rest

    assert near_miss(option, OPTIONS) is None
    assert slipped == option or near_miss(slipped, OPTIONS) == option


def test_a_suggestion_names_the_nearest_or_all() -> None:
    assert suggestion("retry_polcy", OPTIONS) == "Did you mean 'retry_policy'?"
    assert all(option in suggestion("zzz", OPTIONS) for option in OPTIONS)


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_a_value_without_a_repr_can_still_be_named() -> None:
    assert shorten(Hostile()) == "<Hostile without repr>"
    assert len(shorten("x" * 1_000_000)) == 120


def test_the_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigurationError("field", "value", "is wrong", "Write right.")))

    assert str(error).startswith("field=")
    assert "is wrong. Write right." in str(error)


@pytest.mark.parametrize("value", ["value", 5, None, "x" * 1000, [1, 2]])
def test_a_result_back_end_gives_the_error_back_as_what_it_was(value: object) -> None:
    backend = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False).backend
    error = ConfigurationError("field", value, "is wrong", "Write right.")
    stored = json.loads(json.dumps(backend.prepare_exception(error, serializer="json")))
    known = backend.exception_to_python(stored)

    assert type(known) is ConfigurationError
    assert (known.field, known.problem, known.remedy) == ("field", "is wrong", "Write right.")
    assert str(known) == str(error) or known.value == shorten(value)
