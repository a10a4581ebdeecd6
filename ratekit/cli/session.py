"""What most commands share: the store, the format of the answer, and the options that name limits."""

from __future__ import annotations

import functools
import getpass
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from ratekit import stores
from ratekit.admin.explain import printable
from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import DEFAULT_PREFIX
from ratekit.core.limit_text import parse_cost, parse_seconds
from ratekit.core.outages import OnOutage
from ratekit.core.protocol import CostGiven
from ratekit.limiter.limiters import RateLimiter
from ratekit.web.identity import counted_subject

COST_HELP = "How much the request spends: 5, or by unit tokens=800,pages=2. By default what the application says, else 1."
_DEADLINE = 5.0  # seconds: no request waits for it
_COLOURS = {"ok": "green", "allowed": "green", "on": "green", "warning": "yellow", "monitor": "yellow", "problem": "red"}
_COLOURS |= {"refused": "red", "off": "red"}
_NUMBERS = ("max_requests", "expiry", "burst", "until", "unlimited")  # of an override
_HASHED = "what clients send is hashed in subjects, unless the limit says 'plain'"
Function = Callable[..., Any]


class Session:
    """One run of a command: its store, and the format of its answer."""

    def __init__(self, url: str | None, prefix: str, as_json: bool) -> None:
        if not url:
            raise click.UsageError(f"no store is given: set {stores.URL_VARIABLE}, or give --store redis://localhost:6379")
        if url.startswith("memory:"):
            warnings.filterwarnings("ignore", message="memory://")  # the next line says the same
            click.echo("ratekit: memory:// is empty at the start of each process, this one too", err=True)
        self.url = url
        self.as_json = as_json
        self.limiter = RateLimiter(url, prefix=prefix, on_outage=OnOutage.CLOSED, deadline=_DEADLINE)

    def answer(self, values: Any, lines: Iterable[str]) -> None:
        """Print values as JSON with --json, else the lines."""
        if self.as_json:
            indent = 2 if sys.stdout.isatty() else None
            click.echo(json.dumps(values, indent=indent))
        else:
            for line in lines:
                click.echo(line)


def with_store(function: Function) -> Function:
    """Decorate a command: it gets a session, and the options that make one."""

    @click.option(
        "--store", "url", metavar="URL", envvar=stores.URL_VARIABLE, show_envvar=True, help="The store with the counters."
    )
    @click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="The prefix of all keys.")
    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
    @functools.wraps(function)
    def command(url: str | None, prefix: str, as_json: bool, **options: Any) -> Any:
        session = Session(url, prefix, as_json)
        try:
            return function(session, **options)
        except ConfigurationError as error:
            if (told := _in_options(str(error))) != str(error):
                raise click.UsageError(told) from None
            raise
        finally:
            session.limiter.close()

    return command


def _in_options(sentence: str) -> str:
    """Return a sentence about arguments of functions as one about the options of the command that runs."""
    options = {str(one.name): one.opts[0] for one in click.get_current_context().command.params if one.opts[0][:2] == "--"}
    first, _, rest = sentence.partition(" ")
    if first in options:
        sentence = f"{options[first]} {rest.removeprefix('True ')}"
    for name, option in options.items():
        sentence = re.sub(rf"(?<![-\w]){name}(?=:|,|$)", option, sentence) if name in _NUMBERS else sentence
    return sentence


def warn_of_hash(subject: str | None) -> None:
    """Tell the subject that is counted, of a client that is named by what it sends."""
    if counted := counted_subject(subject or ""):
        click.echo(f"ratekit: warning: {_HASHED}: the subject that is counted would be {counted!r}", err=True)


def with_limits(function: Function) -> Function:
    """Decorate a command: it gets the options that name the limits of an endpoint."""
    limit = click.option(
        "--limit",
        "rates",
        multiple=True,
        metavar="[NAME=]RATE[@ALGORITHM]",
        help="A limit of the endpoint, such as 100/min, hour=5000/h or 100/min@sliding_window_log. Once for each limit.",
    )
    return limit(with_rules(function))


def with_rules(function: Function) -> Function:
    """Decorate a command: it gets the option that names the application's limits."""
    return click.option(
        "--rules",
        metavar="MODULE:NAME|SOURCE",
        help="Import the limits: of an application of FastAPI, a mapping of paths to limits, Rules, a Policy or a Limit. "
        "Or read them from a document of rules: its path, or the URL of its source.",
    )(function)


class Costs(click.ParamType):  # type: ignore[type-arg]
    """A cost: a whole number, or numbers by unit such as tokens=800,pages=2."""

    name = "cost"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> CostGiven:
        """Return the cost."""
        if isinstance(value, int | dict):
            return value
        try:
            return parse_cost(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A number of seconds, or a duration such as 90s, 15min, 24h or 7d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        try:
            return value if isinstance(value, float) else parse_seconds(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


class Time(click.ParamType):  # type: ignore[type-arg]
    """Seconds since the epoch, or a date and time with its zone such as 2026-12-01T08:00:00Z."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds since the epoch."""
        try:
            at = value if isinstance(value, float) else float(value) if value.isdigit() else datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a time: write it like 2026-12-01T08:00:00Z, or in seconds since the epoch", param, ctx
            )
        if isinstance(at, datetime) and at.tzinfo is None:
            self.fail(f"{value!r} has no time zone: add Z for UTC", param, ctx)
        return at.timestamp() if isinstance(at, datetime) else at


def operator() -> str | None:
    """Return the name of the user who runs the program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def coloured(word: str) -> str:
    """Return a word in the colour of its meaning. Only terminals show it."""
    return click.style(word, fg=_COLOURS.get(word), bold=word in _COLOURS)


def table(names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> list[str]:
    """Return the lines of a table."""
    cells = [[click.style(name.upper(), bold=True) for name in names]]
    cells += [["-" if item is None else printable(item) for item in row] for row in rows]
    widths = [max(len(click.unstyle(row[column])) for row in cells) for column in range(len(names))]
    return ["  ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - len(click.unstyle(cell)))
