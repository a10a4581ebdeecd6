"""The command line, `ratekit`: one module for each group of commands."""

from __future__ import annotations

import sys

from ratekit.core.errors import MissingExtraError


def main() -> None:
    """Run the program, and exit with its exit code."""
    try:
        from ratekit.cli.program import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write(f"ratekit: {MissingExtraError('the command line', 'cli')}\n")
        sys.exit(2)
    sys.exit(run())
