"""Lua scripts, one file per operation; the header of each lists keys, arguments and the answer."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def source(name: str) -> str:
    """Give the text of `<name>.lua`."""
    return resources.files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
