"""`celery -A proj resilience adopt-database`: make this process's database the one of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .dlq_options import confirm, told

if TYPE_CHECKING:
    from ..runtime import Runtime


@click.command("adopt-database")
@click.option("--yes", is_flag=True, help="Do not ask.")
@told
def adopt_database(ctx: click.Context, runtime: Runtime, yes: bool) -> None:
    """Register the database of this configuration as the fleet's, in place of another."""
    from ..errors import ResilienceError

    if runtime.store is None:
        raise ResilienceError("No Redis is configured, so no database is registered: there is nothing to adopt.")
    url = runtime.database.url
    confirm(ctx, yes, f"Register {url} as the database of the whole fleet?")
    before = runtime.registration.adopt()
    ctx.obj.echo(f"registered {url}" + (f" in place of {before}" if before and before != url else ""))
