"""Lua scripts, one file per operation; the header of each lists keys, arguments and the answer.

A line `-- include _noun` stands for the text of `_noun.lua`: what several operations of one noun share.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_INCLUDE = re.compile(r"^-- include (_\w+)$", re.MULTILINE)


@cache
def source(name: str) -> str:
    """Give the text of `<name>.lua`, complete."""
    return _INCLUDE.sub(lambda found: _read(found[1]), _read(name))


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
