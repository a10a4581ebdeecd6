"""`manage.py ratekit …`: the command line of ratekit, on the store, the prefix and the limits of the project."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ratekit.core.errors import ConfigurationError, MissingExtraError
from ratekit.stores import URL_VARIABLE
from ratekit.web.methods import split_method
from ratekit_django.conf import conf
from ratekit_django.declared_limits import declared

_ASKING = ("check", "explain", "inspect")
_RULES = ["--rules", "ratekit_django.declared_limits:declared"]


class Command(BaseCommand):
    """Passes its arguments on, as they are."""

    help = "Look at rate limits, and change them, in the store of RATEKIT: overrides, mode, inspect, reset, …"
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run from the command line; the exit codes are those of `ratekit`."""
        django_options = CommandParser(add_help=False, allow_abbrev=False)
        django_options.add_argument("--settings")
        django_options.add_argument("--pythonpath")
        sys.exit(run(django_options.parse_known_args(argv[2:])[1]))

    def add_arguments(self, parser: CommandParser) -> None:
        """Take everything, for call_command."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: Any, **options: Any) -> None:
        """Run from code; an exit code other than 0 is a CommandError."""
        output, errors = cast("TextIO", self.stdout), cast("TextIO", self.stderr)
        with redirect_stdout(output), redirect_stderr(errors):
            code = run(options["arguments"])
        if code:
            raise CommandError(f"ratekit ended with exit code {code}", returncode=code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line of ratekit on what the project says, and return its exit code."""
    try:
        from ratekit.cli import program
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        raise CommandError(str(MissingExtraError("manage.py ratekit", "cli")), returncode=2) from None
    try:
        with _store_named(conf.store_url):
            return program.run(_with_limits(list(arguments)), "manage.py ratekit", {"prefix": conf.prefix})
    except ConfigurationError as error:
        raise CommandError(str(error), returncode=2) from None


@contextmanager
def _store_named(url: str) -> Iterator[None]:
    """Name the project's store where the command line looks for it; not among the arguments, which others can see."""
    before = os.environ.get(URL_VARIABLE)
    os.environ[URL_VARIABLE] = url
    try:
        yield
    finally:
        del os.environ[URL_VARIABLE]
        os.environ |= {} if before is None else {URL_VARIABLE: before}


def _with_limits(arguments: list[str]) -> list[str]:
    """Say which limits an endpoint has, if that is asked and the project declares some."""
    told = {"--limit", "--rules"} & {argument.partition("=")[0] for argument in arguments}
    if not arguments or arguments[0] not in _ASKING or told:
        return arguments
    return arguments + (_RULES if any(map(_is_declared, arguments[1:])) else [])


def _is_declared(argument: str) -> bool:
    try:
        method, endpoint = split_method(argument, "the endpoint")
    except ConfigurationError:
        return False  # an argument of another kind
    return declared.find(method or "GET", endpoint) is not None
