"""`celery -A proj breaker …`: look at circuit breakers and override them for the whole fleet.

Services are imported inside the commands, because every celery command loads this module.
"""

from __future__ import annotations

import difflib
import functools
import json
import logging
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from .resilience import human_seconds

if TYPE_CHECKING:
    from ..breaker import Breakers, Snapshot, Transition

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_json = click.option("--json", "as_json", is_flag=True, help="JSON for machines.")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in the stubs only
    """A span such as 90, 90s, 10m, 2h or 1d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it; anything else, or nothing at all, is a usage error."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value).strip())
        seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
        if not 0 < seconds <= 366 * 86400:
            self.fail(f"{value!r} is not a time span up to a year: write 90s, 10m, 2h or 1d.", param, ctx)
        return seconds


class Words(click.ParamType):  # type: ignore[type-arg]  # generic in the stubs only
    """A text that Redis can keep: bytes of the shell that are no UTF-8 are a usage error."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take it as it is, or not at all."""
        try:
            str(value).encode("utf-8")
        except UnicodeEncodeError:
            self.fail(f"{value!r} is not UTF-8: check the encoding of your shell.", param, ctx)
        return str(value)


def _told(command: Callable[..., None]) -> Callable[..., None]:
    """Hand the app's breakers to a command, and turn our errors into one line and exit 1."""

    @click.pass_context
    @functools.wraps(command)
    def run(ctx: click.Context, /, *args: Any, **kwargs: Any) -> None:
        from ..errors import ResilienceError
        from ..runtime import runtime_of

        # Where nobody has set up logging, an event would be a second line on the terminal.
        logging.getLogger("celery_resilience").addHandler(logging.NullHandler())
        try:
            breakers = runtime_of(ctx.obj.app).breakers
            if breakers.store is None:
                raise ResilienceError("No Redis is configured, so breakers are not shared: set resilience_redis_url.")
            command(ctx, breakers, *args, **kwargs)
        except ResilienceError as error:
            ctx.obj.error(str(error))
            ctx.exit(1)

    return run


def _overriding(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that writes."""
    for decorate in (
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--reason", type=Words(), required=True, help="Why, for those who wonder later."),
        _json,
        click.argument("names", type=Words(), nargs=-1, required=True, metavar="NAME…"),
    ):
        command = decorate(command)
    return command


_for = click.option("--for", "for_seconds", type=Duration(), help="How long: 90s, 10m, 2h. Without it until reset.")


@click.group()
def breaker() -> None:
    """Look at circuit breakers and override them for the whole fleet."""


@breaker.command("list")
@_json
@_told
def list_breakers(ctx: click.Context, breakers: Breakers, as_json: bool) -> None:
    """List the breakers that are known, the last used first."""
    found = breakers.snapshots()
    if as_json:
        print_json(ctx, [one.as_dict() for one in found])
        return
    now = breakers.clock.time()
    rows = [(one.name, one.state, *_counts(one), _ago(one.since, now), _note(one, now)) for one in found]
    print_table(ctx, ("breaker", "state", "calls", "failures", "since", "note"), rows, "No breaker was used yet.")


@breaker.command()
@click.argument("name", type=Words())
@_json
@_told
def show(ctx: click.Context, breakers: Breakers, name: str, as_json: bool) -> None:
    """Show all that is known of one breaker."""
    found = _known(breakers, [name])[0]
    if as_json:
        print_json(ctx, found.as_dict())
        return
    for field, value in found.as_dict().items():
        if field != "policy":
            is_time = field in ("since", "open_until", "override_until", "used_at", "seen_at")
            ctx.obj.echo(f"{field:<22}{moment(value) if is_time else value}")
    for field, value in found.policy.items():
        ctx.obj.echo(f"policy.{field:<22}{value}")


@breaker.command()
@click.argument("name", type=Words(), required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows at the most.")
@_json
@_told
def history(ctx: click.Context, breakers: Breakers, name: str | None, limit: int, as_json: bool) -> None:
    """List changes of state, the newest first: of one breaker, or of all."""
    if name is not None:
        _known(breakers, [name])
    found: list[Transition] = breakers.history(limit, name)
    if as_json:
        print_json(ctx, [one.as_dict() for one in found])
        return
    rows = [
        (moment(one.at), one.breaker, one.event, f"{one.from_state} → {one.to_state}", one.who or "-", one.reason)
        for one in found
    ]
    print_table(ctx, ("at", "breaker", "event", "change", "who", "reason"), rows, "Nothing has happened yet.")


@breaker.command("open")
@_for
@_overriding
@_told
def open_breakers(ctx: click.Context, breakers: Breakers, names: Sequence[str], **options: Any) -> None:
    """Force breakers open: every call is refused."""
    _override(ctx, breakers, names, "force_open", "force open", **options)


@breaker.command("close")
@_for
@_overriding
@_told
def close_breakers(ctx: click.Context, breakers: Breakers, names: Sequence[str], **options: Any) -> None:
    """Force breakers closed: every call passes, whatever happens."""
    _override(ctx, breakers, names, "force_closed", "force closed", **options)


@breaker.command("disable")
@_for
@_overriding
@_told
def disable_breakers(ctx: click.Context, breakers: Breakers, names: Sequence[str], **options: Any) -> None:
    """Only count: every call passes and nothing trips."""
    _override(ctx, breakers, names, "disable", "disable", **options)


@breaker.command("reset")
@_overriding
@_told
def reset_breakers(ctx: click.Context, breakers: Breakers, names: Sequence[str], **options: Any) -> None:
    """End overrides and start closed with an empty window."""
    _override(ctx, breakers, names, "reset", "reset", **options)


def _override(
    ctx: click.Context,
    breakers: Breakers,
    names: Sequence[str],
    method: str,
    words: str,
    *,
    reason: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **lasting: Any,
) -> None:
    before = _known(breakers, names) if method == "reset" else _known_or_new(ctx, breakers, names)
    if not dry_run:
        if not yes and not click.confirm(f"{words.capitalize()} {', '.join(names)} for the whole fleet?", err=True):
            ctx.exit(1)
        for one in before:
            getattr(breakers.get(one.name), method)(who=who(), why=reason, **lasting)
    after = before if dry_run else _known(breakers, names)
    if as_json:
        print_json(ctx, [{**one.as_dict(), "dry_run": dry_run} for one in after])
        return
    for one in after:
        ctx.obj.echo(f"{one.name}: would {words}, is {one.state}" if dry_run else f"{one.name}: {one.state}")


def _known_or_new(ctx: click.Context, breakers: Breakers, names: Sequence[str]) -> list[Snapshot]:
    """Look at breakers by name; one that nobody has used yet is closed. Remarks a name that nothing declares."""
    found = {name: breakers.find(name) for name in names}
    new = [name for name, one in found.items() if one is None]
    if new:
        declared = {*breakers.policies, *_declared(ctx.obj.app)}
        for name in new:
            if name not in declared:
                close = difflib.get_close_matches(name, [*declared, *breakers.names()], n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                words = f"Note: nobody has used a breaker named {name!r} yet, and the app declares none.{hint}"
                click.echo(words, err=True)
    return [one or breakers.get(name).snapshot() for name, one in found.items()]


def _declared(app: Any) -> set[str]:
    """Name the breakers that tasks name in their options; what a function would name cannot be known."""
    from ..task import ResilientTask

    app.loader.import_default_modules()
    tasks = [one for one in app.tasks.values() if isinstance(one, ResilientTask) and not one._is_built_in]
    return {name for task in tasks for name in task._plan_of(app).gates.declared}


def _known(breakers: Breakers, names: Sequence[str]) -> list[Snapshot]:
    """Look at breakers by name; raises ResilienceError naming the one that does not exist."""
    from ..checks import suggestion
    from ..errors import ResilienceError

    found = {name: breakers.find(name) for name in names}
    unknown = [name for name, one in found.items() if one is None]
    if unknown:
        known = breakers.names()[:20]
        remedy = suggestion(unknown[0], known) if known else "None was used yet."
        raise ResilienceError(f"No breaker is named {unknown[0]!r}. {remedy}")
    return [one for one in found.values() if one is not None]


def who() -> str:
    """Name the person at the keyboard."""
    import getpass
    import socket

    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user without a name
        return f"somebody@{socket.gethostname()}"


def _counts(one: Snapshot) -> tuple[str, str]:
    share = f" ({one.failures / one.calls:.0%})" if one.calls else ""
    return str(one.calls), f"{one.failures}{share}"


def _note(one: Snapshot, now: float) -> str:
    if one.override_who:
        lasts = f" for another {human_seconds(one.override_until - now)}" if one.override_until else ""
        return f"{one.override_who}: {one.override_why}{lasts}"
    until = f"; probes in {human_seconds(one.open_until - now)}" if one.state == "open" else ""
    return f"{one.reason}{until}"


def _ago(moment: float, now: float) -> str:
    return human_seconds(max(0.1, now - moment)) if moment else "-"


def moment(seconds: float) -> str:
    """Write a moment for people, in UTC."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ") if seconds else "-"


def print_json(ctx: click.Context, value: Any) -> None:
    """Print a value for machines."""
    ctx.obj.echo(json.dumps(value, indent=2))


def print_table(ctx: click.Context, head: tuple[str, ...], rows: Sequence[tuple[str, ...]], nothing: str) -> None:
    """Print a table for people, or what to say when it is empty."""
    if not rows:
        ctx.obj.echo(nothing)
        return
    lines = [head, *(tuple(" ".join(cell.split()) for cell in row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        ctx.obj.echo("  ".join([*cells, line[-1]]).rstrip())
