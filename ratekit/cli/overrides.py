"""The commands of the group overrides: set, get, delete, list, clear, export, import, history and copy."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

import click

from ratekit.admin import overrides as admin_overrides
from ratekit.admin.explain import describe_override, printable
from ratekit.admin.override_lines import override_as_line, override_from_line
from ratekit.admin.overrides import Override
from ratekit.cli.counters import override_line
from ratekit.cli.questions import every_rule_of, limit_titles, load_rules, name_of_limit
from ratekit.cli.session import (
    Function,
    Seconds,
    Session,
    Time,
    operator,
    table,
    warn_of_hash,
    with_rules,
    with_store,
)
from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import ALL_ENDPOINTS, ELEMENTS_SUFFIX
from ratekit.database.urls import URL_VARIABLE as DATABASE_VARIABLE
from ratekit.web.plans import as_rule_policy
from ratekit.web.table import Rules

if TYPE_CHECKING:
    from ratekit.admin.durable_overrides import Change, DurableOverrides

_PAGE = 1000
_NUMBERS = ("max_requests", "expiry", "burst", "until")


@click.group(short_help="Set, list, copy and delete a subject's own numbers.")
def overrides() -> None:
    """Set, get, delete, list, clear, export and import overrides: a subject's own numbers on an endpoint.

    With a database, overrides last there, with their history, and the store has copies of them.

    \b
    Examples:
      ratekit overrides set /search --org 1 --project 42 --max-requests 500 --expiry 120 --ttl 24h
      ratekit overrides set /search user:42 --unlimited --note 'load test'
      ratekit overrides list --org 1
      ratekit overrides export > overrides.jsonl
    """


def with_database(function: Function) -> Function:
    """Decorate a command: it gets the option that names the database in which overrides last."""
    return click.option(
        "--database",
        metavar="URL",
        envvar=DATABASE_VARIABLE,
        show_envvar=True,
        help="The database in which overrides last, beside their copies in the store.",
    )(function)


@contextmanager
def _durable(session: Session, database: str | None) -> Iterator[DurableOverrides]:
    if not database:
        raise click.UsageError(f"no database is given: set {DATABASE_VARIABLE}, or give --database postgresql://…")
    from ratekit.admin.durable_overrides import DurableOverrides

    overrides = DurableOverrides(database, session.limiter)
    try:
        yield overrides
    finally:
        overrides.close()


def with_subject(function: Function) -> Function:
    """Decorate a command: it gets the arguments that name one override."""

    @click.argument("endpoint")
    @click.argument("subject", required=False)
    @click.option("--org", "org_id", help="The organisation, with --project in place of SUBJECT.")
    @click.option("--project", "project_id", help="The project, with --org in place of SUBJECT.")
    @click.option("--suffix", "key_suffix", help="The counters of elements instead of requests: /elements.")
    @functools.wraps(function)
    def command(*args: Any, **options: Any) -> Any:
        names = ("endpoint", "subject", "org_id", "project_id", "key_suffix")
        who = {name: options.pop(name) for name in names}
        ids = [who["org_id"] is not None, who["project_id"] is not None]
        if any(ids) if who["subject"] is not None else not all(ids):
            raise click.UsageError("whose override it is, is not clear: give SUBJECT, or --org and --project")
        return function(*args, who=who, **options)

    return command


@overrides.command("set", short_help="Write the numbers of a subject on an endpoint.")
@with_subject
@click.option("--max-requests", type=int, help="The maximum; 0 blocks the subject.")
@click.option("--expiry", type=Seconds(), help="The window: 60, 90s, 15min, 1h.")
@click.option("--burst", type=int, help="The capacity of a token bucket.")
@click.option("--unlimited", is_flag=True, help="Lift the limit.")
@click.option("--until", type=Time(), help="Refuse everything until then: 2026-12-01T08:00:00Z, or seconds since the epoch.")
@click.option("--limit", help="The name of the limit; by default the policy's first.")
@click.option("--ttl", "override_ttl", type=Seconds(), help="When the override ends by itself: 24h, 7d.")
@click.option("--note", help="Why.")
@click.option("--by", "set_by", default=operator, help="Who sets it; by default the user who runs this.")
@with_rules
@click.option("--force", is_flag=True, help="Write it even if it would match nothing.")
@with_database
@with_store
def set_(
    session: Session, who: dict[str, Any], rules: str | None, force: bool, database: str | None, **numbers: Any
) -> None:
    """Write the numbers of SUBJECT on ENDPOINT, in place of those that it had. The next request uses them.

    ENDPOINT is a route or a rule as the application declares it, not the path of one request. There are no wildcards, but
    '*' alone is for all endpoints of SUBJECT, wherever an override of the endpoint says nothing of a limit.
    With --rules, an endpoint or a limit that the application does not have is refused, unless you --force it.
    With a database, the override lasts there, and is copied to the store.

    \b
    Examples:
      ratekit overrides set /search --org 1 --project 42 --max-requests 500 --expiry 120 --ttl 24h
      ratekit overrides set /search user:42 --limit hour --max-requests 10000 --note 'ticket 77'
      ratekit overrides set '/items/{id}' user:42 --max-requests 10 --rules shop.limits:RULES
      ratekit overrides set /webhook '*/webhook' --unlimited
      ratekit overrides set '*' user:42 --until 2026-12-01T08:00:00Z --note abuse
    """
    if not numbers["unlimited"] and all(numbers[name] is None for name in _NUMBERS):
        raise click.UsageError("the override has no numbers: give --max-requests, --expiry, --burst, --until or --unlimited")
    titles = _titles(who["endpoint"], rules) if rules and who["endpoint"] != ALL_ENDPOINTS else {}
    numbers["limit"] = _named(numbers["limit"], titles)
    _refuse_no_match([*_wildcards(who), *(_unknown(who, numbers["limit"], rules, titles) if rules else ())], force)
    warn_of_hash(who["subject"])
    if database:
        override = _set_durable(session, database, who, numbers)
    else:
        override = admin_overrides.set_rate_limit_override(session.limiter, **who, **numbers)
    session.answer(asdict(override), [f"set: {_line(override)}"])


def _set_durable(session: Session, database: str, who: dict[str, Any], numbers: dict[str, Any]) -> Override:
    ttl, reason = numbers.pop("override_ttl"), numbers.pop("note")
    until = None if ttl is None else time.time() + ttl
    with _durable(session, database) as durable:
        made = durable.set(**who, **numbers, valid_until=until, reason=reason)
    if not made.is_copied:
        click.echo(
            "ratekit: warning: the store does not answer: a process that follows the database copies it later", err=True
        )
    return made.override


@overrides.command()
@with_subject
@with_store
def get(session: Session, who: dict[str, Any]) -> None:
    """Show the override of SUBJECT on ENDPOINT.

    \b
    Example:
      ratekit overrides get /search --org 1 --project 42
    """
    warn_of_hash(who["subject"])
    override = admin_overrides.get_rate_limit_override(session.limiter, **who)
    session.answer(override and asdict(override), [override_line(override)])


@overrides.command()
@with_subject
@click.option("--limit", help="Delete only the numbers of the limit of this name.")
@click.option("--note", help="Why.")
@click.option("--by", "deleted_by", default=operator, help="Who deletes it; by default the user who runs this.")
@with_database
@with_store
def delete(
    session: Session, who: dict[str, Any], limit: str | None, note: str | None, deleted_by: str | None, database: str | None
) -> None:
    """Delete the override of SUBJECT on ENDPOINT.

    \b
    Examples:
      ratekit overrides delete /search --org 1 --project 42
      ratekit overrides delete /search user:42 --limit hour
    """
    warn_of_hash(who["subject"])
    limit = _named(limit, {})
    if database:
        with _durable(session, database) as durable:
            existed = durable.delete(**who, limit=limit, reason=note, deleted_by=deleted_by)
    else:
        existed = admin_overrides.delete_rate_limit_override(session.limiter, **who, limit=limit)
    session.answer({"deleted": existed}, ["deleted" if existed else "there was none"])


def with_selection(function: Function) -> Function:
    """Decorate a command: it gets the options that select overrides."""
    endpoint = click.option("--endpoint", help="Only those of an endpoint.")
    return endpoint(click.option("--org", "org_id", help="Only those of an organisation.")(function))


@overrides.command("list")
@with_selection
@click.option("--page-size", type=int, help="The least number of overrides on a page; by default all are shown.")
@click.option("--cursor", help="Where the page before has ended.")
@with_store
def list_(session: Session, **options: Any) -> None:
    """List all overrides, or those of an endpoint or an organisation.

    \b
    Examples:
      ratekit overrides list --org 1
      ratekit overrides list --endpoint /search --json | jq -r '.overrides[].subject'
    """
    page = admin_overrides.list_rate_limit_overrides(session.limiter, **options)
    ordered = sorted(page, key=lambda override: (override.endpoint or "", override.subject or ""))
    rows = [(override.endpoint, override.subject, describe_override(override)) for override in ordered]
    lines = table(("endpoint", "subject", "override"), rows) if rows else ["there are none"]
    lines += [f"more: --cursor {page.cursor}"] if page.cursor else []
    session.answer({"overrides": [asdict(override) for override in ordered], "cursor": page.cursor}, lines)


@overrides.command()
@with_selection
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_database
@with_store
def clear(session: Session, endpoint: str | None, org_id: str | None, yes: bool, database: str | None) -> None:
    """Delete all overrides, or those of an endpoint or an organisation; with a database, in both.

    \b
    Example:
      ratekit overrides clear --org 1 --yes
    """
    which = [f"of endpoint {endpoint!r}"] if endpoint else []
    which += [f"of organisation {org_id!r}"] if org_id else []
    if not yes:
        _confirm(f"Delete every override {' and '.join(which)}".rstrip() + "?")
    durable = _clear_durable(session, database, endpoint, org_id) if database else 0
    count = durable + admin_overrides.clear_rate_limit_overrides(session.limiter, endpoint=endpoint, org_id=org_id)
    session.answer({"deleted": count}, [f"deleted: {count}"])


def _clear_durable(session: Session, database: str, endpoint: str | None, org_id: str | None) -> int:
    """Delete what lasts, with its copies: a process that follows the database would write them to the store again."""
    with _durable(session, database) as durable:
        found = [one.override for one in durable.list(endpoint=endpoint) if org_id in (None, one.override.org_id)]
        for override in found:
            durable.delete(endpoint=str(override.endpoint), subject=override.subject, deleted_by=operator())
    return len(found)


@overrides.command("export", short_help="Print overrides as lines of JSON.")
@with_selection
@with_store
def export(session: Session, endpoint: str | None, org_id: str | None) -> None:
    """Print overrides as lines of JSON, which import reads: a copy for a store that forgets them in a restart.

    \b
    Examples:
      ratekit overrides export > overrides.jsonl
      ratekit overrides export --store redis://old | ratekit overrides import --store redis://new
    """
    for override in _every(session, endpoint, org_id):
        if override.unreadable or override.endpoint is None or override.subject is None:
            where = f"{printable(str(override.subject))} on {printable(str(override.endpoint))}"
            click.echo(f"ratekit: warning: the override of {where} is unreadable, and is not exported", err=True)
        else:
            click.echo(override_as_line(override, time.time()))


@overrides.command("import", short_help="Write the overrides that export printed.")
@click.argument("file", type=click.File(encoding="utf-8"), default="-")
@with_store
def import_(session: Session, file: TextIO) -> None:
    """Write the overrides that export printed, from FILE or from the standard input.

    An override that is there already is replaced, others stay. Nothing is written if a line is wrong. An override that has
    ended since it was exported is left out.

    \b
    Example:
      ratekit overrides import overrides.jsonl
    """
    found = list(_parsed(file))
    living = [override for override in found if override.expires_in is None or override.expires_in > 0]
    for override in living:
        admin_overrides.restore_rate_limit_override(session.limiter, override)
    values = {"imported": len(living), "ended": len(found) - len(living)}
    session.answer(values, [f"imported: {values['imported']}" + (f", ended: {values['ended']}" if values["ended"] else "")])


@overrides.command(short_help="Show who has changed overrides, when and why.")
@click.option("--endpoint", help="Only those of an endpoint.")
@click.option("--subject", help="Only those of a subject.")
@click.option("--most", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many changes.")
@with_database
@with_store
def history(session: Session, database: str | None, **options: Any) -> None:
    """Show what was set, deleted and has ended, the latest first: who, when and why. It needs a database.

    \b
    Example:
      ratekit overrides history --subject user:42
    """
    with _durable(session, database) as durable:
        changes = durable.history(**options)
    rows = [(*_when_and_what(change), _numbers(change), change.changed_by, change.reason) for change in changes]
    lines = table(("when", "what", "subject", "endpoint", "numbers", "by", "why"), rows) if rows else ["there are none"]
    session.answer([_as_json(change) for change in changes], lines)


@overrides.command("copy", short_help="Copy the database's overrides to the store.")
@click.option("--complete", is_flag=True, help="Write all of them, whatever the store is said to have.")
@click.option("--follow", is_flag=True, help="Go on until you press Ctrl-C: within a second after each change.")
@with_database
@with_store
def copy(session: Session, database: str | None, complete: bool, follow: bool) -> None:
    """Copy the overrides of the database to the store: those that the store lacks, as after a restart without a disk.

    \b
    Examples:
      ratekit overrides copy
      ratekit overrides copy --follow
    """
    with _durable(session, database) as durable:
        copied = durable.copy(complete=complete)
        session.answer(copied._asdict(), [f"written: {copied.written}, deleted: {copied.deleted}"])
        if follow:
            follower = durable.follow()
            try:
                while True:
                    time.sleep(3600)
            finally:
                follower.close()


def _when_and_what(change: Change) -> tuple[str, ...]:
    return change.changed_at.isoformat(timespec="seconds"), change.action, change.subject, change.endpoint


def _numbers(change: Change) -> str:
    return " ".join(f"{name}={text}" for name, text in change.fields.items())


def _as_json(change: Change) -> dict[str, Any]:
    times = {"changed_at": change.changed_at.isoformat()}
    times["valid_until"] = "" if change.valid_until is None else change.valid_until.isoformat()
    return change._asdict() | times | ({} if change.valid_until else {"valid_until": None})


def _every(session: Session, endpoint: str | None, org_id: str | None) -> Iterator[Override]:
    seen: set[tuple[str | None, str | None]] = set()
    cursor: str | None = None
    while True:
        page = admin_overrides.list_rate_limit_overrides(
            session.limiter, endpoint=endpoint, org_id=org_id, page_size=_PAGE, cursor=cursor
        )
        fresh = [override for override in page if (override.endpoint, override.subject) not in seen]
        seen |= {(override.endpoint, override.subject) for override in fresh}
        yield from fresh
        cursor = page.cursor
        if cursor is None:
            return


def _parsed(file: TextIO) -> Iterator[Override]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            yield override_from_line(line, time.time())
        except ConfigurationError as error:
            raise click.UsageError(f"line {number} of {file.name} is not an override: {error}") from None


def _wildcards(who: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the subject: "*" stands for itself, and only in the subject of a whole endpoint."""
    for name in ("subject", "org_id", "project_id"):
        value = who[name] or ""
        if "*" in value and value != f"*{who['endpoint']}":
            yield f"{name.removesuffix('_id')} {value!r} has a wildcard, and overrides have none"


def _titles(endpoint: str, where: str) -> dict[str, str]:
    """Return the titles of the limits that --rules has for an endpoint, by name; none if one depends on the request."""
    rules = load_rules(where)
    if isinstance(rules, Rules):
        return limit_titles(rules, endpoint)
    return {limit.name: limit.title for limit in as_rule_policy(endpoint, rules).limits}


def _named(limit: str | None, titles: Mapping[str, str]) -> str | None:
    """Return the name of a limit that was given by its name, or by its title."""
    name = None if limit is None else name_of_limit(limit, titles)
    if name is not None and " " in name:
        raise click.UsageError(
            f"--limit {name!r} is no name of a limit. If it is the title that clients are shown, such as 'post minute' for "
            "post-60s: `limits` and `inspect` show the name"
        )
    return name


def _unknown(who: dict[str, Any], limit: str | None, where: str, titles: Mapping[str, str]) -> Iterator[str]:
    """Yield what the application's rules do not have: the endpoint, or the limit."""
    rules, endpoint = load_rules(where), who["endpoint"]
    if endpoint == ALL_ENDPOINTS:
        return
    own = endpoint.removesuffix(ELEMENTS_SUFFIX).removesuffix(":")
    found = every_rule_of(rules, endpoint) or every_rule_of(rules, own) if isinstance(rules, Rules) else ()
    if isinstance(rules, Rules) and not found:
        yield f"no limit is declared for the endpoint {printable(endpoint)!r}"
        return
    if found and found[0].endpoint not in (endpoint, own):
        yield f"the limits of {printable(endpoint)!r} are counted under {printable(found[0].endpoint)!r}"
    if limit is not None and titles and limit not in titles:  # none are known where they depend on the request
        yield f"limit {limit!r} is not one of {', '.join(titles)}"


def _refuse_no_match(faults: list[str], force: bool) -> None:
    if faults and not force:
        raise click.UsageError(f"the override would match nothing: {'; '.join(faults)}. Give --force to write it anyway")
    for fault in faults:
        click.echo(f"ratekit: warning: {fault}", err=True)


def _confirm(prompt: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("clear deletes many overrides, and there is no terminal to ask on: give --yes")
    click.confirm(prompt, abort=True, err=True)


def _line(override: Override) -> str:
    where = f"{printable(override.subject or '')} on {printable(override.endpoint or '')}"
    return f"{where}: {describe_override(override)}"
