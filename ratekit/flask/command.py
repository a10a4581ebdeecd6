"""`flask ratekit …`: the limits of the application, and the command line of ratekit on its store."""

from __future__ import annotations

import sys

import click
from flask import current_app
from flask.cli import with_appcontext

from ratekit import stores
from ratekit.flask.extension import settings_of_app

_AT = "ratekit.flask.declared_limits:declared"
_UNPARSED = {"ignore_unknown_options": True, "help_option_names": [], "allow_interspersed_args": False}


@click.command("ratekit", context_settings=_UNPARSED, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@with_appcontext
def ratekit_command(arguments: tuple[str, ...]) -> None:
    """Look at rate limits, and change them: limits, overrides, mode, inspect, reset and so on."""
    # Imported late: every application has the command, and few processes run it.
    from ratekit.cli import hosted
    from ratekit.flask.declared_limits import declared

    settings = settings_of_app()
    url = settings.store_url or stores.default_url()
    host = hosted.Host("flask ratekit", url, settings.prefix, declared, _AT)
    sys.exit(hosted.run(list(arguments) or ["--help"], host, [limits]))


@click.command("limits")
def limits() -> None:
    """List the limits that the application declares: on views, on blueprints, by rules."""
    from ratekit.cli.session import table
    from ratekit.flask.declared_limits import every_limit

    rows = [one.row() for one in every_limit()]
    names = ["route", "methods", "limits", "by", "counted under", "declared by"]
    click.echo("\n".join(table(names, rows)) if rows else f"{current_app.name} declares no limits")
