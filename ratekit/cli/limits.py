"""The command limits: every endpoint of an application, with its limits."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any

import click

from ratekit.cli.rules import Function, with_json
from ratekit.cli.session import table
from ratekit.web.listing import COLUMNS, ListedLimit

GROUP = "ratekit.limits"  # entry points: functions of an application that answer its limits, None if it is not theirs


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
    show(answer, _listed(_imported(application), application))


def show(answer: Function, found: Iterable[ListedLimit]) -> None:
    """Print the limits of an application."""
    rows = list(found)
    lines = table(COLUMNS, rows) if rows else ["the application has no endpoints"]
    answer([row._asdict() for row in rows], lines)


def _listed(application: Any, name: str) -> Sequence[ListedLimit]:
    known = entry_points(group=GROUP)
    for entry in known:
        try:
            found: Sequence[ListedLimit] | None = entry.load()(application)
        except ImportError:  # the framework of this one is not installed
            continue
        if found is not None:
            return found
    kinds = ", ".join(sorted(entry.name for entry in known))
    raise click.UsageError(f"{name!r} is a {type(application).__name__}: limits are listed for applications of {kinds}")


def _imported(where: str) -> Any:
    module, _, name = where.partition(":")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.UsageError(f"{where!r} cannot be imported: {error}") from None
