"""The name of a line of attempts, which begins with the first message of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lineage_name(properties: Mapping[str, Any] | None, task_id: Any, nesting: Any) -> str:
    """Name the line of attempts that begins with this message.

    A message on Redis has a tag of its own, which survives redelivery; elsewhere the task's id must serve, with the
    depth of `replace`, which keeps the id.
    """
    if properties is not None and has_own_lineage(properties):
        return str(properties["delivery_tag"])
    return f"{task_id}:{nesting or 0}"


def has_own_lineage(properties: Mapping[str, Any] | None) -> bool:
    """Say whether the name of a message's line is its own, and not shared by all that bear its task's id."""
    return isinstance((properties or {}).get("delivery_tag"), str)
