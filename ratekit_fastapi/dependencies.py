"""Limiters for `Depends`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from fastapi import params
from starlette.requests import HTTPConnection
from starlette.responses import Response

from ratekit.core import keys
from ratekit.core.errors import ConfigurationError
from ratekit.core.limit_names import Meaning, qualified, with_meaning
from ratekit.core.limits import Limit, Policy
from ratekit.core.modes import RateLimitMode, weakest
from ratekit.core.protocol import CostGiven, encode_keys
from ratekit.web.arguments import (
    check_endpoint,
    checked_block,
    checked_cost,
    checked_mode,
    checked_on_outage,
    cost_of,
    mode_reader,
    refuse_unknown,
    wrong_type,
)
from ratekit.web.charged_checks import charged_check
from ratekit.web.charging import (
    ChargingOptions,
    charging_of,
    check_charging,
    meaning_of,
)
from ratekit.web.checks import Check
from ratekit.web.drivers import arun
from ratekit.web.identity import (
    DEFAULT_ANONYMOUS,
    By,
    KeyFunction,
    anonymous_subject,
    as_key_function,
    asubject_of,
    check_anonymous,
    checked_subject,
    client_ip,
    note_address,
    note_pass,
    subject_of,
    why_nobody,
)
from ratekit.web.plans import NO_LIMITS, Cost, LimitsFunction, RuleLimits, declared
from ratekit.web.steps import Ask
from ratekit_fastapi import decisions
from ratekit_fastapi.requests import StarletteRequest, load_body
from ratekit_fastapi.routes import RateLimiterMark, effective_route, endpoint_of, limiters_after, operation_of
from ratekit_fastapi.settings import IDENTITY, SUBJECTS, Settings, settings_of

_NO_PROJECT = (
    "it has no project. A limiter in dependencies=[…] runs before authentication that is declared as a parameter: "
    "declare it after, or set identify=; anonymous= says what happens to requests without a project"
)
# What follows from what else makes a limiter what it is.
_DERIVED = ("version", "_hash", "_key_function", "_policies", "current_mode", "__signature__")
_FOUND = "ratekit_subject"  # the parameter in which FastAPI hands over what the dependency that by= names has answered
_NO_SUBJECTS: dict[int, str | None] = {}
_ON = RateLimitMode.ON
_TAGGED = re.compile(r"[^{}]+\{[^{}]+\}[^{}]*").fullmatch


class LimiterArguments(ChargingOptions, total=False):
    """The keyword arguments of every limiter for `Depends`: see RateLimiterDependency."""

    limits: RuleLimits | LimitsFunction | None
    policy: Policy | Limit | None
    cost: Cost
    endpoint: str | None
    mode: str | RateLimitMode | None
    on_outage: str | None
    by: By | params.Depends | None
    block: bool


_ARGUMENTS = {*ChargingOptions.__annotations__, *LimiterArguments.__annotations__, "max_requests", "expiry", "anonymous"}


class RateLimiterDependency(RateLimiterMark):
    """A limiter for `Depends`: of HTTP and of WebSocket routes.

    limits, a policy, or max_requests per expiry seconds. limits may be a callable of the request, which answers limits, a
    Policy, the name of a plan, or None (not limited); "plan" asks the plan_of of `install`. cost is a number or a callable
    of the request; endpoint is the route's template unless it is given; mode and on_outage are this limiter's own. by says
    who is limited: a key function, a callable of the request, or Depends(…), whose answer is the subject. Callables may be
    async. block=False counts, and never refuses: the endpoint reads the result, which the dependency returns. How it charges
    is said as in ChargingOptions: count=(401, 403), estimate=800.
    Subclasses may override make_key and make_override_key.
    """

    def __init__(
        self,
        max_requests: int | str | None = None,
        expiry: float | None = None,
        *,
        limits: RuleLimits | LimitsFunction | None = None,
        policy: Policy | Limit | None = None,
        cost: Cost = 1,
        endpoint: str | None = None,
        mode: str | RateLimitMode | None = None,
        on_outage: str | None = None,
        by: By | params.Depends | None = None,
        block: bool = True,
        **charges: Unpack[ChargingOptions],
    ) -> None:
        refuse_unknown(type(self).__name__, charges, _ARGUMENTS)
        self.cost = checked_cost(cost)
        self.charging = charging_of({**charges, "cost": cost})
        self.declared = declared(max_requests, expiry, limits, policy)
        self.policy = self._counted(self.declared.policy)
        self._hash = hash((type(self), self.policy, endpoint))
        self.block = checked_block(block)
        self._policies: dict[str, Policy] = {}
        self.endpoint = check_endpoint(endpoint)
        self.mode = checked_mode(mode)
        self.current_mode = mode_reader(self.mode if self.block else weakest(self.mode or _ON, RateLimitMode.MONITOR))
        self.on_outage = checked_on_outage(on_outage)
        self._by = by
        self._key_function = None if by is None else _key_function(by)
        if type(self).__call__ is RateLimiterDependency.__call__:
            self.__signature__ = signature_of(by if isinstance(by, params.Depends) else None)
        self.needs_body = self._key_function is not None and self._key_function.needs_body
        self.needs_identity = self._uses_project and by is None
        self._is_awaited = self._key_function is not None and self._key_function.aread is not None
        is_asked = type(cost) is not int or self.charging is not None
        self.has_to_wait = self.needs_identity or self.needs_body or self._is_awaited or is_asked
        self.is_by_peer = self._key_function == client_ip()  # so long as no proxy is trusted

    @property
    def _meaning(self) -> Meaning:
        """What it counts, which is part of the names of its limits."""
        return meaning_of(self.cost, self.charging)

    def _counted(self, policy: Policy | None) -> Policy | None:
        """Return a fixed policy as it is counted, or raise ConfigurationError if the limiter cannot charge it."""
        own = (type(self).make_key, type(self).make_override_key)
        self._has_own_keys = own != (RateLimiterDependency.make_key, RateLimiterDependency.make_override_key)
        if self._has_own_keys and self.charging is not None:
            raise ConfigurationError(f"{type(self).__name__} makes keys of its own, which have no estimate, count or share")
        check_charging(policy, self.cost, self.charging)
        return None if policy is None else with_meaning(policy, self._meaning)

    _uses_project = False
    version: object  # another one after each change of the limiter

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        super().__setattr__("version", object())

    @property
    def counted_by(self) -> str:
        """Who is counted, for people."""
        if self._key_function is not None:
            return self._key_function.name
        return "project" if self._uses_project else "everyone"

    def is_same_for(self, request: HTTPConnection, settings: Settings) -> bool:
        """Whether all requests to this route, of the same peer if the limiter is by peer, have the same checks."""
        scope, route = request.scope, effective_route(request.scope)
        is_known = type(self) in (PathRateLimiter, ProjectRateLimiter) and not self.has_to_wait
        if not is_known or not (self._by is None or self.is_by_peer) or limiters_after(route, self):
            return False
        if "app_root_path" in scope or not getattr(route, "methods", None):  # the endpoint depends on more than the route
            return False
        return not self.is_by_peer or (settings.proxies.is_empty and not _front_request(request).looks_for_proxy)

    def make_key(self, request: HTTPConnection) -> str | None:
        """Return the key of who is limited on what, to which ratekit appends `:<limit>`; None: not limited here."""
        subject = self.subject(request)
        if subject is None:
            return None
        return keys.base_key(settings_of(request.scope).prefix, self.endpoint_for(request), subject)

    def make_override_key(self, request: HTTPConnection) -> str | None:
        """Return the key of the hash with the subject's own numbers, with the same tag; None: no overrides."""
        subject = self.subject(request)
        if subject is None:
            return None
        return keys.override_key(settings_of(request.scope).prefix, self.endpoint_for(request), subject)

    def subject(self, request: HTTPConnection) -> str | None:
        """Return who is limited, None if nobody."""
        raise NotImplementedError

    def endpoint_for(self, request: HTTPConnection) -> str:
        """Return what is limited: the endpoint that was given, else the template of the route."""
        return self.endpoint or endpoint_of(request.scope)

    def _operation(self, request: HTTPConnection) -> str:
        """Return what tells the operation's counters: each of a path counts for itself, unless an endpoint was given."""
        return "" if self.endpoint is not None else operation_of(request.scope)

    async def asked_policy(self, request: HTTPConnection, settings: Settings) -> Policy | None:
        """Ask for the limits of a request. None: it is not limited."""
        answer = self.declared.function(settings.plan_of)(request)
        answer = await answer if inspect.isawaitable(answer) else answer
        policy = settings.plans.policy(answer, self._operation(request), self._meaning, is_plan=self.declared.is_by_plan)
        if policy is None:
            note_pass(self.endpoint_for(request), NO_LIMITS)
            return None
        return policy

    def policy_for(self, request: HTTPConnection) -> Policy:
        """Return the fixed policy of the operation."""
        if self.policy is None:
            raise ConfigurationError("the limits of this limiter depend on the request: ask asked_policy")
        operation = self._operation(request)
        if not operation:
            return self.policy
        if operation not in self._policies:
            self._policies[operation] = qualified(self.policy, operation)
        return self._policies[operation]

    __call__ = decisions.decide_route

    async def check(
        self, request: HTTPConnection, settings: Settings, mode: RateLimitMode, asked: Policy | None = None
    ) -> Check | None:
        """Return what there is to decide about a request; None if it is not limited here.

        asked is the policy that asked_policy has returned, for a limiter whose limits are not fixed.
        """
        if self.needs_identity:
            await settings.identity(request)
        if self.needs_body:
            await self.load_body(request)
        if self._is_awaited and self._key_function is not None:
            self._keep_subject(request, await asubject_of(self._key_function, _front_request(request)))
        if type(self.cost) is int and self.charging is None:
            return self.check_of(request, settings, mode, asked, self.cost)
        if self._has_own_keys:
            return self.check_of(request, settings, mode, asked, await self.cost_for(request))
        return await self._charged_check(request, settings, mode, asked)

    async def _charged_check(
        self, request: HTTPConnection, settings: Settings, mode: RateLimitMode, asked: Policy | None
    ) -> Check | None:
        policy, endpoint = self.policy_for(request) if asked is None else asked, self.endpoint_for(request)
        subject = self.subject(request)
        if subject is None:
            self.note_pass(request)
            return None

        def ask(function: Callable[[Any], Any]) -> Ask:
            return Ask(function, request, function)

        prefix, on_outage = settings.prefix, self.on_outage
        units = None if asked is None else settings.plans.units
        flow = charged_check(policy, subject, endpoint, prefix, self.cost, self.charging, mode, on_outage, ask, units)
        return await arun(flow, settings.own_limiter)

    def check_of(
        self,
        request: HTTPConnection,
        settings: Settings,
        mode: RateLimitMode,
        asked: Policy | None = None,
        cost: CostGiven | None = None,
    ) -> Check | None:
        """Return what there is to decide about a request, where nothing has to be awaited for it any more."""
        policy = self.policy_for(request) if asked is None else asked
        cost = cost_of(self.cost, request) if cost is None else cost
        endpoint = self.endpoint_for(request)
        if not self._has_own_keys:
            subject = self.subject(request)
            if subject is None:
                self.note_pass(request)
                return None
            return Check.of(policy, subject, endpoint, settings.prefix, cost, mode, self.on_outage)
        key = self._checked_key(request, self.make_key(request))
        if key is None:
            self.note_pass(request)
            return None
        call = encode_keys(policy, key, self.make_override_key(request), cost)
        return Check(call, endpoint, mode, self.on_outage)

    def _checked_key(self, request: HTTPConnection, key: str | None) -> str | None:
        """Refuse a key that is none. What a subclass makes of the None of a request without a subject is still None."""
        if key is None or (isinstance(key, str) and _TAGGED(key)):
            return key
        if RateLimiterDependency.make_key(self, request) is None:
            return None
        raise wrong_type("make_key", key, "a key with a tag in braces, or None")

    async def load_body(self, request: HTTPConnection) -> None:
        """Read the body, for a key function that looks into it."""
        if self._key_function is not None:
            await load_body(request, self._key_function, settings_of(request.scope).proxies)

    def looks_into_body(self, request: HTTPConnection) -> KeyFunction | None:
        """Return the key function if the body of this request has to be read for it."""
        by = self._key_function
        return by if by is not None and by.looks_into_body(_front_request(request)) else None

    async def cost_for(self, request: HTTPConnection) -> CostGiven:
        """Return what a request costs."""
        cost = self.cost(request) if callable(self.cost) else self.cost
        return cost_of(await cost if inspect.isawaitable(cost) else cost, request)

    def note_pass(self, request: HTTPConnection) -> None:
        """Take note of a request that is not limited here; warn of the first where that is not what anybody asked for."""
        if self._key_function is not None:
            note_pass(self.endpoint_for(request), why_nobody(self._key_function))

    def _subject_by(self, request: HTTPConnection) -> str | None:
        """Ask the key function, or return what it has answered when it was awaited."""
        if self._key_function is None:
            return None
        known: dict[int, str | None] = request.scope.get(SUBJECTS, _NO_SUBJECTS)
        if id(self) in known:
            return known[id(self)]
        return subject_of(self._key_function, _front_request(request))

    def note_subject(self, request: HTTPConnection, found: Mapping[str, object]) -> None:
        """Take note of what the dependency that by= names has answered: who is limited."""
        self._keep_subject(request, checked_subject(found[_FOUND]))

    def _keep_subject(self, request: HTTPConnection, subject: str | None) -> None:
        request.scope.setdefault(SUBJECTS, {})[id(self)] = subject

    def _identity(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _DERIVED}

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return self._hash


class ProjectRateLimiter(RateLimiterDependency):
    """Limits each project on an endpoint. The project is the one that the request was authenticated for.

    anonymous says what happens to a request without one: "ip" limits its address instead (the default, and then said once in
    the log), "pass" lets it pass (warned of once per endpoint, and counted), "refuse" answers 401. It has no say where `by`
    is given.
    """

    def __init__(
        self,
        max_requests: int | str | None = None,
        expiry: float | None = None,
        *,
        anonymous: str | None = None,
        **options: Unpack[LimiterArguments],
    ) -> None:
        super().__init__(max_requests, expiry, **options)
        self.anonymous = None if anonymous is None else check_anonymous(anonymous)

    _uses_project = True

    def subject(self, request: HTTPConnection) -> str | None:
        """Return the project, or what by says."""
        if self._by is not None:
            return self._subject_by(request)
        subject: str | None = request.scope.get(IDENTITY)
        return self._substitute(request) if subject is None else subject

    def _substitute(self, request: HTTPConnection) -> str | None:
        """Return who is limited in place of the project."""
        if self.anonymous is None:
            note_address(self.endpoint_for(request), _NO_PROJECT)
        return anonymous_subject(self.anonymous or DEFAULT_ANONYMOUS, _front_request(request))

    def note_pass(self, request: HTTPConnection) -> None:
        """Count a request that is not limited, as it has no project; warn of the first."""
        if self._by is not None:
            super().note_pass(request)
        elif request.scope.get(IDENTITY) is None:
            note_pass(self.endpoint_for(request), _NO_PROJECT)


class PathRateLimiter(RateLimiterDependency):
    """Limits an endpoint as a whole, all callers together; with by="ip" or any key function, each caller.

    A caller who does not say what the key function asks for is limited by the address: saying nothing must not pay.
    """

    def subject(self, request: HTTPConnection) -> str | None:
        """Return the endpoint itself, or what by says."""
        if self._key_function is None:
            return keys.whole_endpoint_subject(self.endpoint_for(request))
        return self._subject_by(request)


def _key_function(by: By | params.Depends) -> KeyFunction:
    """Return the key function of by. What a dependency answers is known before it is asked: FastAPI hands it over."""
    if not isinstance(by, params.Depends):
        return as_key_function(by)
    if by.dependency is None:
        raise ConfigurationError("by Depends() names no dependency")
    return KeyFunction(f"Depends({getattr(by.dependency, '__name__', 'custom')})", lambda _: None)


def signature_of(by: params.Depends | None) -> inspect.Signature:
    """Return what FastAPI hands a limiter: the request, the response, and the answer of the dependency that by= names."""
    named = {"connection": HTTPConnection, "response": Response}
    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in named.items()]
    found = inspect.Parameter(_FOUND, inspect.Parameter.KEYWORD_ONLY, annotation=Any, default=by)
    return inspect.Signature(own if by is None else [*own, found])


def _front_request(request: HTTPConnection) -> StarletteRequest:
    return StarletteRequest(request, settings_of(request.scope).proxies)
