"""`celery -A proj dlq …`: look at dead letters, send them back, end them.

Services are imported inside the commands, because every celery command loads this module.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

import click

from .breaker import moment, print_json, print_table, who
from .dlq_options import chosen_from, confirm, filtered, nothing_matched, plain, selected_from, selecting, told
from .resilience import human_seconds

if TYPE_CHECKING:
    from ..deadletter.desk import Desk
    from ..deadletter.ledger import Group, StoredLetter
    from ..deadletter.letter import DeadLetter
    from ..runtime import Runtime

_json = click.option("--json", "as_json", is_flag=True, help="JSON for machines.")
_limit = click.option("--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="At the most.")


@click.group()
def dlq() -> None:
    """Look at dead letters, send them back, end them."""


@dlq.command("list")
@filtered("waiting")
@_limit
@click.option("--after", help="The id of the last letter of the page before.")
@click.option("--collapse", is_flag=True, help="Letters of the same task and arguments as one line.")
@_json
@told
def list_letters(
    ctx: click.Context, runtime: Runtime, limit: int, after: str | None, collapse: bool, as_json: bool, **given: Any
) -> None:
    """List letters, the latest death first; what waits in the DLQ is collected before."""
    chosen, desk = chosen_from(given), collected(ctx, runtime)
    if collapse:
        _show_groups(ctx, desk.groups(chosen, "arguments", limit), as_json)
        return
    found = desk.find(chosen, limit, after)
    if as_json:
        print_json(ctx, [one.as_dict() for one in found])
        return
    head = ("id", "died", "task", "class", "reason", "attempt", "queue", "state", "error")
    print_table(ctx, head, [_row(one) for one in found], "No letter matches.")


@dlq.command()
@filtered("waiting")
@click.option(
    "--by",
    type=click.Choice(["fingerprint", "error", "task", "class", "queue"]),
    default="fingerprint",
    show_default=True,
    help="What the letters of a group have in common.",
)
@_limit
@_json
@told
def groups(ctx: click.Context, runtime: Runtime, by: str, limit: int, as_json: bool, **given: Any) -> None:
    """Count letters by what they have in common, the largest group first."""
    chosen = chosen_from(given)
    _show_groups(ctx, collected(ctx, runtime).groups(chosen, by, limit), as_json)


@dlq.command()
@click.argument("letter_id", metavar="ID")
@_json
@told
def show(ctx: click.Context, runtime: Runtime, letter_id: str, as_json: bool) -> None:
    """Show all that is known of one letter: its history, traceback and a preview of its arguments."""
    from ..deadletter.desk import no_such_letter
    from ..deadletter.ledger import arguments_of

    desk = collected(ctx, runtime)
    found = desk.get(letter_id)
    if found is None:
        raise no_such_letter(letter_id)
    stored, letter = found
    related = [one for one in desk.ledger.related(letter.task_id) if one.id != stored.id] if letter.task_id else []
    if as_json:
        shown = {**_shown(letter), **stored.as_dict(), "arguments": arguments_of(letter)}
        print_json(ctx, {**shown, "related": [one.as_dict() for one in related]})
        return
    for line in _lines(stored, letter, related):
        ctx.obj.echo(plain(line))


@dlq.command()
@filtered("waiting")
@selecting
@click.option("--reason", required=True, help="Why, for those who wonder later.")
@_json
@told
def discard(
    ctx: click.Context, runtime: Runtime, reason: str, dry_run: bool, yes: bool, as_json: bool, **given: Any
) -> None:
    """End letters with a reason: what waits for them fails. They stay in the ledger."""
    chosen, desk = selected_from(given), collected(ctx, runtime)
    count = desk.count(chosen)
    if not count:
        nothing_matched(ctx)
    if not dry_run:
        confirm(ctx, yes, f"Discard {count} letters?")
        count = desk.discard(chosen, reason, who=who()).done
    _say(ctx, as_json, f"{'would discard' if dry_run else 'discarded'} {count} letters", count, dry_run)


@dlq.command()
@filtered("waiting")
@selecting
@click.option("--note", default="", help="Why, for the audit.")
@_json
@told
def purge(
    ctx: click.Context, runtime: Runtime, note: str, dry_run: bool, yes: bool, as_json: bool, **given: Any
) -> None:
    """Delete letters from the ledger for ever; parked ones are discarded first."""
    chosen, desk = selected_from(given), collected(ctx, runtime)
    count = desk.count(chosen)
    if not count:
        nothing_matched(ctx)
    if not dry_run:
        confirm(ctx, yes, f"Delete {count} letters for ever?")
        count = desk.purge(chosen, who=who(), note=note).done
    _say(ctx, as_json, f"{'would purge' if dry_run else 'purged'} {count} letters", count, dry_run)


@dlq.command()
@filtered("any")
@click.option(
    "--output", type=click.File("w", encoding="utf-8"), default="-", help="The file; by default the terminal."
)
@told
def export(ctx: click.Context, runtime: Runtime, output: IO[str], **given: Any) -> None:
    """Write letters as JSON lines, message and all, for `import`. Secrets in messages are not hidden there."""
    from ..deadletter.export import lines_of

    chosen, desk = chosen_from(given), collected(ctx, runtime)
    count = 0
    for line in lines_of(desk, chosen):
        output.write(line + "\n")
        count += 1
    click.echo(f"exported {count} letters", err=True)


@dlq.command("import")
@click.argument("source", type=click.File("r", encoding="utf-8"), metavar="FILE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_json
@told
def import_letters(ctx: click.Context, runtime: Runtime, source: IO[str], yes: bool, as_json: bool) -> None:
    """Write exported letters into the ledger; those that are there already stay as they are."""
    from ..deadletter.export import read_lines

    confirm(ctx, yes, f"Import the letters of {source.name}?")
    count = runtime.desk.restore(read_lines(source), who=who())
    _say(ctx, as_json, f"imported {count} letters", count, False)


@dlq.command()
@_json
@told
def stats(ctx: click.Context, runtime: Runtime, as_json: bool) -> None:
    """Count letters by state, class and reason, and what waits in the DLQ."""
    from ..deadletter.filters import LetterFilter

    desk = collected(ctx, runtime)
    waiting, every = LetterFilter(), LetterFilter(state="any")
    oldest = desk.ledger.oldest()
    counts = {
        "by_state": desk.ledger.counts("state", every),
        "waiting_by_class": desk.ledger.counts("failure_class", waiting),
        "waiting_by_reason": desk.ledger.counts("reason", waiting),
    }
    depth = desk.depth()
    if as_json:
        print_json(ctx, {"in_dlq": depth, "oldest_waiting_at": oldest, **counts})
        return
    ctx.obj.echo(f"{depth} in the DLQ; the oldest letter that waits died {_at(oldest)}")
    for title, found in counts.items():
        words = title.replace("_", " ")
        rows = [(key, str(count)) for key, count in sorted(found.items(), key=lambda one: -one[1])]
        print_table(ctx, (words, "letters"), rows, f"{words}: none")


@dlq.command()
@_limit
@_json
@told
def audit(ctx: click.Context, runtime: Runtime, limit: int, as_json: bool) -> None:
    """List what operators did, the newest first."""
    found = runtime.desk.actions(limit)
    if as_json:
        print_json(ctx, [one.as_dict() for one in found])
        return
    rows = [
        (moment(one.at), one.who, one.verb, str(one.count), json.dumps(dict(one.selection)), one.note) for one in found
    ]
    print_table(ctx, ("at", "who", "did", "letters", "selection", "note"), rows, "Nothing was done yet.")


@dlq.command()
@filtered("waiting")
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--rounds", type=click.IntRange(1), help="End after so many looks; by default at Ctrl-C.")
@_json
@told
def watch(
    ctx: click.Context, runtime: Runtime, interval: float, rounds: int | None, as_json: bool, **given: Any
) -> None:
    """Show letters as they come in, until Ctrl-C."""
    chosen, seen, look = chosen_from(given), set[str](), 0
    while rounds is None or look < rounds:
        if look:
            runtime.clock.sleep(interval)
        found = collected(ctx, runtime).find(chosen, 100)
        for one in reversed([one for one in found if one.id not in seen]):
            cells = _row(one)
            ctx.obj.echo(json.dumps(one.as_dict()) if as_json else "  ".join(cells))
        seen = {one.id for one in found}
        look += 1


def collected(ctx: click.Context, runtime: Runtime) -> Desk:
    """Give the desk after what waits in the DLQ was collected; a broker that is away only costs a line."""
    from ..errors import StoreUnavailableError

    runtime.desk.ledger.database.probe()
    try:
        runtime.desk.collect(limit=20_000)
    except StoreUnavailableError as error:
        ctx.obj.error(f"Note: what is in the DLQ could not be collected. {' '.join(str(error).split())}")
    return runtime.desk


def _row(one: StoredLetter) -> tuple[str, ...]:
    attempt = f"{one.attempt}" + (f" (requeued {one.generation}×)" if one.generation else "")
    cells = (
        one.id,
        moment(one.failed_at),
        one.task or "?",
        one.failure_class,
        one.reason,
        attempt,
        one.queue or "?",
        one.state + (" (parked)" if one.parked and one.state == "waiting" else ""),
        _error(one),
    )
    return tuple(plain(cell) for cell in cells)


def _error(one: StoredLetter) -> str:
    return f"{one.error_type.rpartition('.')[2]}: {one.error_message}".splitlines()[0][:80]


def _show_groups(ctx: click.Context, found: list[Group], as_json: bool) -> None:
    if as_json:
        print_json(ctx, [one.as_dict() for one in found])
        return
    rows = [
        (
            plain(str(one.key or "?"))[:32],
            str(one.count),
            moment(one.first_failed_at),
            moment(one.last_failed_at),
            plain(one.example.task or "?"),
            one.example.failure_class,
            plain(_error(one.example)),
        )
        for one in found
    ]
    print_table(ctx, ("group", "letters", "first", "last", "task", "class", "error"), rows, "No letter matches.")


def _shown(letter: DeadLetter) -> dict[str, Any]:
    """Give what is known of a letter, without secrets."""
    from ..redaction import redact

    shown: dict[str, Any] = redact(letter.as_dict())
    envelope = letter.envelope
    return shown | {
        "headers": redact(json.loads(json.dumps(dict(envelope.headers), default=str))),
        "properties": redact(json.loads(json.dumps(dict(envelope.properties), default=str))),
        "content_type": envelope.content_type,
        "body_bytes": len(envelope.body),
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
    }


def _lines(stored: StoredLetter, letter: DeadLetter, related: list[StoredLetter]) -> list[str]:
    from ..deadletter.ledger import arguments_of

    known = _shown(letter)
    told = {
        "id": stored.id,
        "state": stored.state,
        "reason": stored.reason,
        "task": f"{stored.task} {stored.task_id}",
        "queue": stored.queue,
        "arguments": arguments_of(letter) or f"{known['body_bytes']} bytes of {known['content_type']}",
        "class": stored.failure_class,
        "error": f"{stored.error_type}: {stored.error_message}",
        "fingerprint": stored.fingerprint,
        "died": _at(stored.failed_at),
        "first failed": _at(stored.first_failed_at),
        "attempt": f"{stored.attempt}, requeued {stored.generation}×",
        "worker": letter.worker,
        "workflow": ", ".join(f"{name} {value}" for name, value in letter.canvas.items()) or "-",
        "versions": ", ".join(f"{name} {value}" for name, value in letter.versions.items()),
    }
    lines = [f"{name:<18}{value}" for name, value in told.items()]
    lines += ["", "history"] if known["trail"] else []
    for entry in known["trail"]:
        cells = (f"attempt {entry.get('attempt')}", _at(entry.get("at")), entry.get("class"), entry.get("error"))
        lines.append("  " + "  ".join(str(cell) for cell in cells))
    lines += [f"  letter {one.id}  {one.state}  requeued {one.generation}×  {_at(one.failed_at)}" for one in related]
    return [*lines, "", *(known["traceback"] or "no traceback").rstrip().splitlines()]


def _at(seconds: Any) -> str:
    from ..clock import SYSTEM_CLOCK

    if not isinstance(seconds, (int, float)):
        return "-"
    return f"{moment(float(seconds))} ({human_seconds(SYSTEM_CLOCK.time() - float(seconds))} ago)"


def _say(ctx: click.Context, as_json: bool, words: str, count: int, dry_run: bool) -> None:
    if as_json:
        print_json(ctx, {"count": count, "dry_run": dry_run})
    else:
        ctx.obj.echo(words)
    if not count:
        ctx.exit(1)
