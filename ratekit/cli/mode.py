"""The command mode: the fleet mode, which every process follows."""

from __future__ import annotations

from dataclasses import asdict

import click

from ratekit.admin.explain import printable
from ratekit.admin.fleet_mode import FleetMode, clear_fleet_mode, get_fleet_mode, set_fleet_mode
from ratekit.cli.session import Session, coloured, operator, with_store
from ratekit.core.modes import RateLimitMode

_CLEAR = "clear"


@click.command(short_help="Show or set the mode of every process.")
@click.argument(
    "to", metavar="[on|off|monitor|clear]", required=False, type=click.Choice([*map(str, RateLimitMode), _CLEAR])
)
@click.option("--note", help="Why.")
@click.option("--by", "set_by", default=operator, help="Who sets it; by default the user who runs this.")
@with_store
def mode(session: Session, to: str | None, note: str | None, set_by: str | None) -> None:
    """Show, set or clear the fleet mode: the mode that is kept in the store for every process.

    Processes with fleet_mode=True and ratekit serve follow it within a second. It can only weaken the mode of their
    environment:

    \b
      off       nothing is counted, and every request passes
      monitor   requests are counted, and every request passes
      on        the environment of each process decides
      clear     the same, and the store has no mode any more

    \b
    Examples:
      ratekit mode
      ratekit mode monitor --note 'the new limits are on trial'
      ratekit mode clear
    """
    if to == _CLEAR:
        clear_fleet_mode(session.limiter)
    elif to is not None:
        set_fleet_mode(session.limiter, to, note=note, set_by=set_by)
    found: FleetMode | None = get_fleet_mode(session.limiter)
    session.answer(found and asdict(found), [_line(found)])


def _line(found: FleetMode | None) -> str:
    if found is None:
        return "the store has no mode: the environment of each process decides"
    note = f", note {found.note!r}" if found.note else ""
    return f"{coloured(printable(found.mode))}{f', set by {printable(found.set_by)}' if found.set_by else ''}{note}"
