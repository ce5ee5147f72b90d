"""`celery -A proj resilience pause|resume|pauses`: stop a queue or a task for the whole fleet, and let it go on.

Services are imported inside the commands, because every celery command loads this module.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .breaker import Duration, Words, moment, print_json, print_table, who
from .resilience import human_seconds

if TYPE_CHECKING:
    from ..pauses import Pause, PauseKind, Pauses

_json = click.option("--json", "as_json", is_flag=True, help="JSON for machines.")


def _told(command: Callable[..., None]) -> Callable[..., None]:
    """Hand the fleet's pauses to a command, and turn our errors into one line and exit 1."""

    @click.pass_context
    @functools.wraps(command)
    def run(ctx: click.Context, /, *args: Any, **kwargs: Any) -> None:
        from ..errors import ResilienceError
        from ..runtime import runtime_of

        # Where nobody has set up logging, an event would be a second line on the terminal.
        logging.getLogger("celery_resilience").addHandler(logging.NullHandler())
        try:
            pauses = runtime_of(ctx.obj.app).pauses
            if pauses is None:
                raise ResilienceError("No Redis is configured, so nothing can be paused: set resilience_redis_url.")
            command(ctx, pauses, *args, **kwargs)
        except ResilienceError as error:
            ctx.obj.error(str(error))
            ctx.exit(1)

    return run


def _writing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the commands that write."""
    for decorate in (
        _json,
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--task", type=Words(), help="The task, by its full name."),
        click.option("--queue", type=Words(), help="The queue."),
    ):
        command = decorate(command)
    return command


@click.command()
@_writing
@click.option("--reason", type=Words(), required=True, help="Why, for those who wonder later.")
@click.option("--for", "for_seconds", type=Duration(), help="How long: 90s, 10m, 2h. Without it until resumed.")
@_told
def pause(
    ctx: click.Context,
    pauses: Pauses,
    reason: str,
    for_seconds: float | None,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **named: Any,
) -> None:
    """Pause a queue or a task for the whole fleet, until it is resumed."""
    from ..pauses import check

    kind, name = _one(named)
    check(kind, name, for_seconds, why=reason)
    _check_known(ctx, kind, name)
    lasting = f" for {human_seconds(for_seconds)}" if for_seconds else ""
    if dry_run:
        _say(ctx, as_json, f"would pause {kind} {name}{lasting}", kind=kind, name=name, dry_run=True)
        return
    _confirm(ctx, yes, f"Pause {kind} {name}{lasting} for the whole fleet?")
    done = pauses.pause(kind, name, who=who(), why=reason, for_seconds=for_seconds)
    ends = f"until {moment(done.until)}" if done.until else "until it is resumed"
    _say(ctx, as_json, f"{kind} {name}: paused {ends}", **done.as_dict(), dry_run=False)


@click.command()
@_writing
@_told
def resume(ctx: click.Context, pauses: Pauses, *, yes: bool, dry_run: bool, as_json: bool, **named: Any) -> None:
    """Let a paused queue or task go on."""
    from ..errors import ResilienceError

    kind, name = _one(named)
    if dry_run:
        if (kind, name) not in {(one.kind, one.name) for one in pauses.active()}:
            raise ResilienceError(f"The {kind} {name} is not paused.")
        _say(ctx, as_json, f"would resume {kind} {name}", kind=kind, name=name, dry_run=True)
        return
    _confirm(ctx, yes, f"Resume {kind} {name} for the whole fleet?")
    if not pauses.resume(kind, name):
        raise ResilienceError(f"The {kind} {name} is not paused.")
    _say(ctx, as_json, f"{kind} {name}: resumed", kind=kind, name=name, dry_run=False)


@click.command("pauses")
@_json
@_told
def list_pauses(ctx: click.Context, pauses: Pauses, as_json: bool) -> None:
    """List what is paused, by whom and why."""
    found = pauses.active()
    if as_json:
        print_json(ctx, [one.as_dict() for one in found])
        return
    head = ("paused", "name", "since", "left", "who", "why")
    print_table(ctx, head, [_row(one) for one in found], "Nothing is paused.")


def _row(one: Pause) -> tuple[str, ...]:
    left = "until resumed" if one.left_seconds is None else human_seconds(one.left_seconds)
    return one.kind, one.name, moment(one.at), left, one.who, one.why


def _one(named: dict[str, str | None]) -> tuple[PauseKind, str]:
    """Give the one queue or task that was named; anything else is a usage error."""
    queue, task = named["queue"], named["task"]
    if queue and not task:
        return "queue", queue
    if task and not queue:
        return "task", task
    raise click.UsageError("Give exactly one of --queue and --task.")


def _check_known(ctx: click.Context, kind: PauseKind, name: str) -> None:
    """Refuse a task that no pause would hold; a queue may be known to workers alone, so that is only remarked."""
    from ..checks import suggestion
    from ..errors import ResilienceError
    from ..task import ResilientTask

    app = ctx.obj.app
    if kind == "queue":
        if name not in app.amqp.queues:
            ctx.obj.error(f"Note: the app does not configure a queue {name!r}; workers that consume it will stop.")
        return
    app.loader.import_default_modules()
    if name not in app.tasks:
        known = sorted(task for task in app.tasks if not task.startswith("celery."))[:20]
        raise ResilienceError(f"No task is named {name!r}. {suggestion(name, known)}")
    if not isinstance(app.tasks[name], ResilientTask):
        raise ResilienceError(f"The task {name} is not a ResilientTask, so it cannot be paused: pause its queue.")


def _confirm(ctx: click.Context, yes: bool, question: str) -> None:
    if not yes and not click.confirm(question, err=True):
        ctx.exit(1)


def _say(ctx: click.Context, as_json: bool, words: str, **fields: Any) -> None:
    if as_json:
        print_json(ctx, fields)
    else:
        ctx.obj.echo(words)
