"""Letters as JSON lines: everything, message included, so that what was exported can be restored exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..errors import ResilienceError
from ..transport.envelope import unpack
from .filters import LetterFilter
from .letter import DeadLetter, letter_text, load_letter

if TYPE_CHECKING:
    from .desk import Desk

PAGE = 200


def lines_of(desk: Desk, chosen: LetterFilter) -> Iterator[str]:
    """Write letters one by one, the latest death first; letters that come meanwhile are not among them."""
    after: str | None = None
    while page := desk.find(chosen, PAGE, after):
        for stored in page:
            found = desk.get(stored.id)
            if found is not None:
                letter = found[1]
                packed = letter.envelope.pack(letter.id)
                yield json.dumps({"state": stored.state, "letter": json.loads(letter_text(letter)), "message": packed})
        after = page[-1].id


def read_lines(lines: Iterable[str]) -> Iterator[tuple[DeadLetter, str]]:
    """Read letters with their states; raises ResilienceError naming the first line that is none."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            known = json.loads(line)
            state = str(known["state"])
            if state not in ("waiting", "claimed", "requeued", "discarded"):
                raise ValueError(f"unknown state {state!r}")
            yield load_letter(known["letter"], unpack(known["message"])), state
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ResilienceError(f"Line {number} is not an exported letter: {error!r}") from None
