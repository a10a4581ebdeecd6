"""System checks: what is wrong with the settings is told when the project starts, with an id."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error
from django.utils.module_loading import import_string

from ratekit.core.errors import ConfigurationError, SourceUnavailable
from ratekit.web.url_rules import fits
from ratekit.web.view_limit import PROJECT, ViewLimit
from ratekit_django.cache_url import eviction_policy
from ratekit_django.conf import CHECKED, KEYS, conf, num_proxies, workers
from ratekit_django.decorators import limits_of_view
from ratekit_django.urls import Url, every_url

TAG = "ratekit"
MIDDLEWARE = "ratekit_django.middleware.RateLimitMiddleware"
PROXY_SIGNS = ("USE_X_FORWARDED_HOST", "USE_X_FORWARDED_PORT", "SECURE_PROXY_SSL_HEADER")
_BY_ADDRESS = "are limited by their address"
_NO_RULES = "The server does not start without its rules, unless RATEKIT['RULES_FALLBACK'] has some."
_SHARED = "all clients behind the proxy are limited as one address, that of the proxy."
# These store or replace responses: standing before them, ratekit writes its headers on what they give, and not into it.
INNER = ("django.middleware.cache.UpdateCacheMiddleware", "django.middleware.http.ConditionalGetMiddleware")


def check_settings(**_: Any) -> list[CheckMessage]:
    """E001: a key that RATEKIT does not know. E002: a value that makes no sense. E003: a rate that cannot be read.

    W009: the source of the rules does not answer.
    """
    try:
        unknown = [key for key in conf.given if key not in KEYS]
    except ConfigurationError as error:
        return [Error(str(error), id="ratekit.E002")]
    found: list[CheckMessage] = [_unknown(key) for key in unknown]
    for name in CHECKED:
        found += _told("ratekit.E002", partial(getattr, conf, name))
    found += _told("ratekit.E003", lambda: conf.rules) or _told("ratekit.E002", lambda: conf.rules.check_plans(conf.plan_of))
    return found + _told("ratekit.E002", conf.limiter)


def check_middleware(**_: Any) -> list[CheckMessage]:
    """E004: rules without the middleware that applies them. W001: no middleware. W002: it stands in the wrong place."""
    installed = list(settings.MIDDLEWARE or ())
    ours = [name for name in installed if _is_ours(name)]
    if not ours:
        return [_missing_middleware()]
    found: list[CheckMessage] = []
    if len(ours) > 1:
        found.append(
            checks.Warning("RateLimitMiddleware stands twice in MIDDLEWARE.", hint="Remove one.", id="ratekit.W002")
        )
    return found + [_misplaced(other) for other in INNER if other in installed[: installed.index(ours[0])]]


def check_urls(**_: Any) -> list[CheckMessage]:
    """W003: a rule that fits no URL. W004: views are limited by project, and nothing says which it is.

    E005 and W007: throttles of Django REST framework whose rate is missing, or that define what has no effect.
    """
    if not getattr(settings, "ROOT_URLCONF", None) or _told("", lambda: conf.rules):
        return []
    urls = list(every_url())
    found: list[CheckMessage] = [
        checks.Warning(f"RATEKIT: {key!r} of RULES or EXEMPT fits no URL.", hint=_closest(key, urls), id="ratekit.W003")
        for key, _ in conf.rules.table
        if not any(fits(key, url.route, url.name) for url in urls)
    ]
    limits = [limit for url in urls for limit in limits_of_view(url.view)] + conf.rules.limits
    return [*found, *_check_identity(limits), *_check_throttles(urls)]


def check_store(**_: Any) -> list[CheckMessage]:
    """W005, on deploy: a store in the process, of which every worker has its own."""
    if _told("", lambda: conf.store_url) or not conf.store_url.startswith("memory:"):
        return []
    many = f"{workers()} workers" if workers() else "N workers"
    return [
        checks.Warning(
            f"RATEKIT counts in memory://: each worker counts for itself, and {many} admit that many times each limit.",
            hint="Set RATEKIT['STORE_URL'] to a Redis, unless there is one process.",
            id="ratekit.W005",
        )
    ]


def check_eviction(**_: Any) -> list[CheckMessage]:
    """W006, on deploy: the cache that is shared evicts keys when its memory is full, and with them what was counted."""
    alias = conf["CACHE_ALIAS"]
    if alias is None or _told("", conf.limiter):
        return []
    policy = eviction_policy(conf.limiter())
    if policy == "noeviction":
        return []
    known = f"is {policy!r}" if policy else "cannot be asked for"
    return [
        checks.Warning(
            f"RATEKIT counts in cache {alias!r}, whose maxmemory-policy {known}: counters may be evicted.",
            hint="Give limits a Redis of their own with 'noeviction', by RATEKIT['STORE_URL'].",
            id="ratekit.W006",
        )
    ]


def check_proxies(**_: Any) -> list[CheckMessage]:
    """W008, on deploy: other settings say that there are proxies, and TRUSTED_HOPS says nothing, or something else."""
    hops, named = conf["TRUSTED_HOPS"], num_proxies()
    signs = [name for name in PROXY_SIGNS if getattr(settings, name, None)]
    if hops is None and named is None and signs:
        return [_proxies(f"{', '.join(signs)} say that there is a proxy, and RATEKIT['TRUSTED_HOPS'] is not set: {_SHARED}")]
    if isinstance(hops, int) and named is not None and hops != named:
        return [_proxies(f"NUM_PROXIES is {named!r}, and RATEKIT['TRUSTED_HOPS'] is {hops!r}: the latter counts.")]
    return []


ALWAYS: tuple[Callable[..., list[CheckMessage]], ...] = (check_settings, check_middleware, check_urls)
ON_DEPLOY: tuple[Callable[..., list[CheckMessage]], ...] = (check_store, check_eviction, check_proxies)


def _told(id: str, read: Callable[[], Any]) -> list[CheckMessage]:  # noqa: A002 - as Django calls it
    try:
        read()
    except ConfigurationError as error:
        return [Error(f"RATEKIT: {error}", id=id)]
    except SourceUnavailable as error:  # no error: `migrate`, which may make the tables of the source, runs the checks first
        return [checks.Warning(f"RATEKIT: {error}", hint=_NO_RULES, id="ratekit.W009")]
    return []


def _unknown(key: object) -> CheckMessage:
    close = get_close_matches(str(key).upper(), KEYS, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(KEYS)}."
    return Error(f"RATEKIT has the unknown key {key!r}.", hint=hint, id="ratekit.E001")


def unapplied_settings() -> list[str]:
    """Return the settings that limit nothing, as the middleware that applies them is missing."""
    names = ("RULES", "DEFAULT", "ADMIN_LOGIN", "RULES_SOURCE")
    try:
        needs = [name for name in names if conf[name]]
    except ConfigurationError:  # which another check tells
        return []
    return [] if needs and any(_is_ours(name) for name in settings.MIDDLEWARE or ()) else needs


def _is_ours(middleware: str) -> bool:
    """Whether a middleware is ratekit's, or a class of the project that is made of it."""
    if middleware == MIDDLEWARE:
        return True
    try:
        found = import_string(middleware)
    except ImportError:  # Django tells it
        return False
    return isinstance(found, type) and issubclass(found, import_string(MIDDLEWARE))


def _missing_middleware() -> CheckMessage:
    hint = f"Add {MIDDLEWARE!r} to MIDDLEWARE."
    needs = unapplied_settings()
    if needs:
        text = f"RATEKIT has {', '.join(needs)}, but not the middleware that applies it: it limits nothing."
        return Error(text, hint=hint, id="ratekit.E004")
    return checks.Warning("RateLimitMiddleware is not in MIDDLEWARE: answers may lack headers", hint=hint, id="ratekit.W001")


def _misplaced(other: str) -> CheckMessage:
    return checks.Warning(
        f"RateLimitMiddleware stands after {other}, which would store its headers or drop them.",
        hint=f"Put {MIDDLEWARE!r} before it in MIDDLEWARE.",
        id="ratekit.W002",
    )


def _proxies(message: str) -> CheckMessage:
    hint = "Set RATEKIT['TRUSTED_HOPS'] to the number of proxies, or to their networks; to 0 if clients connect directly."
    return checks.Warning(message, hint=hint, id="ratekit.W008")


def _closest(key: str, urls: list[Url]) -> str:
    known = [text for url in urls for text in (url.route, url.name)]
    close = get_close_matches(key.rstrip("*"), known, n=1)
    return f"Did you mean {close[0]!r}?" if close else "Names are like 'api:search', patterns as urls.py has them."


def _check_identity(limits: list[ViewLimit]) -> Iterator[CheckMessage]:
    """Warn where limits by project do not know the project, and nobody has said what happens then."""
    found = {limit.anonymous or conf["ANONYMOUS"] for limit in limits if limit.who.kind == PROJECT}
    if conf["IDENTIFY"] is None and found & {None, "pass"}:
        yield checks.Warning(
            "Views are limited by project, but RATEKIT['IDENTIFY'] does not say which project a request is of: "
            f"requests without request.org_id and request.project_id {'pass' if 'pass' in found else _BY_ADDRESS}.",
            hint="Set RATEKIT['IDENTIFY'] to the dotted path of a function, or by='user' or by='ip' on the views.",
            id="ratekit.W004",
        )


def _check_throttles(urls: list[Url]) -> Iterator[CheckMessage]:
    drf = sys.modules.get("ratekit_django.drf")
    views = [view for url in urls if (view := drf.declared_view(url.view)) is not None] if drf is not None else []
    for message in sorted({message for view in views for message in view.faults()}):
        yield Error(message, id="ratekit.E005")
    for name in sorted({name for view in views for name in view.ignored()}):
        yield checks.Warning(
            f"{name} has no effect: ratekit counts in its own store, and reads rates and addresses itself.",
            hint="Remove it. Subclasses may override get_rate and get_cache_key; RATEKIT['TRUSTED_HOPS'] names proxies.",
            id="ratekit.W007",
        )
