"""Every route of an application with its limits: of dependencies, of middlewares, and of documents of rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.routing import Host, Mount

from ratekit.asgi import RateLimitMiddleware, RuleMiddleware
from ratekit.core.limit_names import by_operation, qualified
from ratekit.core.modes import RateLimitMode
from ratekit.web.arguments import checked_mode
from ratekit.web.listing import UNKNOWN, ListedLimit, limit_texts, listed_rules, named_by, weakest_of
from ratekit.web.options import ADDRESS_ENDPOINT, ATTEMPT_ENDPOINT, split_arguments
from ratekit.web.table import Rule, Rules
from ratekit_fastapi.middleware import route_of
from ratekit_fastapi.routes import calls_of, is_limiter, route_contexts

_BY_ADDRESS = {"address_limit": ADDRESS_ENDPOINT, "attempt_limit": ATTEMPT_ENDPOINT}


def listed(app: Any) -> list[ListedLimit] | None:
    """Return the limits of an application of Starlette or FastAPI, route by route; None if it is none."""
    if not isinstance(app, Starlette):
        return None
    return list(_of_app(app, []))


class _Table(NamedTuple):
    """The rules of a middleware: a table or a document, whom they count unless they say so, and the middleware's mode."""

    rules: Any
    by: str
    mode: RateLimitMode | None


class _Limited(NamedTuple):
    """What limits an application as a whole: its tables and documents of rules, and the path under which it is mounted."""

    prefix: str
    tables: Sequence[_Table]
    documents: Sequence[_Table]

    @classmethod
    def by(cls, app: Starlette, prefix: str) -> _Limited:
        return cls(prefix, list(_tables(app)), list(_documents(app)))

    def lines(self, path: str, methods: Sequence[str]) -> Iterator[ListedLimit]:
        """Yield the limits of a path, which a middleware sees without the prefix of its application."""
        own = path.removeprefix(self.prefix) or "/"
        found = [(line, table.mode) for table in self.tables for line in _of_table(table, own, methods)]
        found += [(line, one.mode) for one in self.documents for line in _of_document(one, own, methods)]
        yield from (_in_mode(line, mode)._replace(route=path) for line, mode in found)


def _in_mode(line: ListedLimit, mode: RateLimitMode | None) -> ListedLimit:
    """Return a line whose rule has the mode of its middleware, if that is weaker than its own."""
    rule = line.rule
    return line if rule is None else line._replace(rule=replace(rule, mode=weakest_of(rule.mode, mode)))


def _of_app(app: Any, around: Sequence[_Limited], prefix: str = "") -> Iterator[ListedLimit]:
    """Yield the limits of an application, route by route, and of those that are mounted in it."""
    limited = [*around, _Limited.by(app, prefix)] if isinstance(app, Starlette) else around
    for route in route_contexts(app.routes):
        path = getattr(route, "path_format", None) or getattr(route, "path", None)
        inner = getattr(route, "app", None)
        if isinstance(getattr(route, "original_route", route), Mount | Host) and hasattr(inner, "routes"):
            yield from _of_app(inner, limited, prefix + (path or "").removesuffix("/{path}"))
        elif isinstance(path, str):
            yield from _of_path(route, prefix + path, limited)


def _of_path(route: Any, path: str, limited: Sequence[_Limited]) -> list[ListedLimit]:
    methods = sorted(set(getattr(route, "methods", None) or ()) - {"HEAD"}) or ["GET"]
    lines = [*_of_route(route, path, methods), *(line for one in limited for line in one.lines(path, methods))]
    return lines or [ListedLimit(path, " ".join(methods))]


def _of_route(route: Any, path: str, methods: Sequence[str]) -> Iterator[ListedLimit]:
    for limiter in (call for call in calls_of(route) if is_limiter(call)):
        qualifier = "" if limiter.endpoint else by_operation(methods)
        policy = None if limiter.policy is None else qualified(limiter.policy, qualifier)
        texts = UNKNOWN if policy is None else limit_texts(policy.limits)
        rule = Rule(
            endpoint=limiter.endpoint or path,
            policy=policy,
            by=named_by(limiter.counted_by),
            cost=limiter.cost,
            charging=limiter.charging,
            mode=limiter.mode,
            block=limiter.block,
        )
        yield ListedLimit(path, " ".join(methods), texts, limiter.counted_by, rule.endpoint, "code", rule)


def _tables(app: Starlette) -> Iterator[_Table]:
    for middleware in app.user_middleware:
        kind: Any = middleware.cls
        if not (isinstance(kind, type) and issubclass(kind, RateLimitMiddleware)) or issubclass(kind, RuleMiddleware):
            continue
        options: Any = split_arguments(dict(middleware.kwargs), kind)[0]
        table, exempt, mode = options.get("rules"), options.get("exempt", ()), checked_mode(options.get("mode"))
        if table is None or isinstance(table, Mapping):
            default, cost = options.get("default", "100/min"), options.get("cost", 1)
            yield _Table(Rules(table, default, exempt, cost, kind.route_of), _name(options.get("by", "ip")), mode)
        for name, endpoint in _BY_ADDRESS.items():
            if options.get(name) is not None:
                yield _Table(Rules(None, {"limits": options[name], "counter": endpoint}, exempt), "client_ip", mode)


def _of_table(table: _Table, path: str, methods: Sequence[str]) -> Iterator[ListedLimit]:
    for method in methods:
        rule = table.rules.at(method, path)
        if rule is not None and rule.counter is route_of:
            rule = replace(rule, endpoint=path)
        if rule is not None and rule.cost is None:
            rule = replace(rule, cost=table.rules.cost)
        yield from listed_rules(path, [method], [rule] if rule is not None else [], table.by, "middleware")


def _documents(app: Starlette) -> Iterator[_Table]:
    for middleware in app.user_middleware:
        if isinstance(middleware.cls, type) and issubclass(middleware.cls, RuleMiddleware):
            from ratekit.rules.options import as_rules

            given: Any = middleware.kwargs
            functions, default = given.get("functions", ()), given.get("default")
            rules = as_rules(given["rules"], given.get("service"), functions, default)
            yield _Table(rules, _name(given.get("by", "ip")), checked_mode(given.get("mode")))


def _of_document(document: _Table, path: str, methods: Sequence[str]) -> list[ListedLimit]:
    from ratekit.rules.listing import listed_by_document

    return listed_by_document(document.rules, path, methods, document.by)


def _name(by: Any) -> str:
    return by if isinstance(by, str) else str(getattr(by, "name", None) or getattr(by, "__name__", "callable"))
