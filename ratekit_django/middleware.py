"""The middleware: rules from settings, refusals that views raise, headers on every limited answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from ratekit.errors import RatekitError, RateLimitExceeded, RateLimitUnavailable, UnusableRequestError
from ratekit.front import refusal_of
from ratekit.modes import RateLimitMode
from ratekit.wsgi import RESULTS
from ratekit_django.conf import conf
from ratekit_django.decisions import Outcome, adecide, decide
from ratekit_django.limits import ViewLimit
from ratekit_django.requests import MIDDLEWARE, state_of
from ratekit_django.responses import respond, with_headers
from ratekit_django.urls import url_of


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
        state_of(request)[MIDDLEWARE] = True
        return self._answer(request) if self.is_async else with_headers(request, self.get_response(request))

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await self.get_response(request)
        return with_headers(request, response)

    def _limit(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        limits = _rules_of(request)
        return respond(request, decide(limits, request)) if limits else None

    async def _limit_awaiting(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        limits = _rules_of(request)
        return respond(request, await adecide(limits, request)) if limits else None

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer what a view has raised: over the limit, the store cannot tell, or the request does not say enough.

        Django calls this in a thread where views are awaited; it waits for nothing.
        """
        if not isinstance(error, RateLimitExceeded | RateLimitUnavailable | UnusableRequestError):
            return None
        return respond(request, _outcome_of(request, error))


def _rules_of(request: HttpRequest) -> list[ViewLimit]:
    rules = conf.rules
    if rules.is_empty:
        return []
    url = url_of(request)
    found = rules.find(request.method or "GET", url.route, url.name)
    return [] if found is None else [found]


def _outcome_of(request: HttpRequest, error: RatekitError) -> Outcome:
    if isinstance(error, RateLimitExceeded):
        results = state_of(request).setdefault(RESULTS, [])
        if error.result not in results:
            results.append(error.result)
        return Outcome(conf.answers.refusal(results), error)
    return Outcome(refusal_of(error, RateLimitMode.ON), error)
