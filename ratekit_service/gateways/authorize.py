"""`/v1/authorize`: a proxy asks whether a request may pass, and gets a status and header lines.

The proxy says what is limited, and clients must not be able to. There are two forms, and each has one source for that:

    /v1/authorize?resource=orders&by=header:x-user     the query, which the proxy writes: nginx, Traefik, Caddy, HAProxy
    /v1/authorize/<the client's path>?<its query>      headers `x-ratekit-…` that the proxy sets: Envoy's ext_authz, which
                                                       appends what the client has sent; its query is not read

Any method is answered, as proxies use the client's own. Bodies are not read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from ratekit.asgi import App, Receive, Scope, Send
from ratekit.core.errors import ConfigurationError
from ratekit.core.headers import PROBLEM_TYPE, RawLine
from ratekit.core.limit_text import parse_cost
from ratekit.core.protocol import CostGiven
from ratekit.web.client_address import TrustedProxies
from ratekit.web.requests import asgi_header_lines, asgi_peer

PATH = "/v1/authorize"
STATUS_HEADER = b"x-ratelimit-status"
DEFAULT_BY = "header:x-ratekit-subject"
_FIELDS = ("resource", "by", "cost", "refuse", "closed", "plan_id")
_LONGEST_QUERY = 4096
_LONGEST_COST = 500
_ONE_HOP = TrustedProxies.of(1)
_STATUSES = {200: b"ok", 401: b"unauthorized", 403: b"forbidden", 429: b"limited", 503: b"unavailable"}
_CAUSED = (400, 404, 413, 422)  # what is wrong with a question
_CLOSED = b"closed"
STATUS_WORDS = tuple(word.decode() for word in (*_STATUSES.values(), _CLOSED))
_HIDDEN = {b"x-ratekit-config-version", b"www-authenticate"}  # some proxies show all lines to clients: these are not theirs
_encode = msgspec.json.Encoder().encode


class Authorization(NamedTuple):
    """What a proxy asks."""

    api_key: str | None
    resource: str
    subject: str
    cost: CostGiven  # of requests, or by unit: "tokens=800"
    plan_id: str | None
    peer: str | None  # the address of the proxy


class Answer(NamedTuple):
    """A status, header lines without the length, and a body that is still to be encoded."""

    status: int
    headers: list[RawLine]
    body: Any
    is_closed: bool = False  # refused, as the store does not answer and the plan is closed then


class _Statuses(NamedTuple):
    """The statuses that the proxy has asked for."""

    refuse: int = 429
    closed: int = 503


Authorize = Callable[[Authorization], Awaitable[Answer]]


class UnusableAuthorizationError(Exception):
    """The proxy has asked something that makes no sense. The message names the field and the value."""


class AuthorizeMiddleware:
    """Answers `/v1/authorize`, and hands everything else to an application."""

    def __init__(self, app: App, authorize: Authorize) -> None:
        self.app = app
        self._authorize = authorize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not (scope["path"] == PATH or scope["path"].startswith(f"{PATH}/")):
            await self.app(scope, receive, send)
            return
        statuses = _Statuses()
        try:
            given = _given(scope)
            statuses = _statuses(given)
            answer = await self._authorize(_authorization(given, scope))
        except UnusableAuthorizationError as error:
            answer = _problem(str(error))
        await _send(_with_status(answer, statuses), send)


def _given(scope: Scope) -> Mapping[str, str]:
    """Return what the proxy says, from the one source that is its own."""
    if scope["path"] != PATH:
        found = {name: _header(scope, f"x-ratekit-{name.replace('_', '-')}") for name in _FIELDS}
        return {name: value for name, value in found.items() if value is not None}
    query: bytes = scope.get("query_string", b"")
    if len(query) > _LONGEST_QUERY:
        raise UnusableAuthorizationError(f"the query has {len(query)} bytes, and at most {_LONGEST_QUERY} are read")
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    for name, _ in pairs:
        if name not in _FIELDS:
            raise UnusableAuthorizationError(f"the field {name[:100]!r} is unknown: there are {', '.join(_FIELDS)}")
    if len(dict(pairs)) < len(pairs):
        raise UnusableAuthorizationError("a field stands twice in the query")
    return dict(pairs)


def _authorization(given: Mapping[str, str], scope: Scope) -> Authorization:
    if not given.get("resource"):
        where = "the query" if scope["path"] == PATH else "the header 'x-ratekit-resource'"
        raise UnusableAuthorizationError(f"resource is missing: {where} has to name what is limited")
    peer = asgi_peer(scope)
    subject = _subject(given.get("by", DEFAULT_BY), scope, peer)
    key = _header(scope, "x-api-key")
    return Authorization(key, given["resource"], subject, _cost(given), given.get("plan_id"), peer)


def _subject(by: str, scope: Scope, peer: str | None) -> str:
    """Return who is limited: what the proxy vouches for."""
    if by == "ip":
        return _address(scope, peer)
    kind, _, name = by.partition(":")
    if kind not in ("header", "line") or not name:
        raise UnusableAuthorizationError(f"by {by[:100]!r} is neither 'ip' nor 'header:' or 'line:' with a name")
    subject = _header(scope, name.lower())
    if not subject:
        raise UnusableAuthorizationError(f"the header {name[:100]!r} is missing or empty: the proxy has to set it")
    if kind == "header" and "," in subject:
        raise UnusableAuthorizationError(
            f"the header {name[:100]!r} has a comma, by which proxies join several lines: the proxy has to replace what "
            f"clients send; by 'line:{name[:100]}' takes commas as part of the value"
        )
    return subject


def _address(scope: Scope, peer: str | None) -> str:
    """Return the client's address. Without the header everybody would be limited by the address of the proxy."""
    forwarded = asgi_header_lines(scope, "x-forwarded-for")
    if not forwarded:
        raise UnusableAuthorizationError(
            "the header 'x-forwarded-for' is missing: by 'ip' needs it, and the proxy has to set it"
        )
    return _ONE_HOP.subject(peer, forwarded)


def _header(scope: Scope, name: str) -> str | None:
    """Return the value of a header. Several that differ are refused: one may be the client's own."""
    values = list(dict.fromkeys(asgi_header_lines(scope, name)))
    if len(values) > 1:
        raise UnusableAuthorizationError(
            f"the header {name[:100]!r} has several values: the proxy has to replace what clients send"
        )
    return values[0] if values else None


def _cost(given: Mapping[str, str]) -> CostGiven:
    try:
        return parse_cost(given.get("cost", "1")[:_LONGEST_COST])
    except ConfigurationError as error:
        raise UnusableAuthorizationError(str(error)) from None


def _statuses(given: Mapping[str, str]) -> _Statuses:
    return _Statuses(
        _one_of("refuse", given.get("refuse", "429"), "429"), _one_of("closed", given.get("closed", "503"), "503")
    )


def _one_of(field: str, text: str, default: str) -> int:
    if text not in (default, "403"):
        raise UnusableAuthorizationError(f"{field} {text[:100]!r} is neither {default} nor 403")
    return int(text)


def _with_status(answer: Answer, statuses: _Statuses) -> Answer:
    """Return the answer with its status, and with a line that tells a refusal from a bad key, whatever the status is."""
    status = _status(answer, statuses)
    word = _CLOSED if answer.is_closed else _STATUSES.get(answer.status, b"error")
    lines = [line for line in answer.headers if line[0] not in _HIDDEN]
    body = answer.body
    if isinstance(body, dict) and "status" in body:
        body = body | {"status": status}
    return Answer(status, [*lines, (STATUS_HEADER, word)], body)


def _status(answer: Answer, statuses: _Statuses) -> int:
    """Return the status that the proxy has asked for. nginx makes a 500 of a 429, and Envoy an outage of a 503.

    nginx also makes a 500 of a 400 or a 422, which a client can cause by a subject that is empty or too long: a proxy that
    lets pass what it does not understand would let that pass. So these are refused by the same status, if it is not 429.
    """
    if answer.is_closed:
        return statuses.closed
    if answer.status == 429 or (statuses.refuse != 429 and answer.status in _CAUSED):
        return statuses.refuse
    return answer.status


def _problem(detail: str) -> Answer:
    body = {"type": "about:blank", "title": "The proxy has asked what makes no sense", "status": 400, "detail": detail}
    return Answer(400, [(b"content-type", PROBLEM_TYPE.encode()), (b"cache-control", b"no-store")], body)


async def _send(answer: Answer, send: Send) -> None:
    body = _encode(answer.body)
    lines = [*answer.headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
