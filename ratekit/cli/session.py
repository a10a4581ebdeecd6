"""What most commands share: the store, the form of the output, and which limits are meant."""

from __future__ import annotations

import functools
import getpass
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import click

from ratekit import stores
from ratekit.errors import ConfigurationError
from ratekit.explanations import shown
from ratekit.keys import DEFAULT_PREFIX
from ratekit.limiter import RateLimiter
from ratekit.limits import Limit, Policy, parse_seconds
from ratekit.outage import OnOutage
from ratekit.rules import Rules, as_rule_policy

_DEADLINE = 5.0  # seconds: nobody's request waits for this
_COLOURS = {"ok": "green", "allowed": "green", "on": "green", "warning": "yellow", "monitor": "yellow", "problem": "red"}
_COLOURS |= {"refused": "red", "off": "red"}
Function = Callable[..., Any]


class Session:
    """The store that a command talks to, and how it answers."""

    def __init__(self, url: str | None, prefix: str, as_json: bool) -> None:
        if not url:
            raise click.UsageError(f"no store is named: give --store, or set {stores.URL_VARIABLE}")
        if url.startswith("memory:"):
            warnings.filterwarnings("ignore", message="memory://")  # it is said here
            click.echo("ratekit: memory:// is empty at the start of each process, this one too", err=True)
        self.url = url
        self.as_json = as_json
        self.limiter = RateLimiter(url, prefix=prefix, on_outage=OnOutage.CLOSED, deadline=_DEADLINE)

    def tell(self, values: Any, lines: Iterable[str]) -> None:
        """Print an answer: as JSON if that was asked for, else for people."""
        if self.as_json:
            indent = 2 if sys.stdout.isatty() else None
            click.echo(json.dumps(values, indent=indent))
        else:
            for line in lines:
                click.echo(line)


def with_store(function: Function) -> Function:
    """Give a command a session, and the options that make one."""

    @click.option(
        "--store", "url", metavar="URL", envvar=stores.URL_VARIABLE, show_envvar=True, help="Where the limits' state lives."
    )
    @click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="What all keys begin with.")
    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
    @functools.wraps(function)
    def command(url: str | None, prefix: str, as_json: bool, **options: Any) -> Any:
        session = Session(url, prefix, as_json)
        try:
            return function(session, **options)
        finally:
            session.limiter.close()

    return command


def with_limits(function: Function) -> Function:
    """Give a command the options that say which limits are meant."""
    limit = click.option(
        "--limit",
        "rates",
        multiple=True,
        metavar="[NAME=]RATE[@ALGORITHM]",
        help="A limit of the endpoint, such as 100/min, hour=5000/h or 100/min@sliding_window_log. Once for each limit.",
    )
    rules = click.option(
        "--rules",
        metavar="MODULE:NAME",
        help="Take the limits from the application: a mapping of paths to rates, Rules, a Policy or a Limit.",
    )
    return limit(rules(function))


class Question(NamedTuple):
    """What was asked about: an endpoint, and its policy if it is known."""

    endpoint: str
    policy: Policy | None
    rule: str | None = None


def question(endpoint: str, rates: Sequence[str], rules: str | None) -> Question:
    """Return what --limit and --rules say of an endpoint."""
    if rates and rules:
        raise click.UsageError("--limit and --rules both say which limits there are: give one of them")
    if rates:
        return Question(endpoint, Policy(endpoint, [_limit(rate) for rate in rates]))
    return Question(endpoint, None) if rules is None else _from_rules(endpoint, rules)


def known(asked: Question) -> Policy:
    """Return the policy of a question, or refuse one without."""
    if asked.policy is None:
        raise click.UsageError(f"which limits {asked.endpoint!r} has is known to the application: give --limit or --rules")
    return asked.policy


def _limit(text: str) -> Limit:
    name, _, rest = text.rpartition("=")
    rate, _, algorithm = rest.partition("@")
    limit = Limit.parse(rate)
    changes: dict[str, Any] = ({"name": name} if name else {}) | ({"algorithm": algorithm} if algorithm else {})
    return replace(limit, **changes) if changes else limit


def _from_rules(endpoint: str, where: str) -> Question:
    module, _, name = where.partition(":")
    sys.path.insert(0, "")
    try:
        value = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.UsageError(f"--rules {where!r} is not MODULE:NAME of something that is there: {error}") from None
    finally:
        sys.path.remove("")
    if isinstance(value, Mapping):
        value = Rules(value)
    if not isinstance(value, Rules):
        return Question(endpoint, as_rule_policy(endpoint, value), where)
    rule = value.find("GET", endpoint)
    if rule is None:
        raise click.UsageError(f"--rules {where!r} has no limits for {endpoint!r}")
    return Question(rule.endpoint, rule.policy, rule.endpoint)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A number of seconds, or a length of time such as 90s, 15min, 24h or 7d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        try:
            return value if isinstance(value, float) else parse_seconds(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


def operator() -> str | None:
    """Return who uses the program, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def coloured(word: str) -> str:
    """Return a word in the colour of what it means; only a terminal shows it."""
    return click.style(word, fg=_COLOURS.get(word), bold=word in _COLOURS)


def table(names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> list[str]:
    """Return the lines of a table."""
    cells = [[click.style(name.upper(), bold=True) for name in names]]
    cells += [["-" if item is None else shown(item) for item in row] for row in rows]
    widths = [max(len(click.unstyle(row[column])) for row in cells) for column in range(len(names))]
    return ["  ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - len(click.unstyle(cell)))
