"""Django's side of the engine: limits that are declared become checks, in both colours."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from ratekit.core.modes import RateLimitMode
from ratekit.core.protocol import Call
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import RateLimiter
from ratekit.web.drivers import AwaitedLimiter, arun, run
from ratekit.web.identity import (
    KeyFunction,
    identified_subject,
)
from ratekit.web.ledger import Ledger
from ratekit.web.steps import Ask, Flow, Verdict
from ratekit.web.view_checks import Finding, ViewRequest, decide_view
from ratekit.web.view_limit import ViewLimit
from ratekit_django.conf import conf
from ratekit_django.requests import DjangoRequest, RequestState, is_asgi, read_body
from ratekit_django.urls import Url, method_of, url_of

_need_a_thread: set[Any] = set()  # callables of the project's that may not run on an event loop
_log = logging.getLogger("ratekit_django")


def decide(
    limits: Sequence[ViewLimit], request: Any, view: str | None = None, *, decider: object = None, once: bool = True
) -> Verdict:
    """Decide a request, waiting.

    view is the name of a view that may be called without a URL. decider is the throttle that decides: a second decision of
    the same begins another dispatch. once: limits that meet in one counter charge it once.
    """
    RequestState.of(request).is_awaited = False
    return run(_deciding(limits, request, _ledger(request, decider), view, once=once), conf.limiter())


async def adecide(
    limits: Sequence[ViewLimit], request: Any, view: str | None = None, *, decider: object = None, once: bool = True
) -> Verdict:
    """Decide a request, awaiting. A loop of one request keeps no connections."""
    flow = _deciding(limits, request, _ledger(request, decider), view, once=once)
    return await arun(flow, awaited_limiter(request))


def awaited_limiter(request: Any) -> AwaitedLimiter:
    """Return the limiter for code that awaits: in a loop of one request, it is the one that waits, in a thread."""
    RequestState.of(request).is_awaited = is_asgi(request)
    return conf.async_limiter() if is_asgi(request) else _InThread(conf.limiter())


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


class DjangoView(ViewRequest):
    """A request as the limits of a Django view see it. view is the name of a view that may be called without a URL."""

    front: DjangoRequest

    no_project = (
        "it has no project: set RATEKIT['IDENTIFY'], or say by anonymous= or RATEKIT['ANONYMOUS'] what happens without"
    )

    def __init__(self, request: Any, view: str | None) -> None:
        self.method = method_of(request)
        self.front = DjangoRequest(request, conf.proxies)
        self._request = request
        self._view = view

    @cached_property
    def _url(self) -> Url:
        return url_of(self._request, self._view)

    @property
    def route(self) -> str:
        """The pattern of the URL."""
        return self._url.route

    def operation(self, method: str) -> Sequence[str] | None:
        """Return the methods of the operation that Ninja runs."""
        return self._url.operation(method)

    def project(self) -> Finding[str | None]:
        """Ask IDENTIFY, once for a dispatch if it knows."""
        dispatch = RequestState.of(self._request).dispatch
        if dispatch.identity is None:
            dispatch.identity = identified_subject((yield from self.asked("the project", conf.identify)))
        return dispatch.identity

    def user(self) -> Finding[str | None]:
        """Ask for the user who is authenticated."""
        subject: str | None = yield Ask(user_subject, self._request, _auser_subject)
        return subject

    def ask(self, function: Callable[[Any], Any]) -> Ask:
        """Return the step that asks the project's code, in either colour."""
        return asking(function, self._request)

    def read_body(self, by: KeyFunction) -> bytes | None:
        """Return the body as Django has it."""
        return read_body(self.front, by)

    def warns_of_address(self, limit: ViewLimit) -> bool:
        """Whether neither the limit nor ANONYMOUS says what happens without a project."""
        return limit.anonymous is None and conf["ANONYMOUS"] is None


def asking(function: Callable[[Any], Any], request: Any) -> Ask:
    """Return the step that asks the project's code about Django's request, in either colour."""
    return Ask(partial(_waited, function), request, partial(_awaited, function))


def _deciding(limits: Sequence[ViewLimit], request: Any, ledger: Ledger, view: str | None, *, once: bool) -> Flow:
    return decide_view(limits, DjangoView(request, view), conf, ledger, conf.limiter().store, once=once)


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
