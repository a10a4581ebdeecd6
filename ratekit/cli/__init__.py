"""`ratekit`, the command line: one small module for each group of commands."""

from __future__ import annotations

import sys

from ratekit.errors import MissingExtraError


def main() -> None:
    """Run the program, and end the process with its exit code."""
    try:
        from ratekit.cli.program import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write(f"ratekit: {MissingExtraError('the command line', 'cli')}\n")
        sys.exit(2)
    sys.exit(run())
