"""`manage.py ratekit …`: the command line of ratekit, on the store, the prefix and the limits of the project."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ratekit.core.errors import ConfigurationError, MissingExtraError
from ratekit_django.conf import conf
from ratekit_django.declared_limits import declared


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
        from ratekit.cli import hosted
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        raise CommandError(str(MissingExtraError("manage.py ratekit", "cli")), returncode=2) from None
    try:
        from ratekit_django.listing import limits

        at = "ratekit_django.declared_limits:declared"
        host = hosted.Host("manage.py ratekit", conf.store_url, conf.prefix, declared, at, conf.database_url)
        return hosted.run(arguments, host, [limits])
    except ConfigurationError as error:
        raise CommandError(str(error), returncode=2) from None
