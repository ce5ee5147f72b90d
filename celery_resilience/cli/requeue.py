"""`celery -A proj dlq requeue`: send letters back to their queues, carefully.

Services are imported inside the command, because every celery command loads this module.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from .breaker import Duration, print_json, print_table, who
from .dlq_options import Assignment, confirm, filtered, nothing_matched, selected_from, selecting, told

if TYPE_CHECKING:
    from ..deadletter.desk import Desk
    from ..deadletter.filters import LetterFilter
    from ..deadletter.settling import Order, Outcome
    from ..runtime import Runtime


@click.command()
@filtered("waiting")
@selecting
@click.option("--limit", type=click.IntRange(1), help="At the most.")
@click.option("--rate", help="At most so many in a time: 50/s, 100/m.")
@click.option("--canary", type=click.IntRange(1), help="Send so many first, and go on only if they succeed.")
@click.option("--canary-wait", type=Duration(), default="60s", show_default=True, help="How long to wait for them.")
@click.option("--abort-on-failure-rate", type=click.FloatRange(0, 1), help="Stop when more than this share died again.")
@click.option("--to", help="Another queue than the one they came from.")
@click.option("--set-arg", "args", type=Assignment(), multiple=True, help="PLACE=VALUE, from 0; on a copy.")
@click.option("--set-kwarg", "kwargs", type=Assignment(), multiple=True, help="NAME=VALUE; on a copy.")
@click.option("--force", is_flag=True, help="In spite of an open breaker.")
@click.option("--note", default="", help="Why, for the audit.")
@click.option("--json", "as_json", is_flag=True, help="JSON for machines.")
@told
def requeue(ctx: click.Context, runtime: Runtime, dry_run: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Send letters back to their queues, each once: same id, same bytes, attempts go on."""
    from .dlq import collected

    chosen, note = selected_from(given), given.pop("note")
    desk = collected(ctx, runtime)
    count = desk.count(chosen)
    if not count and not dry_run and (settled := desk.settle()):
        ctx.obj.echo(f"finished {settled} letters that an earlier run had left")
        return
    if not count:
        nothing_matched(ctx)
    if dry_run:
        _preview(ctx, desk, chosen, count, as_json, **given)
        return
    confirm(ctx, yes, f"Requeue {min(count, given['limit'] or count)} letters?")
    with _until_interrupted() as is_interrupted, _progress(min(count, given["limit"] or count), as_json) as advance:
        order = _order(runtime, given, is_interrupted, advance)
        outcome = desk.requeue(chosen, order, who=who(), note=note)
    _tell(ctx, outcome, desk.count(chosen), as_json)


def _order(runtime: Runtime, given: dict[str, Any], is_interrupted: Callable[[], bool], advance: Any) -> Order:
    from ..deadletter.canary import Canary, check_results
    from ..deadletter.settling import Order

    canary, share = given.pop("canary"), given.pop("abort_on_failure_rate")
    wait = given.pop("canary_wait")
    if canary:
        check_results(runtime.app)
    watched = Canary(runtime.desk, runtime.app, runtime.clock, first=canary, wait_seconds=wait, failure_rate=share)

    def may_go_on(run: str, sent: int) -> str | None:
        advance(sent)
        return "interrupted" if is_interrupted() else watched.may_go_on(run, sent)

    places = {_place(name): value for name, value in given["args"]}
    return Order(
        to=given["to"],
        args=places,
        kwargs=dict(given["kwargs"]),
        rate=given["rate"],
        force=given["force"],
        limit=given["limit"],
        first=canary,
        may_go_on=may_go_on,
    )


def _place(name: str) -> int:
    if not name.isdecimal():
        raise click.UsageError(f"--set-arg {name}: the place of an argument is a number from 0.")
    return int(name)


def _preview(ctx: click.Context, desk: Desk, chosen: LetterFilter, count: int, as_json: bool, **given: Any) -> None:
    """Say what would be sent, what not and why."""
    held = {} if given["force"] else desk.held_back(chosen)
    homeless = 0 if given["to"] else desk.without_queue(chosen)
    found = desk.groups(chosen, "fingerprint", 1000)
    if as_json:
        print_json(ctx, {"dry_run": True, "count": count, "without_queue": homeless, "open_breakers": held,
                         "groups": [one.as_dict() for one in found]})  # fmt: skip
        return
    rows = [
        (str(one.key), str(one.count), one.example.task or "?", one.example.queue or "?",
         f"held back: breaker {held[one.example.task]} is open" if one.example.task in held else "would be sent")
        for one in found
    ]  # fmt: skip
    print_table(ctx, ("group", "letters", "task", "queue", "fate"), rows, "No letter matches.")
    if homeless:
        ctx.obj.echo(f"{homeless} have no single origin queue: give --to.")
    ctx.obj.echo(f"would requeue up to {min(count - homeless, given['limit'] or count)} letters")


def _tell(ctx: click.Context, outcome: Outcome, left: int, as_json: bool) -> None:
    if as_json:
        print_json(ctx, {**outcome.as_dict(), "dry_run": False})
    else:
        ctx.obj.echo(f"requeued {outcome.done} letters")
        for why, count in outcome.left.items():
            ctx.obj.echo(f"left {count}: {why}")
    if outcome.stopped:
        ctx.obj.error(f"Stopped: {outcome.stopped}. {left} letters still wait; the same command goes on with them.")
    if outcome.stopped or not outcome.done:
        ctx.exit(1)


@contextlib.contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C end the run after the batch that is under way; a second one ends it at once, and safely too."""
    seen: list[int] = []

    def note(number: int, _frame: Any) -> None:
        seen.append(number)
        signal.signal(number, before)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread
        yield lambda: False
        return
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _progress(count: int, as_json: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, where nothing but the bar is printed meanwhile."""
    if as_json or not sys.stderr.isatty():
        yield lambda _sent: None
        return
    with click.progressbar(length=max(1, count), label="requeue", file=sys.stderr) as bar:
        yield lambda sent: bar.update(sent - bar.pos)
