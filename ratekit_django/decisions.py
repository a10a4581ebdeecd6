"""Django's side of the engine: limits that are declared become checks, in both colours."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from ratekit.core import keys
from ratekit.core.errors import RatekitError
from ratekit.core.modes import RateLimitMode, weakest
from ratekit.core.protocol import Call
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import RateLimiter
from ratekit.web.answers import error_response
from ratekit.web.arguments import cost_of, current_mode, untold
from ratekit.web.decide import PASS, Ask, Check, Flow, Ledger, Step, Verdict, grouped, refuse
from ratekit.web.decide import decide as decide_groups
from ratekit.web.drivers import arun, run
from ratekit.web.identity import (
    NOBODY,
    KeyFunction,
    anonymous_subject,
    checked_subject,
    identified_subject,
    note_address,
    note_pass,
    subject_of,
    why_nobody,
)
from ratekit_django.conf import conf
from ratekit_django.requests import DjangoRequest, RequestState, is_asgi, read_body
from ratekit_django.urls import method_of, url_of
from ratekit_django.view_limit import ENDPOINT, PROJECT, USER, ViewLimit

Found = TypeVar("Found")
Finding = Generator[Step, Any, Found]
_need_a_thread: set[Any] = set()  # callables of the project's that may not run on an event loop
_log = logging.getLogger("ratekit_django")


def decide(
    limits: Sequence[ViewLimit], request: Any, view: str | None = None, *, decider: object = None, once: bool = True
) -> Verdict:
    """Decide a request, waiting.

    view is the name of a view that may be called without a URL. decider is the throttle that decides: a second decision of
    the same begins another dispatch. once: limits that meet in one counter charge it once.
    """
    return run(_deciding(limits, request, _ledger(request, decider), view, once=once), conf.limiter())


async def adecide(
    limits: Sequence[ViewLimit], request: Any, view: str | None = None, *, decider: object = None, once: bool = True
) -> Verdict:
    """Decide a request, awaiting. A loop of one request keeps no connections: there, the limiter that waits has a thread."""
    limiter = conf.async_limiter() if is_asgi(request) else _InThread(conf.limiter())
    return await arun(_deciding(limits, request, _ledger(request, decider), view, once=once), limiter)


def _ledger(request: Any, decider: object) -> Ledger:
    state = RequestState.of(request)
    return state.ledger if decider is None else state.ledger_for(decider)


class _InThread:
    """A limiter that waits, in a thread, for code that awaits."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    def with_on_outage(self, on_outage: str | None) -> _InThread:
        return _InThread(self._limiter.with_on_outage(on_outage))

    async def decide_in(self, batch: Sequence[Call], at: int, mode: RateLimitMode) -> RateLimitResult:
        if self._limiter.store.is_local:
            return self._limiter.decide_in(batch, at, mode)
        return await sync_to_async(self._limiter.decide_in)(batch, at, mode)

    async def give_back(self, batch: Sequence[Call]) -> None:
        await sync_to_async(self._limiter.give_back)(batch)


def _deciding(limits: Sequence[ViewLimit], request: Any, ledger: Ledger, view: str | None, *, once: bool) -> Flow:
    checks: list[Check] = []
    for limit in limits:
        mode = _mode_of(limit)
        if mode is RateLimitMode.OFF or not limit.counts(method_of(request)):
            continue
        try:
            check = yield from _check(limit, request, mode, view)
        except RatekitError as error:
            response = error_response(error, mode)
            if response is not None:
                yield from refuse(ledger, conf.limiter().store.place)
                return Verdict(response, error)
        else:
            checks += [] if check is None else [check]
    if not checks:
        return PASS
    store = conf.limiter().store
    groups = grouped(checks, one_slot=store.one_slot)
    return (yield from decide_groups(groups, ledger, conf.writer, store.place, once=once))


def _mode_of(limit: ViewLimit) -> RateLimitMode:
    conf.follow_fleet()
    mode = current_mode(limit.mode)
    return mode if conf.mode is None else weakest(mode, conf.mode)


def _check(limit: ViewLimit, request: Any, mode: RateLimitMode, view: str | None) -> Finding[Check | None]:
    """Find out what there is to decide: who asks on which endpoint, and what it costs."""
    url = url_of(request, view)
    endpoint = limit.endpoint or url.route
    subject = yield from _subject(limit, request, endpoint)
    if subject is None:
        return None
    cost = limit.cost
    if callable(cost):
        cost = yield from _asked("what it costs", cost, request)
    policy = limit.policy_on(url, method_of(request))
    return Check.of(policy, subject, endpoint, conf.prefix, cost_of(cost, request), mode, limit.on_outage)


def _subject(limit: ViewLimit, request: Any, endpoint: str) -> Finding[str | None]:
    """Find out who is limited; what happens without a project or a user is the view's to say, or the setting's."""
    if limit.who.kind == ENDPOINT:
        return keys.whole_endpoint_subject(endpoint)
    front = DjangoRequest(request, conf.proxies)
    subject, why = yield from _named(limit, front)
    if subject is None and limit.who.kind in (PROJECT, USER):
        subject = _substitute(limit, front, endpoint)
    if subject is None:
        note_pass(endpoint, why)
    return subject


def _substitute(limit: ViewLimit, front: DjangoRequest, endpoint: str) -> str | None:
    """Return who is limited where there is no project, or no user."""
    is_project = limit.who.kind == PROJECT
    if is_project and limit.anonymous is None and conf["ANONYMOUS"] is None:
        note_address(endpoint, _NO_PROJECT)
    return anonymous_subject(limit.anonymous or conf.anonymous, front, PROJECT if is_project else USER)


_NO_PROJECT = "it has no project: set RATEKIT['IDENTIFY'], or say by anonymous= or RATEKIT['ANONYMOUS'] what happens without"
_NO_USER = "it has no authenticated user, and anonymous is 'pass'"


def _named(limit: ViewLimit, front: DjangoRequest) -> Finding[tuple[str | None, str]]:
    """Return who is limited, and what it means if that is nobody."""
    who, request = limit.who, front.native
    if who.kind == PROJECT:
        return (yield from _project(request)), _NO_PROJECT
    if who.kind == USER:
        return (yield Ask(user_subject, request, _auser_subject)), _NO_USER
    if who.key is not None:
        return _key_subject(who.key, front), why_nobody(who.key)
    return checked_subject((yield from _asked("who is limited", who.call, request))), NOBODY


def _project(request: Any) -> Finding[str | None]:
    """Ask IDENTIFY, once for a dispatch if it knows."""
    dispatch = RequestState.of(request).dispatch
    if dispatch.identity is None:
        dispatch.identity = identified_subject((yield from _asked("the project", conf.identify, request)))
    return dispatch.identity


def _key_subject(key: KeyFunction, front: DjangoRequest) -> str | None:
    if key.looks_into_body(front):
        front.body = read_body(front, key)
    return subject_of(key, front)


def _asked(what: str, function: Any, request: Any) -> Finding[Any]:
    try:
        return (yield Ask(partial(_waited, function), request, partial(_awaited, function)))
    except ValueError as error:
        raise untold(what, error) from None


def _waited(function: Callable[[Any], Any], request: Any) -> Any:
    """Ask the project's code, and wait for what has to be awaited; in a thread if an event loop runs in this one."""
    value = function(request)
    if not inspect.isawaitable(value):
        return value

    async def finish() -> Any:
        return await value

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return async_to_sync(finish)()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, finish()).result()


async def _awaited(function: Callable[[Any], Any], request: Any) -> Any:
    """Ask the project's code, and await; in a thread what must not run on the event loop."""
    if function not in _need_a_thread:
        try:
            value = function(request)
            return await value if inspect.isawaitable(value) else value
        except SynchronousOnlyOperation:
            _need_a_thread.add(function)
            _log.warning("%r uses the database, and runs in a thread for async views: make it async", function)
    return await sync_to_async(function)(request)


def user_subject(request: Any) -> str | None:
    """Return the subject of the user who is authenticated, None if nobody is."""
    return _subject_of(getattr(request, "user", None))


async def _auser_subject(request: Any) -> str | None:
    return _subject_of(await request.auser()) if hasattr(request, "auser") else user_subject(request)


def client_address(request: Any) -> str | None:
    """Return the subject of a client's address, as by="ip" limits it: "ip:203.0.113.7", IPv6 by /64.

    It is the peer's address, or the one that trusted proxies name. None: there is none, at a Unix socket.
    """
    return DjangoRequest(request, conf.proxies).address()


def _subject_of(user: Any) -> str | None:
    known = user is not None and user.is_authenticated and getattr(user, "pk", None) is not None
    return f"user:{user.pk}" if known else None
