"""What most commands share: the store, the format of the answer, and the limits of an endpoint."""

from __future__ import annotations

import functools
import getpass
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ratekit import stores
from ratekit.admin.explain import printable
from ratekit.cli.applications import ListedRules, imported, listed
from ratekit.core import clock
from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import DEFAULT_PREFIX
from ratekit.core.limit_names import by_operation, qualified
from ratekit.core.limit_text import parse_cost, parse_seconds
from ratekit.core.limits import Limit, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.core.protocol import CostGiven
from ratekit.limiter.limiters import RateLimiter
from ratekit.web.methods import split_method
from ratekit.web.plans import as_rule_policy
from ratekit.web.table import Rule, Rules

if TYPE_CHECKING:
    from ratekit.rules.reload import Rules as Documents

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")  # of which a rule may be for one
COST_HELP = "How much the request spends: 5, or by unit tokens=800,pages=2."
_DEADLINE = 5.0  # seconds: no request waits for it
_COLOURS = {"ok": "green", "allowed": "green", "on": "green", "warning": "yellow", "monitor": "yellow", "problem": "red"}
_COLOURS |= {"refused": "red", "off": "red"}
_METHOD_AND_PATH = re.compile(r"[A-Za-z-]+ +/.*", re.DOTALL).fullmatch
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
        finally:
            session.limiter.close()

    return command


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


class Question(NamedTuple):
    """An endpoint, with its policy if the command was given one."""

    endpoint: str
    policy: Policy | None
    rule: str | None = None
    mode: RateLimitMode | None = None  # that the application sets for it


def question_of(endpoint: str, rates: Sequence[str], rules: str | None, subject: str | None = None) -> Question:
    """Return an endpoint with the policy of --limit or --rules. A document has limits by subject."""
    if rates and rules:
        raise click.UsageError("--limit and --rules both give the limits: give one of them")
    if rules is None:
        return _question_by_rates(endpoint, rates)
    return _question_by_document(endpoint, rules, subject) if _is_document(rules) else _question_by_rules(endpoint, rules)


def _question_by_rates(endpoint: str, rates: Sequence[str]) -> Question:
    """Return an endpoint with the limits of --limit. A method before its path is in their names, as FastAPI counts them."""
    method, path = split_method(endpoint, "the endpoint") if _METHOD_AND_PATH(endpoint) else (None, endpoint)
    policy = Policy(path, rates) if rates else None
    return Question(path, policy and qualified(policy, by_operation([method]) if method else ""))


def policy_of(question: Question) -> Policy:
    """Return the policy of a question. Raises UsageError if it has none."""
    if question.policy is None:
        raise click.UsageError(f"the limits of {question.endpoint!r} are unknown: give --limit or --rules")
    return question.policy


def load_rules(where: str) -> Any:
    """Return what --rules names: Rules, or whatever limits of one endpoint can be made of."""
    value = imported(where, f"--rules {where!r}")
    if isinstance(value, Mapping):
        return Rules(value)
    if isinstance(value, Rules | Policy | Limit | str | Iterable):
        return value
    lines = listed(value)
    return value if lines is None else ListedRules(lines)


def rule_of(rules: Rules, endpoint: str) -> Rule | None:
    """Return the rule of an endpoint, which is a path, or a method and a path."""
    method, path = split_method(endpoint, "the endpoint")
    found = (rules.at(one, path) for one in ([method] if method else _METHODS))
    return next((rule for rule in found if rule is not None), None)


def _question_by_rules(endpoint: str, where: str) -> Question:
    rules = load_rules(where)
    if not isinstance(rules, Rules):
        return Question(endpoint, as_rule_policy(endpoint, rules), where)
    rule = rule_of(rules, endpoint)
    if rule is None:
        raise click.UsageError(f"--rules {where!r} has no limits for {endpoint!r}")
    return Question(rule.endpoint, rule.policy, rule.endpoint, rule.mode)


def _is_document(where: str) -> bool:
    return "://" in where or where.lower().endswith((".yaml", ".yml", ".toml", ".json"))


def _question_by_document(endpoint: str, where: str, subject: str | None) -> Question:
    """Return the policy that a document has for a subject, with the version of the document."""
    from ratekit.rules.reload import Rules as Documents

    sys.path.insert(0, "")  # for functions of the application
    try:
        documents = Documents(where)
    finally:
        sys.path.remove("")
    method, path = split_method(endpoint, "the endpoint")
    for rule in documents.compiled_once.of_path(method or "GET", path):
        limits = rule.limits_of(subject or "", clock.now()) if rule.is_valid(clock.now()) else None
        if limits is not None and limits.is_by_plan:
            raise click.UsageError(f"rule {rule.name!r} has the limits of the plan that plan_of of the application names")
        if limits is not None:
            policy = None if rule.is_unlimited(limits) else rule.policy_of(limits)
            told = f"{rule.name}, version {documents.status.version} of {documents.origin}, {_age(documents)}"
            return Question(rule.endpoint, policy, told, rule.mode)
    raise click.UsageError(f"--rules {where!r} has no limits for {endpoint!r}")


def _age(documents: Documents) -> str:
    """Return how old rules are by what the document says, or else since when they are loaded."""
    updated = documents.compiled_once.last_updated
    if updated is None:
        return f"loaded {documents.status.age:.0f} s ago, without last_updated"
    return f"updated {timedelta(seconds=int(clock.now() - updated.timestamp()))} ago"


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
