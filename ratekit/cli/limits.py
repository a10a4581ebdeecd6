"""The command limits: every endpoint of an application, with its limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from ratekit.cli.applications import imported, kinds, listed
from ratekit.cli.rules import Function, with_json
from ratekit.cli.session import table
from ratekit.web.listing import COLUMNS, ListedLimit


@click.command(short_help="List every endpoint of an application, with its limits.")
@click.argument("application", metavar="MODULE:NAME")
@with_json
def limits(answer: Function, application: str) -> None:
    """List every endpoint of an application, with its limits, who is counted, and where that comes from.

    APPLICATION is a FastAPI or Starlette application. Django has `manage.py ratekit limits`, Flask `flask ratekit limits`.

    \b
    Examples:
      ratekit limits shop.main:app
    """
    show(answer, _listed(application))


def show(answer: Function, found: Iterable[ListedLimit]) -> None:
    """Print the limits of an application."""
    rows = list(found)
    shown = [row.shown for row in rows]
    lines = table(COLUMNS, [list(row.values()) for row in shown]) if rows else ["the application has no endpoints"]
    answer(shown, lines)


def _listed(where: str) -> Sequence[ListedLimit]:
    application = imported(where, repr(where))
    found = listed(application)
    if found is None:
        kind = type(application).__name__
        raise click.UsageError(f"{where!r} is a {kind}: limits are listed for applications of {kinds()}")
    return found
