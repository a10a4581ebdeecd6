"""What OpenAPI says of limited operations: the answers that ratekit may send, and the headers that it writes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from ratekit.core.errors import RatekitError, RateLimitExceeded, RateLimitUnavailable, UnusableRequestError
from ratekit.core.headers import PROBLEM_TYPE
from ratekit.core.limits import Limit
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.core.results import RateLimitResult
from ratekit_fastapi import errors
from ratekit_fastapi.routes import calls_of, is_limiter, route_contexts
from ratekit_fastapi.settings import Settings

_log = logging.getLogger("ratekit_fastapi")
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}}}
_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_PROBLEM = {"type": _TEXT, "title": _TEXT, "status": _NUMBER, "detail": _TEXT}
_QUOTA_PROBLEM = _PROBLEM | {"violated-policies": {"type": "array", "items": _TEXT}, "retry_after": _NUMBER}
_HEADERS = {
    "RateLimit-Limit": ("How much may be spent in a window", _NUMBER),
    "RateLimit-Remaining": ("What is left in the window", _NUMBER),
    "RateLimit-Reset": ("Seconds until the window ends", _NUMBER),
    "RateLimit-Policy": ("The limits: q is how much may be spent in w seconds", _TEXT),
    "RateLimit": ("The limit closest to refusing: r is what is left, t the seconds until its window ends", _TEXT),
    "X-RateLimit-Limit": ("How much may be spent in a window", _NUMBER),
    "X-RateLimit-Remaining": ("What is left in the window", _NUMBER),
    "X-RateLimit-Reset": ("When the window ends, in seconds since the epoch", _NUMBER),
}
_DESCRIPTIONS = {
    400: "The request does not say, or says in several ways, who asks or what it costs",
    401: "The request has no project to be limited by",
    413: "The body is longer than is read to find out who asks",
    429: "Too many requests: the limit is exceeded until the time that Retry-After names",
    503: "The limit cannot be checked now",
}
_ERRORS: dict[int, type[RatekitError]] = {429: RateLimitExceeded, 503: RateLimitUnavailable}
_OWN_ERRORS = (errors.RateLimitExceeded, errors.RateLimitUnavailable, errors.UnusableRequestError)


def _problem(properties: dict[str, Any]) -> dict[str, Any]:
    return {PROBLEM_TYPE: {"schema": {"type": "object", "properties": properties}}}


RATE_LIMIT_RESPONSES: dict[int | str, dict[str, Any]] = {
    429: {"description": _DESCRIPTIONS[429], "headers": _RETRY_AFTER, "content": _problem(_QUOTA_PROBLEM)}
}


def document(app: FastAPI, settings: Settings) -> None:
    """Let an application's document say what is sent by its limited operations. What an operation says itself stays."""
    make: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        schema = make()
        for path, methods, limiters in _limited(app):
            operations = schema.get("paths", {}).get(path, {})
            for method in methods:
                if (operation := operations.get(method.lower())) is not None:
                    _describe(operation, limiters, app, settings)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _limited(app: FastAPI) -> Iterator[tuple[str, set[str], list[Any]]]:
    """Yield path, methods and limiters of every operation that one of our limiters is declared on."""
    for route in route_contexts(app.routes):
        limiters = [call for call in calls_of(route) if is_limiter(call) and call.mode is not RateLimitMode.OFF]
        if limiters:
            yield route.path_format, getattr(route, "methods", None) or set(), limiters


def _describe(operation: dict[str, Any], limiters: Iterable[Any], app: FastAPI, settings: Settings) -> None:
    """Add our answers to those of an operation, and headers to what was decided: our own 400, 401, 413 and 503 were not."""
    responses = operation.setdefault("responses", {})
    ours = {str(status): _response(status, app, settings) for status in _statuses(limiters, settings)}
    for status, response in (ours | responses).items():
        responses[status] = response
        if "$ref" not in response and (status == "429" or status not in ours):
            response["headers"] = _headers(settings) | response.get("headers", {})


def _statuses(limiters: Iterable[Any], settings: Settings) -> set[int]:
    """Return the statuses with which some limiters may answer: not those of limiters that only monitor."""
    found: set[int] = set()
    for limiter in limiters:
        if limiter.mode not in (None, RateLimitMode.ON):
            continue
        found.add(429)
        found |= {400} if limiter.needs_body or callable(limiter.cost) or limiter.charging is not None else set()
        found |= {413} if limiter.needs_body else set()
        found |= {401} if limiter.needs_identity and limiter.anonymous == "refuse" else set()
        found |= {503} if (limiter.on_outage or settings.limiter().on_outage) is OnOutage.CLOSED else set()
    return found


def _headers(settings: Settings) -> dict[str, Any]:
    """Return the headers of every answer to a limited request; none of them while the store is away."""
    named = ((name, *_HEADERS[name]) for name in settings.writer.header_names)
    return {name: {"description": text, "schema": schema} for name, text, schema in named}


def _response(status: int, app: FastAPI, settings: Settings) -> dict[str, Any]:
    response: dict[str, Any] = {"description": _DESCRIPTIONS.get(status, HTTPStatus(status).phrase)}
    if status in _ERRORS:
        response["headers"] = dict(_RETRY_AFTER)
    if not _is_handled(status, app):
        content = _problem(_PROBLEM) if status != 429 else _refusal_content(settings)
        response |= {"content": content} if content else {}
    return response


def _is_handled(status: int, app: FastAPI) -> bool:
    """Whether the application answers refusals of a status itself: what it sends then is not known here."""
    kinds: list[Any] = [status, _ERRORS.get(status, UnusableRequestError)]
    kinds += [own for own in _OWN_ERRORS if issubclass(own, kinds[1])]
    handlers = app.exception_handlers
    return any(kind in handlers for kind in kinds) or handlers.get(RatekitError) is not errors.answer


def _refusal_content(settings: Settings) -> dict[str, Any]:
    """Return the content of a 429. Where `body=` makes it, a refusal is made to see of which type it is."""
    if not settings.writer.has_own_body:
        return _problem(_QUOTA_PROBLEM)
    sample = RateLimitResult((Limit(1, 60),), (0, 1, 1, 0, 60_000_000, 60_000_000), 0.0)
    try:
        kind = settings.writer.refusal([sample]).headers["Content-Type"]
    except Exception as error:  # noqa: BLE001 - of the application's function, which may need a request
        _log.warning("OpenAPI does not say what body= makes of a 429: %r", error)
        return {}
    return {kind.partition(";")[0]: {"schema": _TEXT if kind.startswith("text/") else {}}}
