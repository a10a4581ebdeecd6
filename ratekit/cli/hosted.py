"""The command line within a framework's own (`manage.py ratekit`, `flask ratekit`): on what its application has set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click

from ratekit.cli import program
from ratekit.cli.questions import limit_titles, name_of_limit, rules_of
from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import ALL_ENDPOINTS
from ratekit.database.urls import URL_VARIABLE as DATABASE_VARIABLE
from ratekit.stores import URL_VARIABLE
from ratekit.web.table import Rules

_ASKING = ("check", "explain", "inspect")


class Host(NamedTuple):
    """An application that has the command line within its own."""

    name: str  # what a user types: "manage.py ratekit"
    store_url: str
    prefix: str
    declared: Rules  # the limits that it declares
    declared_at: str  # where --rules finds them: "module:name"
    database_url: str | None = None  # where overrides last and violations are written


def run(arguments: Sequence[str], host: Host, more: Sequence[click.Command] = ()) -> int:
    """Run the command line on an application's store, prefix and limits, and return its exit code. more are its commands."""
    named = {URL_VARIABLE: host.store_url}
    if host.database_url is not None and DATABASE_VARIABLE not in os.environ:
        named[DATABASE_VARIABLE] = host.database_url
    with _environment(named):
        return program.run(_with_limits(list(arguments), host), host.name, {"prefix": host.prefix}, more)


@contextmanager
def _environment(named: dict[str, str]) -> Iterator[None]:
    """Name servers where the command line looks for them; not among the arguments, which others can see."""
    before = {name: os.environ[name] for name in named if name in os.environ}
    os.environ |= named
    try:
        yield
    finally:
        for name in named:
            del os.environ[name]
        os.environ |= before


def _with_limits(arguments: list[str], host: Host) -> list[str]:
    """Say which limits an endpoint has, if that is asked and the application declares some."""
    told = {"--limit", "--rules"} & {argument.partition("=")[0] for argument in arguments}
    known = ["--rules", host.declared_at]
    if arguments[:2] == ["overrides", "set"]:
        return arguments if "--rules" in told else [*arguments[:2], *known, *arguments[2:]]
    if arguments[:2] == ["overrides", "delete"]:
        return _with_name(arguments, host)
    if not arguments or arguments[0] not in _ASKING or told:
        return arguments
    is_declared = any(_is_declared(argument, host.declared) for argument in arguments[1:])
    return [*arguments, *known] if is_declared else arguments


def _with_name(arguments: list[str], host: Host) -> list[str]:
    """Name the limit of --limit where it was given by its title, which clients are shown."""
    endpoint = _endpoint_of(arguments[2:])
    titles = limit_titles(host.declared, endpoint) if _is_declared(endpoint, host.declared) else {}
    named = list(arguments)
    for at, argument in enumerate(arguments):
        if argument.startswith("--limit="):
            named[at] = f"--limit={name_of_limit(argument.removeprefix('--limit='), titles)}"
        elif at and arguments[at - 1] == "--limit":
            named[at] = name_of_limit(argument, titles)
    return named


def _endpoint_of(arguments: list[str]) -> str:
    return next((argument for argument in arguments if not argument.startswith("-")), ALL_ENDPOINTS)


def _is_declared(argument: str, declared: Rules) -> bool:
    try:
        return bool(rules_of(declared, argument))
    except ConfigurationError:
        return False  # an argument of another kind
