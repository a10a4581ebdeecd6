"""mode: what the store tells every process to do with limits."""

from __future__ import annotations

from dataclasses import asdict

import click

from ratekit.cli.session import Session, coloured, operator, with_store
from ratekit.explanations import shown
from ratekit.fleet import FleetMode, clear_fleet_mode, get_fleet_mode, set_fleet_mode
from ratekit.modes import RateLimitMode

_CLEAR = "clear"


@click.command(short_help="Show or set the mode of every process.")
@click.argument(
    "to", metavar="[on|off|monitor|clear]", required=False, type=click.Choice([*map(str, RateLimitMode), _CLEAR])
)
@click.option("--note", help="Why.")
@click.option("--by", "set_by", default=operator, help="Who sets it; by default, who is logged in.")
@with_store
def mode(session: Session, to: str | None, note: str | None, set_by: str | None) -> None:
    """Show, set or clear the mode that the store has for every process.

    Processes that follow the store (fleet_mode=True) take it within a second. It weakens what their environment says and
    never strengthens it: off does not count, monitor counts and lets pass, on and clear leave it to the others.

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
    session.tell(found and asdict(found), [_line(found)])


def _line(found: FleetMode | None) -> str:
    if found is None:
        return "the store has no mode: what each process is told otherwise counts"
    note = f", note {found.note!r}" if found.note else ""
    return f"{coloured(shown(found.mode))}{f', set by {shown(found.set_by)}' if found.set_by else ''}{note}"
