"""wait_until gives the value, or says what it waited for."""

from __future__ import annotations

import pytest

from tests.support.proof import Figures
from tests.support.waiting import wait_until


def test_the_first_true_value_is_given() -> None:
    answers = iter([0, "", None, 7])

    assert wait_until(lambda: next(answers), 1, "seven") == 7


def test_a_wait_in_vain_names_what_was_awaited() -> None:
    with pytest.raises(AssertionError, match=r"waited 0.01 s in vain for the end of the world"):
        wait_until(lambda: False, 0.01, lambda: "the end of the world")


def test_the_table_of_figures_lines_up() -> None:
    figures = Figures()
    figures.add("tasks lost", wanted="0", measured=0)
    figures.add("share right", wanted="> 0.95", measured=0.98765)

    assert [line.rstrip() for line in figures.table()] == [
        "promise      wanted  measured",
        "tasks lost   0       0",
        "share right  > 0.95  0.9877",
    ]
