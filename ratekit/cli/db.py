"""The commands of `ratekit db`: the tables of the database."""

from __future__ import annotations

import json

import click

from ratekit.database import urls

_DATABASE_PROBLEM = 3
with_database = click.option(
    "--database",
    "url",
    metavar="URL",
    envvar=urls.URL_VARIABLE,
    show_envvar=True,
    default=urls.DEFAULT_URL,
    show_default=True,
    help="The database.",
)
with_json = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


@click.group(short_help="Make and update the tables of the database.")
def db() -> None:
    """Make and update the tables of the database.

    It keeps rules, overrides, violations, and the tenants, plans and keys of the check service. No check waits for it.

    \b
    Examples:
      ratekit db upgrade
      ratekit db upgrade --database postgresql://ratekit@localhost/ratekit
      ratekit db status
    """


@db.command(short_help="Run the migrations that the database has not had.")
@with_database
@with_json
def upgrade(url: str, as_json: bool) -> int:
    """Run the migrations that the database has not had.

    Any number of processes may do this at the same time: one migrates, the others wait.

    \b
    Examples:
      ratekit db upgrade
      ratekit db upgrade --database postgresql://ratekit@localhost/ratekit
    """
    from ratekit.database import migrate

    ran = migrate.upgrade(url)
    _answer(url, migrate.HEAD, "migrated to" if ran else "already at", as_json)
    return 0


@db.command(short_help="Show which migration the database is at.")
@with_database
@with_json
def status(url: str, as_json: bool) -> int:
    """Show which migration the database is at. The exit code is 3 if it is not the newest.

    \b
    Example:
      ratekit db status --json
    """
    from ratekit.database import migrate

    found = migrate.revision_of(url)
    _answer(url, found, "at" if found == migrate.HEAD else f"behind {migrate.HEAD}: at", as_json)
    return 0 if found == migrate.HEAD else _DATABASE_PROBLEM


def _answer(url: str, migration: str | None, how: str, as_json: bool) -> None:
    where = urls.shown(url)
    line = f"{where} is {how} {migration or 'no migration'}"
    click.echo(json.dumps({"database": where, "migration": migration}) if as_json else line)
