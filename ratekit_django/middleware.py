"""The middleware: rules from settings, refusals that views raise, headers on every limited answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from ratekit.web.answers import ANSWERED
from ratekit.web.decide import refusal_of, refuse
from ratekit.web.drivers import run
from ratekit.web.steps import Verdict
from ratekit.web.view_limit import ViewLimit
from ratekit_django.conf import conf
from ratekit_django.decisions import adecide, decide
from ratekit_django.document_rules import adecide_document, decide_document
from ratekit_django.logins import is_admin_login
from ratekit_django.requests import Dispatch, RequestState
from ratekit_django.responses import ended, respond
from ratekit_django.settling import asettle_now
from ratekit_django.urls import method_of, url_of


class RateLimitMiddleware:
    """One class for both colours, which it takes once, from what it stands before: there is no hop between threads."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        conf.check()
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        # Of its own colour too: Django would run a method of the other one in a thread.
        self.process_view: Callable[..., Any] = self._limit_awaiting if self.is_async else self._limit
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        """Pass a request on, and write the headers of what was decided about it."""
        if self.is_async:
            return self._answer(request)
        with _dispatch_of(request):
            return ended(request, self.get_response(request))

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        with _dispatch_of(request) as dispatch:
            try:
                response: HttpResponseBase = await self.get_response(request)
            except BaseException:  # the client has hung up: the request counts
                await asettle_now(dispatch.ledger, dispatch.depth, request)
                raise
            return ended(request, response)

    def _limit(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        if conf.rules_source is not None and (refused := respond(request, decide_document(request))) is not None:
            return refused
        limits = _rules_of(request)
        return respond(request, decide(limits, request)) if limits else None

    async def _limit_awaiting(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        if conf.rules_source is not None and (refused := respond(request, await adecide_document(request))) is not None:
            return refused
        limits = _rules_of(request)
        return respond(request, await adecide(limits, request)) if limits else None

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer what a view has raised: over the limit, the store cannot tell, or the request does not say enough.

        Django calls this in a thread where views are awaited.
        """
        if not isinstance(error, ANSWERED):
            return None
        ledger = RequestState.of(request).ledger
        limiter = conf.limiter()
        run(refuse(ledger, limiter.store.place), limiter)
        return respond(request, Verdict(refusal_of(error, ledger, conf.writer), error))


def _dispatch_of(request: HttpRequest) -> Dispatch:
    state = RequestState.of(request)
    state.has_middleware = True
    return state.begin()


def _rules_of(request: HttpRequest) -> list[ViewLimit]:
    rules = conf.rules
    of_login = [*conf.admin_login] if conf.admin_login and is_admin_login(request) else []
    if rules.is_empty:
        return of_login
    url = url_of(request)
    found = rules.find(method_of(request), url.route, url.name)
    return of_login if found is None else [*of_login, found]
