"""What the commands of `celery -A proj dlq` share: filters, times as people write them, and how errors are told."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from .breaker import Duration

if TYPE_CHECKING:
    from ..deadletter.filters import LetterFilter

STATES = ("waiting", "claimed", "requeued", "discarded", "any")


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic in the stubs only
    """A moment: a span such as 2h or 3d, which is that long ago, or a date as in ISO 8601 (UTC unless it says)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it as seconds since the epoch; anything else is a usage error."""
        from ..clock import SYSTEM_CLOCK

        if isinstance(value, float):
            return value
        try:
            moment = datetime.fromisoformat(str(value).strip().replace("Z", "+00:00"))
            return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
        except ValueError:
            pass
        try:
            return SYSTEM_CLOCK.time() - Duration().convert(value, param, ctx)
        except click.UsageError:
            self.fail(f"{value!r} is not a time: write 2h, 3d, or 2026-11-18T10:00.", param, ctx)


class Assignment(click.ParamType):  # type: ignore[type-arg]  # generic in the stubs only
    """NAME=VALUE, the value as JSON; what is not JSON is text."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Read it."""
        import json

        if isinstance(value, tuple):
            return value
        name, sign, text = str(value).partition("=")
        if not sign or not name:
            self.fail(f"{value!r} is not of the form NAME=VALUE.", param, ctx)
        try:
            return name, json.loads(text)
        except ValueError:
            return name, text


def filtered(default_state: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the filters, the same for every command."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        state = {"type": click.Choice(STATES), "default": default_state, "show_default": True}
        for option in (
            click.option("--id", "ids", multiple=True, help="A letter by its id; may be given again."),
            click.option("--task", help="The task, by its full name."),
            click.option("--queue", help="The queue that the message came from."),
            click.option("--class", "failure_class", help="The failure class."),
            click.option("--error", help="The type of the exception, with or without its module."),
            click.option("--fingerprint", help="The fingerprint, as `groups` shows it."),
            click.option("--since", type=Moment(), help="Died at or after this time: 2h, 3d, 2026-11-18T10:00."),
            click.option("--until", type=Moment(), help="Died before this time."),
            click.option("--text", help="Words in task, error, queue or arguments."),
            click.option("--attempts-below", type=click.IntRange(1), help="Fewer attempts than this."),
            click.option("--state", **state, help="What has become of it."),  # type: ignore[arg-type]  # click's own words
        ):
            command = option(command)
        return command

    return decorate


def chosen_from(given: dict[str, Any]) -> LetterFilter:
    """Take the filters out of what a command was given."""
    from ..deadletter.filters import LetterFilter

    names = ("ids", "task", "queue", "failure_class", "error", "fingerprint", "since", "until", "text")
    return LetterFilter(**{name: given.pop(name) for name in (*names, "attempts_below", "state")})


def selected_from(given: dict[str, Any]) -> LetterFilter:
    """Take the filters of a command that writes: no filter at all is refused, unless all are meant."""
    is_all, chosen = given.pop("all_letters"), chosen_from(given)
    if chosen.is_empty and not is_all:
        raise click.UsageError("Nothing is selected: give a filter, or --all.")
    return chosen


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that writes."""
    for option in (
        click.option("--all", "all_letters", is_flag=True, help="Every letter, where no filter is given."),
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    ):
        command = option(command)
    return command


def told(command: Callable[..., None]) -> Callable[..., None]:
    """Hand the app's desk to a command, and turn what goes wrong into one line and exit 1."""

    @click.pass_context
    @functools.wraps(command)
    def run(ctx: click.Context, /, *args: Any, **kwargs: Any) -> None:
        from ..errors import ResilienceError
        from ..runtime import runtime_of

        # Where nobody has set up logging, an event would be a second line on the terminal.
        logging.getLogger("celery_resilience").addHandler(logging.NullHandler())
        try:
            if ctx.obj.app.main == "default":  # Celery's own, which stands in where none is given
                raise ResilienceError("No app is given: write `celery -A proj …`.")
            command(ctx, runtime_of(ctx.obj.app), *args, **kwargs)
        except ResilienceError as error:
            ctx.obj.error(" ".join(str(error).split()))
            ctx.exit(1)

    return run


def confirm(ctx: click.Context, yes: bool, question: str) -> None:
    """Ask before writing; no is exit 1."""
    if not yes and not click.confirm(question, err=True):
        ctx.exit(1)


def nothing_matched(ctx: click.Context) -> None:
    """Say so, and exit 1."""
    ctx.obj.error("No letter matches.")
    ctx.exit(1)


def plain(text: str) -> str:
    """Give text that every terminal takes and none obeys: whatever is not printable is written as its number."""
    return "".join(sign if sign.isprintable() or sign == "\t" else f"\\x{ord(sign):02x}" for sign in text)
