"""The commands rules …: documents of rules, from a file or another source."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratekit.cli.session import coloured, table
from ratekit.core import clock
from ratekit.core.errors import DocumentError, SourceUnavailable
from ratekit.web.methods import split_method

if TYPE_CHECKING:
    from ratekit.rules.document import Document, RuleModel
    from ratekit.rules.sources.contract import Loaded

INVALID = 1
Function = Callable[..., Any]


@click.group("rules", short_help="Validate, compare, test and copy documents of rules.")
def rules() -> None:
    """Validate, compare, test and copy documents of rules. A source is a path, or a URL: docs/rules.md.

    \b
    Examples:
      ratekit rules validate rules.yaml
      ratekit rules diff rules.yaml redis://localhost/0?rules=chat
      ratekit rules convert ratelimit.yaml > rules.yaml
    """


def with_json(function: Function) -> Function:
    """Decorate a command: it gets a function that prints an answer, as JSON with --json."""

    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
    @functools.wraps(function)
    def command(as_json: bool, **options: Any) -> Any:
        def answer(values: Any, lines: Sequence[str]) -> None:
            click.echo(json.dumps(values, default=str) if as_json else "\n".join(lines))

        return function(answer, **options)

    return command


with_service = click.option("--service", metavar="NAME", help="Whose document it is, where a source has several.")


@rules.command(short_help="Say whether documents make sense, for CI.")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@with_service
@with_json
def validate(answer: Function, sources: tuple[str, ...], service: str | None) -> int:
    """Say whether documents make sense. The exit code is 1 if one does not. No code of the application runs.

    \b
    Examples:
      ratekit rules validate rules.yaml
      ratekit rules validate rules/*.toml --json
    """
    found = {where: _problems(where, service) for where in sources}
    lines = [f"{where}: {problem}" for where, problems in found.items() for problem in problems]
    lines += [f"{where}: {coloured('ok')}" for where, problems in found.items() if not problems]
    answer({where: list(problems) for where, problems in found.items()}, lines)
    return INVALID if any(found.values()) else 0


def _problems(where: str, service: str | None) -> Sequence[str]:
    try:
        _check_charges(_read(where, service)[0])
    except DocumentError as error:
        return error.problems
    except SourceUnavailable as error:
        return [str(error)]
    return []


def _check_charges(document: Document) -> None:
    """Raise DocumentError if limits of a document cannot be charged. No code of the application runs."""
    from ratekit.rules.compiled import compile_document
    from ratekit.rules.diff import without_functions

    compile_document(without_functions(document))


@rules.command(short_help="Show the rules of a source, and their version.")
@click.argument("source")
@with_service
@with_json
def show(answer: Function, source: str, service: str | None) -> None:
    """Show the rules of SOURCE: where they come from, which version, and each rule.

    \b
    Examples:
      ratekit rules show rules.yaml
      ratekit rules show 'mongodb://localhost/limits?collection=rate_limits' --service sentiment
    """
    document, loaded, origin = _read(source, service)
    values = {"origin": origin, "version": loaded.version, "document": document.values()}
    lines = [
        f"origin   {origin}",
        f"version  {loaded.version}",
        f"rules    {len(document.rules)}, apply {document.apply}",
        "",
    ]
    names = ("rule", "requests", "by", "limits", "keys", "mode")
    answer(values, lines + table(names, [_row(rule, document) for rule in document.rules]))


def _row(rule: RuleModel, document: Document) -> list[str | None]:
    requests = " ".join([*rule.match.method, rule.match.described() or "every request"])
    identity = rule.by or document.by
    limits = None if rule.limits is None else _written(rule.limits.written())
    return [
        rule.name,
        requests,
        str(identity) if identity else None,
        limits,
        str(len(rule.custom) + len(rule.overrides)),
        _when(rule, rule.mode or document.mode or "on"),
    ]


def _when(rule: RuleModel, mode: str) -> str:
    """Return the mode of a rule, and the time in which it counts."""
    if not rule.enabled:
        return "disabled"
    if rule.valid_until is not None and rule.valid_until.timestamp() <= clock.now():
        return f"over since {rule.valid_until.isoformat()}"
    begins = [f"from {rule.valid_from.isoformat()}"] if rule.valid_from and rule.valid_from.timestamp() > clock.now() else []
    ends = [f"until {rule.valid_until.isoformat()}"] if rule.valid_until else []
    return " ".join([mode, *begins, *ends])


def _written(limits: Any) -> str:
    return limits if isinstance(limits, str) else ", ".join(limits) if isinstance(limits, list) else f"plan {limits['plan']}"


@rules.command(short_help="Show who gets more, and who less.")
@click.argument("old")
@click.argument("new")
@with_service
@with_json
def diff(answer: Function, old: str, new: str, service: str | None) -> None:
    """Show what a document changes: which key of which rule gets more, and which less.

    \b
    Examples:
      ratekit rules diff rules.yaml new-rules.yaml
      ratekit rules diff 'redis://localhost/0?rules=chat' rules.yaml
    """
    from ratekit.rules.diff import changes

    found = changes(_read(old, service)[0], _read(new, service)[0])
    lines = table(("who gets", "rule", "key", "before", "after"), found) if found else ["no limit changes"]
    answer([change._asdict() for change in found], lines)


@rules.command(short_help="Write a document to a source.")
@click.argument("file")
@click.argument("source")
@with_service
@with_json
def push(answer: Function, file: str, source: str, service: str | None) -> None:
    """Write the document in FILE to SOURCE. It is validated first: a document that makes no sense is not written.

    A document of another form (general_rate_limit and custom_rate_limits) stays in that form, for those who change it there.

    \b
    Examples:
      ratekit rules push rules.yaml 'redis://localhost/0?rules=chat'
      ratekit rules push rules.yaml postgresql://localhost/limits --service chat
    """
    from ratekit.rules.forms import is_other_form
    from ratekit.rules.sources import source as open_source
    from ratekit.rules.sources.contract import WritableSource

    document, loaded, _ = _read(file, service)
    _check_charges(document)
    target = open_source(source, service=service or document.service)
    try:
        if not isinstance(target, WritableSource):
            raise click.UsageError(f"{source!r} cannot be written to")
        version = target.save(loaded.values if is_other_form(loaded.values) else document.values())
    finally:
        target.close()
    answer({"origin": target.origin, "version": version}, [f"{target.origin} has version {version}"])


@rules.command(short_help="Print the document of a source.")
@click.argument("source")
@click.option("--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@with_service
def pull(source: str, form: Any, service: str | None) -> None:
    """Print the document of SOURCE, in ratekit's own form.

    \b
    Examples:
      ratekit rules pull 'mongodb://localhost/limits' --service chat > rules.yaml
    """
    from ratekit.rules.formats import write

    click.echo(write(_read(source, service)[0].values(), form), nl=False)


@rules.command(short_help="Show which rule, key and limits a request has.")
@click.argument("source")
@click.option("--request", "asked", metavar="'METHOD PATH'", help="The request, such as 'POST /v1/chat?q=1'.")
@click.option("--key", help="Instead of a request: a key of the service, as check_rate_limit gets it.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header of it. Once for each.")
@click.option("--body", default="", help="Its body, JSON unless a header says otherwise.")
@click.option("--plan", help="Where limits are 'plan': the plan that plan_of of the application would name.")
@click.option("--address", default="192.0.2.1", show_default=True, help="The client's address.")
@with_service
@with_json
def test(
    answer: Function,
    source: str,
    asked: str | None,
    key: str | None,
    headers: tuple[str, ...],
    body: str,
    plan: str | None,
    address: str,
    service: str | None,
) -> int:
    """Show which rule, which key and which limits a request, or a key, has by a document. Nothing is counted.

    The exit code is 1 if it is not limited.

    \b
    Examples:
      ratekit rules test rules.yaml --request 'POST /v1/chat' --header 'X-API-Key: abc'
      ratekit rules test rules.yaml --request 'POST /v1/chat' --body '{"model": "large"}'
      ratekit rules test 'mongodb://localhost/limits' --service sentiment --key tenant:acme:lang:en
    """
    from ratekit.rules.trial import try_key, try_request

    if (asked is None) == (key is None):
        raise click.UsageError("what is asked is not clear: give --request or --key")
    document = _read(source, service)[0]
    sys.path.insert(0, "")  # for functions of the application
    if key is not None:
        found = try_key(document, service, key, plan)
    else:
        method, target = split_method(str(asked), "--request")
        sent = _headers(headers, body), body.encode(), address
        found = try_request(document, service, method or "GET", target, *sent, plan)
    values = [one.as_dict() for one in found]
    lines = [line for one in found for line in one.lines()] or [f"{coloured('allowed')}: no rule limits it"]
    answer(values, lines)
    return 0 if found else INVALID


def _headers(given: Sequence[str], body: str) -> list[tuple[str, str]]:
    pairs = [(name.strip(), value.strip()) for name, _, value in (text.partition(":") for text in given)]
    if wrong := next((text for text in given if ":" not in text), None):
        raise click.UsageError(f"--header {wrong!r} is not 'NAME: VALUE'")
    has_type = any(name.lower() == "content-type" for name, _ in pairs)
    return pairs if has_type or not body else [*pairs, ("content-type", "application/json")]


@rules.command(short_help="Print the JSON Schema of documents.")
def schema() -> None:
    """Print the JSON Schema of documents, for editors.

    \b
    Examples:
      ratekit rules schema > rules.schema.json
    """
    from ratekit.rules.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@rules.command(short_help="Make a document of a file of envoyproxy/ratelimit.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--header", "headers", multiple=True, metavar="KEY=NAME", help="The header behind a key of descriptors.")
@click.option("--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def convert(file: str, headers: tuple[str, ...], form: str) -> int:
    """Make a document of FILE, which is one of envoyproxy/ratelimit, and print it.

    What the document could not take over is named on the standard error.

    \b
    Examples:
      ratekit rules convert ratelimit.yaml > rules.yaml
      ratekit rules convert ratelimit.yaml --header user=x-user-id --format json
    """
    from ratekit.rules import formats
    from ratekit.rules.descriptors.convert import convert as converted
    from ratekit.rules.descriptors.file import DescriptorFile
    from ratekit.rules.document import Document

    made = converted(DescriptorFile.load(file), dict(map(_pair, headers)))
    Document.parse(made.values)
    click.echo(formats.write(made.values, "json" if form == "json" else "yaml"), nl=False)
    for note in made.notes:
        click.echo(note, err=True)
    return 0


def _pair(text: str) -> tuple[str, str]:
    key, found, name = text.partition("=")
    if not (key and found and name):
        raise click.UsageError(f"--header {text!r} is not a key and the name of a header: write it like user=x-user-id")
    return key, name


def _read(where: str, service: str | None) -> tuple[Document, Loaded, str]:
    """Read the document of a source, with its version and where it comes from."""
    from ratekit.rules.document import Document
    from ratekit.rules.reload import read_once

    if where == "-":
        raise click.UsageError("give the path of a file, or a URL")
    if "://" not in where and not Path(where).suffix:
        raise click.UsageError(f"{where!r} is neither a file in YAML, TOML or JSON nor a URL")
    loaded, origin = read_once(where, service)
    return Document.parse(loaded.values), loaded, origin
