"""overrides: set, get, delete, list and clear a subject's own numbers."""

from __future__ import annotations

import functools
import sys
from dataclasses import asdict
from typing import Any

import click

from ratekit import overrides as library
from ratekit.cli.checks import override_line
from ratekit.cli.session import Function, Seconds, Session, operator, table, with_store
from ratekit.explanations import describe_override, shown
from ratekit.overrides import Override


@click.group()
def overrides() -> None:
    """Set, get, delete, list and clear a subject's own numbers.

    \b
    Examples:
      ratekit overrides set /search --org 1 --project 42 --max-requests 500 --expiry 120 --ttl 24h
      ratekit overrides set /search user:42 --unlimited --note 'load test'
      ratekit overrides list --org 1
    """


def with_subject(function: Function) -> Function:
    """Give a command the arguments that say whose override on what is meant."""

    @click.argument("endpoint")
    @click.argument("subject", required=False)
    @click.option("--org", "org_id", help="The organisation, with --project in place of SUBJECT.")
    @click.option("--project", "project_id", help="The project.")
    @click.option("--suffix", "key_suffix", help="Means the elements of requests: /elements.")
    @functools.wraps(function)
    def command(*args: Any, **options: Any) -> Any:
        names = ("endpoint", "subject", "org_id", "project_id", "key_suffix")
        return function(*args, who={name: options.pop(name) for name in names}, **options)

    return command


@overrides.command("set")
@with_subject
@click.option("--max-requests", type=int, help="How many requests; 0 blocks.")
@click.option("--expiry", type=Seconds(), help="How long the window is: 60, 90s, 15min, 1h.")
@click.option("--burst", type=int, help="The capacity of a token bucket.")
@click.option("--unlimited", is_flag=True, help="Lift the limit.")
@click.option("--limit", help="The name of the limit that is meant, if it is not the policy's first.")
@click.option("--ttl", "override_ttl", type=Seconds(), help="When the override ends by itself: 24h, 7d.")
@click.option("--note", help="Why.")
@click.option("--by", "set_by", default=operator, help="Who sets it; by default, who is logged in.")
@with_store
def set_(session: Session, who: dict[str, Any], **numbers: Any) -> None:
    """Write the numbers of SUBJECT on ENDPOINT, in place of those that it had. The next request goes by them.

    \b
    Examples:
      ratekit overrides set /search --org 1 --project 42 --max-requests 500 --expiry 120 --ttl 24h
      ratekit overrides set /search user:42 --limit hour --max-requests 10000 --note 'ticket 77'
      ratekit overrides set /webhook '*/webhook' --unlimited
    """
    override = library.set_rate_limit_override(session.limiter, **who, **numbers)
    session.tell(asdict(override), [f"set: {_line(override)}"])


@overrides.command()
@with_subject
@with_store
def get(session: Session, who: dict[str, Any]) -> None:
    """Show the override of SUBJECT on ENDPOINT."""
    override = library.get_rate_limit_override(session.limiter, **who)
    session.tell(override and asdict(override), [override_line(override)])


@overrides.command()
@with_subject
@click.option("--limit", help="Only what the override says of the limit of this name.")
@with_store
def delete(session: Session, who: dict[str, Any], limit: str | None) -> None:
    """Delete the override of SUBJECT on ENDPOINT."""
    existed = library.delete_rate_limit_override(session.limiter, **who, limit=limit)
    session.tell({"deleted": existed}, ["deleted" if existed else "there was none"])


@overrides.command("list")
@click.option("--endpoint", help="Only those of an endpoint.")
@click.option("--org", "org_id", help="Only those of an organisation.")
@click.option("--page-size", type=int, help="At least so many at a time.")
@click.option("--cursor", help="Where the page before has ended.")
@with_store
def list_(session: Session, **options: Any) -> None:
    """List overrides, all or those of an endpoint or an organisation.

    \b
    Examples:
      ratekit overrides list --org 1
      ratekit overrides list --endpoint /search --json | jq -r '.overrides[].subject'
    """
    page = library.list_rate_limit_overrides(session.limiter, **options)
    ordered = sorted(page, key=lambda override: (override.endpoint or "", override.subject or ""))
    rows = [(override.endpoint, override.subject, describe_override(override)) for override in ordered]
    lines = table(("endpoint", "subject", "override"), rows) if rows else ["there are none"]
    lines += [f"more: --cursor {page.cursor}"] if page.cursor else []
    session.tell({"overrides": [asdict(override) for override in ordered], "cursor": page.cursor}, lines)


@overrides.command()
@click.option("--endpoint", help="Only those of an endpoint.")
@click.option("--org", "org_id", help="Only those of an organisation.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_store
def clear(session: Session, endpoint: str | None, org_id: str | None, yes: bool) -> None:
    """Delete overrides, all or those of an endpoint or an organisation.

    \b
    Example:
      ratekit overrides clear --org 1 --yes
    """
    which = [f"of endpoint {endpoint!r}"] if endpoint else []
    which += [f"of organisation {org_id!r}"] if org_id else []
    if not yes:
        _confirm(f"Delete every override {' and '.join(which)}".rstrip() + "?")
    count = library.clear_rate_limit_overrides(session.limiter, endpoint=endpoint, org_id=org_id)
    session.tell({"deleted": count}, [f"deleted: {count}"])


def _confirm(prompt: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("clear deletes many at once, and nobody is there to be asked: give --yes")
    click.confirm(prompt, abort=True, err=True)


def _line(override: Override) -> str:
    where = f"{shown(override.subject or '')} on {shown(override.endpoint or '')}"
    return f"{where}: {describe_override(override)}"
