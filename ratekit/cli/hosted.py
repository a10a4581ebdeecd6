"""The command line within a framework's own (`manage.py ratekit`, `flask ratekit`): on what its application has set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click

from ratekit.cli import program
from ratekit.cli.session import rule_of
from ratekit.core.errors import ConfigurationError
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


def run(arguments: Sequence[str], host: Host, more: Sequence[click.Command] = ()) -> int:
    """Run the command line on an application's store, prefix and limits, and return its exit code. more are its commands."""
    with _store_named(host.store_url):
        return program.run(_with_limits(list(arguments), host), host.name, {"prefix": host.prefix}, more)


@contextmanager
def _store_named(url: str) -> Iterator[None]:
    """Name the store where the command line looks for it; not among the arguments, which others can see."""
    before = os.environ.get(URL_VARIABLE)
    os.environ[URL_VARIABLE] = url
    try:
        yield
    finally:
        del os.environ[URL_VARIABLE]
        os.environ |= {} if before is None else {URL_VARIABLE: before}


def _with_limits(arguments: list[str], host: Host) -> list[str]:
    """Say which limits an endpoint has, if that is asked and the application declares some."""
    told = {"--limit", "--rules"} & {argument.partition("=")[0] for argument in arguments}
    if not arguments or arguments[0] not in _ASKING or told:
        return arguments
    is_declared = any(_is_declared(argument, host.declared) for argument in arguments[1:])
    return [*arguments, "--rules", host.declared_at] if is_declared else arguments


def _is_declared(argument: str, declared: Rules) -> bool:
    try:
        return rule_of(declared, argument) is not None
    except ConfigurationError:
        return False  # an argument of another kind
