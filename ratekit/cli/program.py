"""The program: its commands, its help, and its exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

import ratekit
from ratekit.cli import completion, counters, db, doctor, explain, limits, mode, overrides, report, rules, serve, violations
from ratekit.core.errors import ConfigurationError, DatabaseUnavailable, RateLimitUnavailable, SourceUnavailable
from ratekit.core.outages import sentence

USAGE, STORE, INTERRUPTED = 2, 3, 130
COMMANDS: tuple[click.Command, ...] = (
    counters.check,
    counters.inspect,
    counters.reset,
    overrides.overrides,
    mode.mode,
    explain.explain,
    rules.rules,
    limits.limits,
    report.report,
    violations.violations,
    doctor.doctor,
    db.db,
    serve.serve,
    completion.completion,
)

HELP = """See rate limits, and change them, in the store that holds their counters.

\b
Begin with the store: is it fit for limits?
  export RATE_LIMIT_STORE_URL=redis://localhost:6379
  ratekit doctor

\b
Why is this request refused?
  ratekit inspect /search user:42
  ratekit explain /search user:42 --limit 100/min

\b
Let a customer do more, or block an abuser:
  ratekit overrides set /search user:42 --max-requests 500 --ttl 24h
  ratekit overrides set /search user:13 --max-requests 0 --note 'scraper'

\b
Stop refusing, in every process, within a second:
  ratekit mode monitor --note 'the new limits are on trial'

\b
Which limit would affect at most one client in a hundred?
  ratekit report --share 1%

\b
Change limits without a deploy:
  ratekit rules validate rules.yaml
  ratekit rules diff 'redis://localhost/0?rules=chat' rules.yaml

\b
Limit a script:
  ratekit check deploys team:shop --limit 3/h && ./deploy

\b
Limit services in any language, over HTTP:
  ratekit serve --demo

\b
Exit codes:
  0  done; for check: the request passes
  1  for check: the request is refused; for rules validate: a document makes no sense
  2  an argument is wrong or missing
  3  the store, the database or the source of rules does not answer; for doctor: there is a problem
"""

program = click.Group(
    "ratekit",
    help=HELP,
    commands={str(command.name): command for command in COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(ratekit.__version__, prog_name="ratekit")(program)


def run(
    arguments: Sequence[str] | None = None,
    name: str = "ratekit",
    defaults: Mapping[str, Any] | None = None,
    more: Sequence[click.Command] = (),
) -> int:
    """Run the program and return its exit code. An error is one sentence on stderr.

    name is the name of the program in its messages; defaults are values for options of every command; more are commands
    of the application that the program runs in.
    """
    logging.getLogger("ratekit").addHandler(logging.NullHandler())  # an error is printed once
    try:
        context = {"color": _color(), "default_map": _default_map(program, defaults or {})}
        return _code(_with_commands(more).main(arguments, name, standalone_mode=False, **context))  # type: ignore[arg-type]
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click before 8.2 prints the help itself
            click.echo(error.format_message())
            return USAGE
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        return _fail(error.format_message().rstrip(".") + where, USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), USAGE)
    except ConfigurationError as error:
        return _fail(str(error), USAGE)
    except RateLimitUnavailable as error:
        return _fail(sentence("the store", error.reason), STORE)
    except (DatabaseUnavailable, SourceUnavailable) as error:
        return _fail(str(error), STORE)
    except click.Abort:
        return _fail("interrupted", INTERRUPTED)
    except SystemExit:  # so click ends completion, and a program whose output nobody reads any more
        return 0


def _with_commands(more: Sequence[click.Command]) -> click.Group:
    if not more:
        return program
    commands = {**program.commands, **{str(command.name): command for command in more}}
    return click.Group(
        program.name, commands, help=program.help, params=program.params, context_settings=program.context_settings
    )


def _default_map(group: click.Group, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _default_map(command, defaults) if isinstance(command, click.Group) else defaults
        for name, command in group.commands.items()
    }


def _code(answer: Any) -> int:
    return answer if isinstance(answer, int) else 0


def _color() -> bool | None:
    """Whether to colour the output. None leaves it to click, which colours terminals only."""
    return False if os.environ.get("NO_COLOR") else None


def _fail(sentence: str, code: int) -> int:
    line = " ".join(sentence.split())
    sys.stderr.write(f"ratekit: {line}\n")
    return code
