"""The limits that are declared on views become checks. Django and Flask share this; each says what it knows of a request.

A flow, like the engine that it hands its checks to, so that callables of the application may be awaited where there is an
event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from ratekit.core import keys
from ratekit.core.errors import RatekitError
from ratekit.core.limits import Policy
from ratekit.core.modes import RateLimitMode
from ratekit.stores.contract import AsyncStore, Store
from ratekit.web.answers import ResponseWriter, error_response
from ratekit.web.arguments import blocking_mode, counter_answered, untold
from ratekit.web.charged_checks import charged_check
from ratekit.web.checks import Check, grouped
from ratekit.web.decide import decide, refuse
from ratekit.web.exemptions import NOTHING, is_exempt
from ratekit.web.identity import (
    NOBODY,
    KeyFunction,
    anonymous_subject,
    asubject_of,
    checked_subject,
    note_address,
    note_pass,
    subject_of,
    why_nobody,
)
from ratekit.web.ledger import Ledger
from ratekit.web.plans import NO_LIMITS, PlanFunction, Plans, without_slots
from ratekit.web.requests import FrontRequest
from ratekit.web.steps import PASS, Ask, Flow, Step, Verdict
from ratekit.web.view_limit import ENDPOINT, PROJECT, USER, ViewLimit

Found = TypeVar("Found")
Finding = Generator[Step, Any, Found]


class ViewSettings(Protocol):
    """What an application has set for all of its limits."""

    @property
    def prefix(self) -> str:
        """What keys start with."""

    @property
    def writer(self) -> ResponseWriter:
        """Who writes headers and refusals."""

    @property
    def anonymous(self) -> str:
        """What is done with requests without a project, or a user, where a limit does not say."""

    @property
    def plans(self) -> Plans:
        """The named sets of limits."""

    @property
    def plan_of(self) -> PlanFunction | None:
        """The application's lookup of a request's plan."""

    def mode_of(self, limit: ViewLimit) -> RateLimitMode:
        """Return the mode of a limit now."""


class ViewRequest(ABC):
    """A framework's request, as the limits of a view see it."""

    method: str  # in upper case
    no_project: str  # why a request has no project, for the log
    no_user: str = "it has no authenticated user, and anonymous is 'pass'"
    front: FrontRequest  # as key functions see it

    @property
    @abstractmethod
    def route(self) -> str:
        """The URL pattern that the request has met: the endpoint, unless a limit names one."""

    @abstractmethod
    def operation(self, method: str) -> Sequence[str] | None:
        """Return the methods that the view is declared for, None if it declares none."""

    @abstractmethod
    def project(self) -> Finding[str | None]:
        """Find out the subject of the project that the request was authenticated for."""

    @abstractmethod
    def user(self) -> Finding[str | None]:
        """Find out the subject of the user who is authenticated."""

    @abstractmethod
    def ask(self, function: Callable[[Any], Any]) -> Ask:
        """Return the step that asks the application's own code about the request."""

    @abstractmethod
    def read_body(self, by: KeyFunction) -> bytes | None:
        """Return the body for a key function that looks into it; None where somebody has read or parsed it before."""

    def warns_of_address(self, limit: ViewLimit) -> bool:
        """Whether nobody has said that a request without a project is limited by its address."""
        return limit.anonymous is None

    def asked(self, what: str, function: Callable[[Any], Any]) -> Finding[Any]:
        """Ask the application's own code. A ValueError of it is a 400."""
        try:
            return (yield self.ask(function))
        except RatekitError:
            raise
        except ValueError as error:
            raise untold(what, error) from None


def decide_view(
    limits: Sequence[ViewLimit],
    request: ViewRequest,
    settings: ViewSettings,
    ledger: Ledger,
    store: Store | AsyncStore,
    *,
    once: bool = True,
) -> Flow:
    """Decide a request by limits that are declared. once: limits that meet in one counter charge it once."""
    checks: list[Check] = []
    for limit in limits:
        mode = blocking_mode(settings.mode_of(limit), block=limit.block)
        if mode is RateLimitMode.OFF or not limit.counts(request.method):
            continue
        try:
            check = yield from _check(limit, request, settings, mode)
        except RatekitError as error:
            response = error_response(error, mode)
            if response is not None:
                yield from refuse(ledger, store.place)
                return Verdict(response, error)
        else:
            checks += [] if check is None else [check]
    if not checks:
        return PASS
    groups = grouped(checks, one_slot=store.one_slot)
    return (yield from decide(groups, ledger, settings.writer, store.place, once=once))


def _check(limit: ViewLimit, request: ViewRequest, settings: ViewSettings, mode: RateLimitMode) -> Finding[Check | None]:
    """Find out what there is to decide: which limits, who asks on which endpoint, and what it costs."""
    if limit.exempt is not NOTHING and (yield from is_exempt(limit.exempt, request.front, request.ask)):
        return None
    endpoint = yield from _endpoint(limit, request)
    policy = limit.policy_on(request.method, request.operation)
    if policy is None and (policy := (yield from _asked_policy(limit, request, settings))) is None:
        note_pass(endpoint, NO_LIMITS)
        return None
    subject = yield from _subject(limit, request, settings, endpoint)
    if subject is None:
        return None
    cost, charging, prefix, on_outage = limit.cost, limit.charging, settings.prefix, limit.on_outage
    units = None if limit.declared.policy is not None else settings.plans.units
    return (yield from charged_check(policy, subject, endpoint, prefix, cost, charging, mode, on_outage, request.ask, units))


def _endpoint(limit: ViewLimit, request: ViewRequest) -> Finding[str]:
    if callable(limit.counter):
        return counter_answered((yield request.ask(limit.counter)))
    return limit.fixed_endpoint or request.route


def _asked_policy(limit: ViewLimit, request: ViewRequest, settings: ViewSettings) -> Finding[Policy | None]:
    """Ask for the limits of a request. None: it is not limited."""
    answer = yield request.ask(limit.declared.function(settings.plan_of))
    qualifier = limit.qualifier_on(request.method, request.operation)
    policy = settings.plans.policy(answer, qualifier, limit.meaning, is_plan=limit.declared.is_by_plan)
    return None if policy is None else without_slots(policy)


def _subject(limit: ViewLimit, request: ViewRequest, settings: ViewSettings, endpoint: str) -> Finding[str | None]:
    """Find out who is limited; what happens without a project or a user is the view's to say, or the setting's."""
    if limit.who.kind == ENDPOINT:
        return keys.whole_endpoint_subject(endpoint)
    subject, why = yield from _named(limit, request)
    if subject is None and limit.who.kind in (PROJECT, USER):
        subject = _substitute(limit, request, settings, endpoint)
    if subject is None:
        note_pass(endpoint, why)
    return subject


def _substitute(limit: ViewLimit, request: ViewRequest, settings: ViewSettings, endpoint: str) -> str | None:
    """Return who is limited where there is no project, or no user."""
    if limit.who.kind == PROJECT and request.warns_of_address(limit):
        note_address(endpoint, request.no_project)
    return anonymous_subject(limit.anonymous or settings.anonymous, request.front, limit.who.kind)


def _named(limit: ViewLimit, request: ViewRequest) -> Finding[tuple[str | None, str]]:
    """Return who is limited, and what it means if that is nobody."""
    who = limit.who
    if who.kind == PROJECT:
        return (yield from request.project()), request.no_project
    if who.kind == USER:
        return (yield from request.user()), request.no_user
    if who.key is not None:
        return (yield from _key_subject(who.key, request)), why_nobody(who.key)
    return checked_subject((yield from request.asked("who is limited", who.function))), NOBODY


def _key_subject(key: KeyFunction, request: ViewRequest) -> Finding[str | None]:
    front = request.front
    if key.looks_into_body(front):
        front.body = request.read_body(key)
    if key.aread is None:
        return subject_of(key, front)

    async def awaited(_: Any) -> str | None:
        return await asubject_of(key, front)

    subject: str | None = yield request.ask(awaited)
    return subject
