"""Limits from a document of rules, RATEKIT["RULES_SOURCE"]: decided before those of views and of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ratekit.core.modes import RateLimitMode
from ratekit.web.drivers import arun, run
from ratekit.web.identity import KeyFunction, client_ip
from ratekit.web.ledger import hold_slots
from ratekit.web.steps import PASS, Ask, Flow, Verdict
from ratekit_django.conf import conf
from ratekit_django.decisions import asking, awaited_limiter
from ratekit_django.requests import DjangoRequest, RequestState, read_body
from ratekit_django.urls import url_of

_BY = client_ip()


def decide_document(request: Any) -> Verdict:
    """Decide a request by the document, waiting."""
    return _held(request, run(_deciding(request), conf.limiter()))


async def adecide_document(request: Any) -> Verdict:
    """Decide a request by the document, awaiting."""
    return _held(request, await arun(_deciding(request), awaited_limiter(request)))


def _held(request: Any, verdict: Verdict) -> Verdict:
    """Keep the slots of a request that passes until its response is closed: the middleware ends it."""
    ledger = RequestState.of(request).ledger
    if ledger.is_held and verdict.response is None:
        hold_slots(ledger, conf.limiter())
    return verdict


def _plan_asker(request: Any) -> Callable[[Any, str], Ask] | None:
    """Return what asks PLAN_OF about Django's own request, in either colour."""
    plan_of = conf.plan_of
    return None if plan_of is None else lambda _, key: asking(plan_of, request)


def _deciding(request: Any) -> Flow:
    from ratekit.rules.checks import Front, decide_by_rules

    rules, mode = conf.rules_source, conf.mode_now()
    if rules is None or mode is RateLimitMode.OFF:
        return PASS
    front_request = DjangoRequest(request, conf.proxies)
    url = url_of(request)
    found = rules.find(front_request, tuple(name for name in (url.route, url.name) if name))
    front = Front(conf.prefix, _BY, rules.compiled.applies_all, _plan_asker(request))
    ledger, store = RequestState.of(request).ledger, conf.limiter().store

    def load_body(by: KeyFunction) -> None:
        front_request.body = read_body(front_request, by)

    return (yield from decide_by_rules(found, front_request, front, mode, load_body, ledger, conf.writer, store))
