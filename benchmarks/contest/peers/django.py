"""django-ratelimit and the throttles of Django REST framework, over Django's own cache in Redis."""

from __future__ import annotations

import django
from django.conf import settings
from django.http import HttpRequest

from benchmarks.contest.loads import Answer, Check, Load

_LETTERS = {1: "s", 60: "m", 3600: "h", 86400: "d"}


def open_ratelimit(url: str, load: Load) -> Check:
    """Ask get_usage(), which is what its decorator asks, once for each limit."""
    _configure(url)
    from django_ratelimit.core import get_usage

    rates = [f"{most}/{_LETTERS[window]}" for most, window in load.limits]

    def check(subject: str) -> Answer:
        request = _request_of(subject)
        usages = [get_usage(request, group="contest", key=_address, rate=rate, increment=True) for rate in rates]
        last = usages[-1]
        return not any(usage["should_limit"] for usage in usages), last["limit"] - last["count"], last["time_left"]

    return check


def open_rest_framework(url: str, load: Load) -> Check:
    """Make a throttle for each limit and request, as its views do. It keeps every request, and rewrites them all."""
    _configure(url)
    from rest_framework.throttling import SimpleRateThrottle

    class Throttle(SimpleRateThrottle):
        def get_cache_key(self, request: HttpRequest, view: object) -> str:
            return str(self.cache_format % {"scope": self.duration, "ident": request.META["REMOTE_ADDR"]})

    kinds = [type("Throttle", (Throttle,), {"rate": f"{most}/{_LETTERS[window]}"}) for most, window in load.limits]

    def check(subject: str) -> Answer:
        request = _request_of(subject)
        throttles = [kind() for kind in kinds]
        allowed = all(throttle.allow_request(request, None) for throttle in throttles)
        last = throttles[-1]
        return allowed, last.num_requests - len(last.history), last.wait()

    return check


def _configure(url: str) -> None:
    if not settings.configured:
        cache = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}
        settings.configure(CACHES={"default": cache}, ALLOWED_HOSTS=["*"])
        django.setup()


def _request_of(subject: str) -> HttpRequest:
    request = HttpRequest()
    request.method, request.META["REMOTE_ADDR"] = "GET", subject
    return request


def _address(group: str, request: HttpRequest) -> str:
    return str(request.META["REMOTE_ADDR"])
