"""The program: its table of commands, and what its exit codes mean."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

import ratekit
from ratekit.cli import checks, completion, doctor, explain, mode, overrides, report
from ratekit.errors import ConfigurationError, RateLimitUnavailable

USAGE, STORE, INTERRUPTED = 2, 3, 130
COMMANDS: tuple[click.Command, ...] = (
    checks.check,
    checks.inspect,
    checks.reset,
    overrides.overrides,
    mode.mode,
    explain.explain,
    report.report,
    doctor.doctor,
    completion.completion,
)

HELP = """Look at rate limits, and change them, in the store where they live.

\b
Examples:
  export RATE_LIMIT_STORE_URL=redis://localhost:6379
  ratekit check /search user:42 --limit 100/min
  ratekit explain /search user:42 --limit 100/min
  ratekit overrides set /search --org 1 --project 42 --max-requests 500 --ttl 24h
  ratekit mode monitor --note 'the new limits are on trial'
  ratekit report --share 1%
  ratekit doctor

\b
Exit codes:
  0  done; for check: the request may pass
  1  for check: the request is refused
  2  something was asked that makes no sense
  3  the store cannot tell
"""

program = click.Group(
    "ratekit",
    help=HELP,
    commands={str(command.name): command for command in COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(ratekit.__version__, prog_name="ratekit")(program)


def run(arguments: Sequence[str] | None = None, name: str = "ratekit", defaults: Mapping[str, Any] | None = None) -> int:
    """Run the program and return its exit code. What went wrong is one sentence on stderr.

    name is what it is called here, and defaults are values for options of every command.
    """
    logging.getLogger("ratekit").addHandler(logging.NullHandler())  # what is wrong is said once
    try:
        context = {"color": _color(), "default_map": _default_map(program, defaults or {})}
        return _code(program.main(arguments, name, standalone_mode=False, **context))  # type: ignore[arg-type]
    except click.UsageError as error:
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        return _fail(error.format_message().rstrip(".") + where, USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), USAGE)
    except ConfigurationError as error:
        return _fail(str(error), USAGE)
    except RateLimitUnavailable as error:
        return _fail(str(error), STORE)
    except click.Abort:
        return _fail("interrupted", INTERRUPTED)
    except SystemExit:  # the words for a shell are told, or who reads has seen enough: that is click's way to end
        return 0


def _default_map(group: click.Group, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _default_map(command, defaults) if isinstance(command, click.Group) else defaults
        for name, command in group.commands.items()
    }


def _code(answer: Any) -> int:
    return answer if isinstance(answer, int) else 0


def _color() -> bool | None:
    """None leaves it to click, which colours a terminal and nothing else."""
    return False if os.environ.get("NO_COLOR") else None


def _fail(sentence: str, code: int) -> int:
    line = " ".join(sentence.split())
    sys.stderr.write(f"ratekit: {line}\n")
    return code
