"""Every route of an application with its limits: of dependencies, of middlewares, and of documents of rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from starlette.applications import Starlette

from ratekit.asgi import RateLimitMiddleware, RuleMiddleware
from ratekit.core.limit_names import by_operation, qualified
from ratekit.web.listing import UNKNOWN, ListedLimit, limit_texts, listed_rules
from ratekit.web.options import split_arguments
from ratekit.web.table import Rules
from ratekit_fastapi.routes import calls_of, is_limiter, route_contexts


def listed(app: Any) -> list[ListedLimit] | None:
    """Return the limits of an application of Starlette or FastAPI, route by route; None if it is none."""
    if not isinstance(app, Starlette):
        return None
    tables, documents = list(_tables(app)), list(_documents(app))
    found: list[ListedLimit] = []
    for route in route_contexts(app.routes):
        path = getattr(route, "path_format", None) or getattr(route, "path", None)
        methods = sorted(set(getattr(route, "methods", None) or ()) - {"HEAD"}) or ["GET"]
        if isinstance(path, str):
            lines = [*_of_route(route, path, methods), *_of_tables(tables, path, methods)]
            lines += [line for rules, by in documents for line in _of_document(rules, path, methods, by)]
            found += lines or [ListedLimit(path, " ".join(methods))]
    return found


def _of_route(route: Any, path: str, methods: Sequence[str]) -> Iterator[ListedLimit]:
    for limiter in (call for call in calls_of(route) if is_limiter(call)):
        qualifier = "" if limiter.endpoint else by_operation(methods)
        texts = UNKNOWN if limiter.policy is None else limit_texts(qualified(limiter.policy, qualifier).limits)
        yield ListedLimit(path, " ".join(methods), texts, limiter.counted_by, limiter.endpoint or path, "code")


def _tables(app: Starlette) -> Iterator[tuple[Rules, str]]:
    for middleware in app.user_middleware:
        kind: Any = middleware.cls
        if kind is RateLimitMiddleware:
            options: Any = split_arguments(dict(middleware.kwargs))[0]
            default = options.get("default", "100/min")
            yield Rules(options.get("rules"), default, options.get("exempt", ())), _name(options.get("by", "ip"))


def _of_tables(tables: Sequence[tuple[Rules, str]], path: str, methods: Sequence[str]) -> Iterator[ListedLimit]:
    for table, by in tables:
        for method in methods:
            rule = table.at(method, path)
            yield from listed_rules(path, [method], [rule] if rule is not None else [], by, "middleware")


def _documents(app: Starlette) -> Iterator[tuple[Any, str]]:
    for middleware in app.user_middleware:
        if isinstance(middleware.cls, type) and issubclass(middleware.cls, RuleMiddleware):
            from ratekit.rules.options import as_rules

            given: Any = middleware.kwargs
            functions, default = given.get("functions", ()), given.get("default")
            yield as_rules(given["rules"], given.get("service"), functions, default), _name(given.get("by", "ip"))


def _of_document(rules: Any, path: str, methods: Sequence[str], by: str) -> list[ListedLimit]:
    from ratekit.rules.listing import listed_by_document

    return listed_by_document(rules, path, methods, by)


def _name(by: Any) -> str:
    return by if isinstance(by, str) else str(getattr(by, "name", None) or getattr(by, "__name__", "callable"))
