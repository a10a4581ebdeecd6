"""The command violations: who was refused, from the database."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import click

from ratekit.cli.db import with_database, with_json
from ratekit.cli.session import Seconds, table

_COLUMNS = ("when", "subject", "endpoint", "limit", "used", "maximum")


@click.group(invoke_without_command=True, short_help="List the requests that were refused.")
@click.option("--subject", help="Only those of a subject.")
@click.option("--endpoint", help="Only those of an endpoint.")
@click.option("--since", type=Seconds(), metavar="DURATION", help="Only those of the last 15min, 24h, 7d.")
@click.option("--most", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many.")
@with_database
@with_json
@click.pass_context
def violations(context: click.Context, /, url: str, as_json: bool, since: float | None, **options: Any) -> None:
    """List the requests that limits refused, the latest first. An application with a ViolationLog writes them.

    \b
    Examples:
      ratekit violations --since 1h
      ratekit violations --subject user:42 --most 10 --json
      ratekit violations delete --older 90d
    """
    if context.invoked_subcommand is not None:
        return
    from ratekit.admin.violations import list_violations

    found = list_violations(url, since=None if since is None else _ago(since), **options)
    if as_json:
        click.echo(json.dumps([one._asdict() | {"at": one.at.isoformat()} for one in found]))
        return
    rows = [
        (one.at.isoformat(timespec="seconds"), one.subject, one.endpoint, one.limit, str(one.used), str(one.maximum))
        for one in found
    ]
    for line in table(_COLUMNS, rows) if rows else ["there are none"]:
        click.echo(line)


@violations.command()
@click.option("--older", type=Seconds(), required=True, metavar="DURATION", help="Those before that time: 90d.")
@with_database
@with_json
def delete(url: str, as_json: bool, older: float) -> None:
    """Delete old violations: run it once a day, so that the table does not grow for ever.

    \b
    Example:
      ratekit violations delete --older 90d
    """
    from ratekit.admin.violations import delete_violations

    count = delete_violations(_ago(older), url)
    click.echo(json.dumps({"deleted": count}) if as_json else f"deleted: {count}")


def _ago(seconds: float) -> datetime:
    return datetime.fromtimestamp(time.time() - seconds, UTC)
