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


class _Block(Generic[Value]):
    __slots__ = ("frame", "is_open", "owner", "value")

    def __init__(self, frame: FrameType, owner: object, value: Value) -> None:
        self.frame = frame
        self.owner = owner
        self.value = value
        self.is_open = True


class Blocks(Generic[Value]):
    """What the open blocks of some kind of object were begun with. Safe between threads: a frame runs in one.

    To be called from the owner's own module. The usual block is the only one of its frame, and costs a microsecond.
    """

    def __init__(self, name: str) -> None:
        self._by_frame: dict[FrameType, tuple[_Block[Value], ...]] = {}
        self._here: ContextVar[tuple[_Block[Value], ...]] = ContextVar(name, default=())

    def begin(self, owner: object, value: Value) -> None:
        """Keep a value until the block of this owner ends."""
        frame = _frame_of_block(sys._getframe(1))
        block = _Block(frame, owner, value)
        others = self._by_frame.get(frame)
        self._by_frame[frame] = (block,) if others is None else (*others, block)
        here = self._here.get()
        self._here.set((*(one for one in here if one.is_open), block) if here else (block,))

    def end(self, owner: object) -> Value | None:
        """Give what the innermost open block of this owner was begun with, in this frame or else in this context.

        The context serves those who begin in one function and end in another, such as a class with a breaker inside.
        """
        frame = _frame_of_block(sys._getframe(1))
        for block in reversed(self._by_frame.get(frame, ())):
            if block.owner is owner:
                return self._close(block)
        for block in reversed(self._here.get()):
            if block.owner is owner and block.is_open:
                return self._close(block)
        return None

    def _close(self, block: _Block[Value]) -> Value:
        frame, value = block.frame, block.value
        block.is_open = False
        del block.frame, block.value  # another context may keep the block until the next one begins there
        blocks = self._by_frame.pop(frame)
        if len(blocks) > 1:
            self._by_frame[frame] = tuple(one for one in blocks if one.is_open)
        here = self._here.get()
        if here and here[-1] is block:
            self._here.set(here[:-1])
        return value


def _frame_of_block(frame: FrameType) -> FrameType:
    """Give the frame that holds the block: the first outside the owner's module and contextlib."""
    own = frame.f_globals
    while frame.f_back is not None and (frame.f_globals is own or frame.f_globals.get("__name__") == "contextlib"):
        frame = frame.f_back  # an ExitStack acts for the frame that holds it
    return frame
