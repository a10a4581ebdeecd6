"""A throttle for Django Ninja. One instance serves all requests and threads: nothing of a request is kept on it."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import Any, Unpack

from ratekit.core.errors import MissingExtraError, RateLimitExceeded
from ratekit.web.plans import LimitsFunction, RuleLimits
from ratekit.web.view_limit import USER, ViewOptions, view_limit
from ratekit_django.conf import conf
from ratekit_django.decisions import decide
from ratekit_django.requests import RequestState
from ratekit_django.urls import url_of

try:
    from ninja.throttling import BaseThrottle
except ImportError:
    raise MissingExtraError("ratekit_django.ninja", "ninja") from None

_log = logging.getLogger("ratekit_django")
_wait: ContextVar[float | None] = ContextVar("ratekit_ninja_wait", default=None)


class RateLimitThrottle(BaseThrottle):
    """Limits each user, and who is not authenticated by the address: `throttle=[RateLimitThrottle("20/min")]`.

    rate is a rate, several, a Limit, a Policy, or a callable of the request; options are those of rate_limit. Ninja calls
    throttles of async operations on the event loop, where they block it while the store answers: there, use rate_limit on
    the function.
    """

    def __init__(self, rate: RuleLimits | LimitsFunction, **options: Unpack[ViewOptions]) -> None:
        given: ViewOptions = {"by": USER, "anonymous": "ip", **options}
        self.limit = view_limit(limits=rate, **given)
        self._warned = False

    def allow_request(self, request: Any) -> bool:
        """Decide the request. An outage, or a request that does not say enough, is raised, for the middleware to answer."""
        self._warn_on_event_loop(request)
        error = decide([self.limit], request, decider=self).error
        if error is not None and not isinstance(error, RateLimitExceeded):
            raise error
        _wait.set(None if error is None else error.result.retry_after)
        return not RequestState.of(request).ledger.is_refused  # by this throttle, or by one that was asked before

    def wait(self) -> float | None:
        """Return how many seconds the request that was just refused has to wait, None if waiting does not help."""
        return _wait.get()

    def _warn_on_event_loop(self, request: Any) -> None:
        if self._warned or conf.limiter().store.is_local:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self._warned = True
        _log.warning(
            "the throttle of %s blocks the event loop while the store answers: use @rate_limit on async operations",
            url_of(request).route,
        )
