"""`celery -A proj resilience …`: look at what the package does for an app.

Services are imported inside the commands, because every celery command loads this module.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..schedule import Waiting


@click.group()
def resilience() -> None:
    """Look at retries, parked messages and what keeps them."""


@resilience.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows at the most.")
@click.option("--after", type=click.IntRange(0), default=0, help="Rows to skip.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
@click.pass_context
def schedule(ctx: click.Context, limit: int, after: int, as_json: bool) -> None:
    """List and count what waits in the schedule, the next due first."""
    from ..errors import ResilienceError
    from ..runtime import runtime_of
    from ..transport.queues import native_delay_note

    app = ctx.obj.app
    try:
        runtime = runtime_of(app)
        if runtime.schedule is None:
            _fail(ctx, "No Redis is configured, so nothing waits in a schedule: set resilience_redis_url.")
            return
        count, rows = runtime.schedule.count(), runtime.schedule.find(limit, after)
    except ResilienceError as error:
        _fail(ctx, str(error))
        return
    note = native_delay_note(app, runtime.family)
    now = runtime.clock.time()
    if as_json:
        shown = {"count": count, "delayed_retries": note, "waiting": [row.as_dict() for row in rows]}
        ctx.obj.echo(json.dumps(shown, indent=2))
    else:
        ctx.obj.echo(f"{count} waiting; delayed retries wait in {note}")
        for line in _table(rows, now):
            ctx.obj.echo(line)


def _table(rows: list[Waiting], now: float) -> list[str]:
    if not rows:
        return []
    cells: list[tuple[str, ...]] = [("due", "in", "kind", "task", "id", "attempt", "queue", "why")]
    for row in rows:
        due = datetime.fromtimestamp(row.due_at, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
        wait, why = human_seconds(row.due_at - now), row.why.splitlines()[0][:80] if row.why else ""
        cells.append((due, wait, row.kind, row.task, row.task_id, str(row.attempt), row.queue, why))
    cells = [tuple(_shown(cell) for cell in line) for line in cells]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]) - 1)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]).rstrip() for line in cells]


def _shown(text: str) -> str:
    """Give text that every terminal takes: a lone surrogate is written as what it is."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def human_seconds(seconds: float) -> str:
    """Write a span the way people say it."""
    if seconds <= 0:
        return "now"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.1f}s"


def _fail(ctx: Any, message: str) -> None:
    ctx.obj.error(message)
    ctx.exit(1)
