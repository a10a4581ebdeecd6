"""How the limits of a request are decided: in one call where they can be, each counter charged once, all or nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratekit import keys
from ratekit.anonymous import anonymous_subject, note_pass
from ratekit.decisions import Wanted, charged_once, grouped, over_limit, refund_of
from ratekit.errors import RatekitError, RateLimitExceeded, UnusableRequestError
from ratekit.front import Refusal, cost_of, current_mode, is_refused, refusal_of
from ratekit.identity import KeyFunction, checked_subject, identified_subject
from ratekit.modes import RateLimitMode, weakest
from ratekit.protocol import Operation, encode, merge
from ratekit.results import RateLimitResult
from ratekit.wsgi import RESULTS
from ratekit_django.conf import conf
from ratekit_django.limits import ENDPOINT, PROJECT, USER, ViewLimit
from ratekit_django.requests import IDENTITY, LEDGER, DjangoRequest, read_body, state_of
from ratekit_django.steps import Ask, Decide, Steps, arun, run
from ratekit_django.urls import url_of

anonymous_passes: Counter[str] = Counter()  # requests that passed since nobody could be named for them, by endpoint
_log = logging.getLogger("ratekit_django")


class Outcome(NamedTuple):
    """What was decided about a request: it may pass, or here is the answer, and the error that it stands for."""

    refusal: Refusal | None = None
    error: RatekitError | None = None
    result: RateLimitResult | None = None  # None: the request is not limited


PASS = Outcome()


@dataclass(slots=True)
class Ledger:
    """What the limits that are declared for a request have done so far: in rules, on its view, as throttles."""

    charged: set[bytes] = field(default_factory=set)
    spent: list[Wanted] = field(default_factory=list)
    is_refused: bool = False


def decide(limits: Sequence[ViewLimit], request: Any, view: str | None = None, ledger: Ledger | None = None) -> Outcome:
    """Decide a request, waiting.

    view is the name of a view that may be called without a URL; ledger is that of the request unless it is given.
    """
    return run(_deciding(limits, request, view, ledger or _ledger_of(request)))


async def adecide(
    limits: Sequence[ViewLimit], request: Any, view: str | None = None, ledger: Ledger | None = None
) -> Outcome:
    """Decide a request, awaiting."""
    return await arun(_deciding(limits, request, view, ledger or _ledger_of(request)))


def _ledger_of(request: Any) -> Ledger:
    state = state_of(request)
    ledger: Ledger = state[LEDGER] if LEDGER in state else state.setdefault(LEDGER, Ledger())
    return ledger


def _deciding(limits: Sequence[ViewLimit], request: Any, view: str | None, ledger: Ledger) -> Steps[Outcome]:
    wanted: list[Wanted] = []
    for limit in limits:
        mode = _mode_of(limit)
        if mode is RateLimitMode.OFF or not limit.counts(request.method):
            continue
        try:
            one = yield from _wanted(limit, request, mode, view)
        except RatekitError as error:
            refusal = refusal_of(error, mode)
            if refusal is not None:
                return Outcome(refusal, error)
        else:
            wanted += [] if one is None else [one]
    # Frameworks ask every throttle, also after one has refused: those spend nothing any more.
    return (yield from _decided(wanted, request, ledger)) if wanted and not ledger.is_refused else PASS


def _mode_of(limit: ViewLimit) -> RateLimitMode:
    conf.follow_fleet()
    mode = current_mode(limit.mode)
    return mode if conf.mode is None else weakest(mode, conf.mode)


def _wanted(limit: ViewLimit, request: Any, mode: RateLimitMode, view: str | None) -> Steps[Wanted | None]:
    """Find out what there is to decide: who asks on which endpoint, and what it costs."""
    endpoint = limit.endpoint or limit.endpoint_on(url_of(request, view), request.method)
    subject = yield from _subject(limit, request, endpoint)
    if subject is None:
        return None
    cost = limit.cost
    if callable(cost):
        cost = yield from _asked("what it costs", cost, request)
    call = encode(limit.policy, subject, endpoint, conf.prefix, Operation.CHECK, cost_of(cost, request))
    return Wanted(call, endpoint, mode, limit.on_outage)


def _subject(limit: ViewLimit, request: Any, endpoint: str) -> Steps[str | None]:
    """Find out who is limited. Who does not send what clients have to send is known by the address."""
    if limit.who.kind == ENDPOINT:
        return keys.whole_endpoint_subject(endpoint)
    front = DjangoRequest(request, conf.proxies)
    subject, why = yield from _named(limit, front)
    if subject is None and limit.who.key is None:
        subject = anonymous_subject(limit.anonymous or conf.anonymous, front)
    elif subject is None and limit.who.key is not None and limit.who.key.is_claimed:
        subject, why = front.address(), _NO_ADDRESS
    if subject is None:
        note_pass(anonymous_passes, _log, endpoint, why)
    return subject


_NO_ADDRESS = "has no address (a Unix socket?): set TRUSTED_HOPS"
_NO_PROJECT = "has no project: set RATEKIT['IDENTIFY'], or anonymous='ip'"
_NO_USER = "has no authenticated user: set anonymous='ip' to limit its address"
_NOBODY = "is said to be nobody's by its key function"


def _named(limit: ViewLimit, front: DjangoRequest) -> Steps[tuple[str | None, str]]:
    """Return who is limited, and what it means if that is nobody."""
    who, request = limit.who, front.native
    if who.kind == PROJECT:
        return (yield from _project(request)), _NO_PROJECT
    if who.kind == USER:
        return (yield Ask(_user_subject, request, _auser_subject)), _NO_USER
    if who.key is not None:
        return _key_subject(who.key, front), _NO_ADDRESS if who.key.is_address else _NOBODY
    return checked_subject((yield from _asked("who is limited", who.call, request))), _NOBODY


def _project(request: Any) -> Steps[str | None]:
    """Ask IDENTIFY, once for a request if it knows."""
    state = state_of(request)
    known: str | None = state.get(IDENTITY)
    if known is None:
        known = identified_subject((yield from _asked("the project", conf.identify, request)))
        state[IDENTITY] = known
    return known


def _key_subject(key: KeyFunction, front: DjangoRequest) -> str | None:
    try:
        if key.looks_into_body(front):
            front.body = read_body(front.native, key)
        return key(front)
    except ValueError as error:
        raise _untold("who is limited", error) from None


def _asked(what: str, function: Any, request: Any) -> Steps[Any]:
    try:
        return (yield Ask(function, request))
    except ValueError as error:
        raise _untold(what, error) from None


def _untold(what: str, error: ValueError) -> UnusableRequestError:
    return UnusableRequestError(f"{what} cannot be told from the request: {error}")


def _decided(wanted: Sequence[Wanted], request: Any, ledger: Ledger) -> Steps[Outcome]:
    results: list[RateLimitResult] = state_of(request).setdefault(RESULTS, [])
    for group in [list(wanted)] if len(wanted) == 1 else grouped(wanted, one_slot=conf.one_slot):
        first, call = group[0], merge([one.call for one in group])
        try:
            result = yield from _once(first._replace(call=call), ledger.charged, request)
        except RatekitError as error:
            refusal = refusal_of(error, first.mode)
            if refusal is not None:
                return Outcome(refusal, error)
            continue
        results.append(result)
        if not result.allowed and is_refused(first.mode, over_limit(group, result), result):
            yield from _give_back(ledger, request)
            return Outcome(conf.answers.refusal(results), RateLimitExceeded(result), result)
        if result.allowed and result.degraded is None:
            ledger.spent.append(first._replace(call=call))
    return Outcome(result=results[-1]) if results else PASS


def _once(one: Wanted, charged: set[bytes], request: Any) -> Steps[RateLimitResult]:
    steps = charged_once(one.call, charged)
    call = next(steps)
    while True:
        result = yield Decide(one._replace(call=call), request)
        try:
            call = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def _give_back(ledger: Ledger, request: Any) -> Steps[None]:
    """Give back what the limits before one that refuses have taken: a refused request spends from none."""
    ledger.is_refused = True
    while ledger.spent:
        one = ledger.spent.pop()
        counters = set(one.call.state_keys)
        if not counters <= ledger.charged:
            continue  # another limit has taken their place
        ledger.charged -= counters
        try:
            yield Decide(one._replace(call=refund_of(one.call)), request)
        except RatekitError as error:
            _log.warning("what a refused request had spent could not be given back: %s", error)


def _user_subject(request: Any) -> str | None:
    return _subject_of(getattr(request, "user", None))


async def _auser_subject(request: Any) -> str | None:
    return _subject_of(await request.auser()) if hasattr(request, "auser") else _user_subject(request)


def _subject_of(user: Any) -> str | None:
    known = user is not None and user.is_authenticated and getattr(user, "pk", None) is not None
    return f"user:{user.pk}" if known else None
