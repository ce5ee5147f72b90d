"""The two sizes of a test, and the table of what was measured.

`make test` runs the short form, `make proof` (RESILIENCE_PROOF=1) the full one; the same assertions hold for both.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeVar

Size = TypeVar("Size")
IS_PROOF = os.environ.get("RESILIENCE_PROOF") == "1"


def size(short: Size, full: Size) -> Size:
    """Give the short size, or the full one in `make proof`."""
    return full if IS_PROOF else short


@dataclass(frozen=True)
class Figure:
    """One line of the table: what was promised, what is wanted, what was measured."""

    promise: str
    wanted: str
    measured: str


class Figures:
    """Collects figures over a whole run: `figures.add("tasks lost in 200 kills", wanted="0", measured=lost)`."""

    def __init__(self) -> None:
        self._figures: list[Figure] = []

    def add(self, promise: str, *, wanted: str, measured: object) -> None:
        """Note a figure; asserting it is the test's own business."""
        shown = f"{measured:.4g}" if isinstance(measured, float) else str(measured)
        self._figures.append(Figure(promise, wanted, shown))

    def table(self) -> list[str]:
        """Give the lines of the table; none if nothing was measured."""
        if not self._figures:
            return []
        rows = [Figure("promise", "wanted", "measured"), *self._figures]
        widths = [max(len(cell) for cell in column) for column in zip(*map(_cells, rows), strict=True)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(_cells(row), widths, strict=True)) for row in rows]


def _cells(figure: Figure) -> tuple[str, str, str]:
    return figure.promise, figure.wanted, figure.measured
