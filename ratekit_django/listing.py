"""`manage.py ratekit limits`: every URL of the project with its limits, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ratekit.cli.limits import show
from ratekit.cli.rules import Function, with_json
from ratekit.web.listing import UNKNOWN, ListedLimit, limit_texts
from ratekit_django.conf import conf
from ratekit_django.declared_limits import Declared, every_limit
from ratekit_django.urls import Url, every_url, operations_of

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@click.command("limits", short_help="List every URL of the project, with its limits.")
@with_json
def limits(answer: Function) -> None:
    """List every URL of the project, with its limits, who is counted, and where that comes from."""
    show(answer, listed())


def listed() -> Iterator[ListedLimit]:
    """Yield the limits of every URL: of views, of throttles, of settings and of the document of rules."""
    declared = list(every_limit())
    for url in every_url():
        lines = [_line(one) for one in declared if one.url.route == url.route and any(map(one.counts, _methods_of(url)))]
        lines += _of_document(url)
        yield from lines or [ListedLimit(url.route, " ".join(_methods_of(url)))]


def _methods_of(url: Url) -> list[str]:
    return sorted({method for operation in operations_of(url.view) for method in operation.methods}) or list(_METHODS)


def _line(declared: Declared) -> ListedLimit:
    methods = [method for method in _methods_of(declared.url) if declared.counts(method)]
    policies = [declared.limit.policy_on(method, declared.url.operation) for method in methods]
    texts = UNKNOWN if None in policies else limit_texts(limit for policy in policies if policy for limit in policy.limits)
    who = declared.limit.who.name
    return ListedLimit(declared.url.route, " ".join(methods), texts, who, declared.endpoint, declared.where)


def _of_document(url: Url) -> list[ListedLimit]:
    if conf.rules_source is None:
        return []
    from ratekit.rules.listing import listed_by_document

    return listed_by_document(conf.rules_source, url.route, _methods_of(url), name=url.name)
