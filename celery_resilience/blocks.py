"""The open `with` blocks of objects that many share at once: what belongs to the block that ends now.

A block is known by the frame that holds it. A context will not do alone: a generator may be advanced in another one, or
in another thread, between the two ends of its block.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import FrameType
from typing import Generic, TypeVar

Value = TypeVar("Value")
_BETWEEN = frozenset({__name__, "contextlib"})  # an ExitStack acts for the frame that holds it


class Blocks(Generic[Value]):
    """What the open blocks of some kind of object were begun with. Safe between threads: a frame runs in one."""

    def __init__(self, name: str) -> None:
        self._by_frame: dict[FrameType, list[tuple[object, Value]]] = {}
        self._here: ContextVar[tuple[tuple[FrameType, object, Value], ...]] = ContextVar(name, default=())

    def begin(self, owner: object, value: Value) -> None:
        """Keep a value until the block of this owner ends; to be called from the owner's own module."""
        frame = _frame_of_block()
        self._by_frame.setdefault(frame, []).append((owner, value))
        self._here.set((*(one for one in self._here.get() if self._is_open(*one)), (frame, owner, value)))

    def end(self, owner: object) -> Value | None:
        """Give what the innermost open block of this owner was begun with, in this frame or else in this context.

        The context serves those who begin in one function and end in another, such as a class with a breaker inside.
        """
        frame = _frame_of_block()
        for known, value in reversed(self._by_frame.get(frame, ())):
            if known is owner:
                return self._close(frame, owner, value)
        for one in reversed(self._here.get()):
            if one[1] is owner and self._is_open(*one):
                return self._close(*one)
        return None

    def _is_open(self, frame: FrameType, owner: object, value: Value) -> bool:
        return any(known is owner and kept is value for known, kept in self._by_frame.get(frame, ()))

    def _close(self, frame: FrameType, owner: object, value: Value) -> Value:
        kept = [one for one in self._by_frame[frame] if one[0] is not owner or one[1] is not value]
        if kept:
            self._by_frame[frame] = kept
        else:
            del self._by_frame[frame]
        self._here.set(tuple(one for one in self._here.get() if one[2] is not value))
        return value


def _frame_of_block() -> FrameType:
    """Give the frame that holds the block: the first outside this module, the owner's and contextlib."""
    frame = sys._getframe(2)
    own = frame.f_globals.get("__name__")
    while frame.f_back is not None and frame.f_globals.get("__name__") in (own, *_BETWEEN):
        frame = frame.f_back
    return frame
