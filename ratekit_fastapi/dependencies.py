"""Limiters for `Depends`."""

from __future__ import annotations

import inspect
import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response

from ratekit import keys
from ratekit.anonymous import anonymous_subject, check_anonymous, note_pass
from ratekit.errors import UnusableRequestError
from ratekit.front import checked_cost, checked_mode, cost_of, mode_reader
from ratekit.identity import KeyFunction, as_key_function
from ratekit.limits import Limit, Policy
from ratekit.modes import RateLimitMode
from ratekit.outage import as_on_outage
from ratekit.protocol import Call, Operation, encode, encode_keys
from ratekit.requests import AsgiRequest
from ratekit.rules import RuleLimits, check_endpoint, policy_of
from ratekit_fastapi import decisions
from ratekit_fastapi.bodies import BODY, read_body
from ratekit_fastapi.routes import endpoint_of
from ratekit_fastapi.settings import IDENTITY, Settings, settings_of

By = KeyFunction | Callable[[Any], str | None] | str
anonymous_passes: Counter[str] = Counter()  # requests without a project that passed, by endpoint
_log = logging.getLogger("ratekit_fastapi")
_MOST_CALLS = 1024
_DERIVED = ("_hash", "_key_function", "_calls", "current_mode", "shortcuts")  # from what else makes a limiter what it is
_TAGGED = re.compile(r"[^{}]+\{[^{}]+\}[^{}]*").fullmatch


class RateLimiterDependency:
    """A limiter for `Depends`: of HTTP and of WebSocket routes.

    limits, a policy, or max_requests per expiry seconds; cost is a number or a callable of the request; endpoint is the
    route's template unless it is given; mode and on_outage are this limiter's own; by says who is limited.
    Subclasses may override make_key and make_override_key.
    """

    def __init__(
        self,
        max_requests: int | None = None,
        expiry: float | None = None,
        *,
        limits: RuleLimits | None = None,
        policy: Policy | Limit | None = None,
        cost: int | Callable[[Any], Any] = 1,
        endpoint: str | None = None,
        mode: str | RateLimitMode | None = None,
        on_outage: str | None = None,
        by: By | None = None,
    ) -> None:
        self.policy = policy_of(max_requests, expiry, limits, policy)
        self._hash = hash((type(self), self.policy, endpoint))
        self.cost = checked_cost(cost)
        self.endpoint = check_endpoint(endpoint)
        self.mode = checked_mode(mode)
        self.current_mode = mode_reader(self.mode)  # the mode for this request
        self.on_outage = None if on_outage is None else as_on_outage(on_outage)
        self._by = by
        self._calls: dict[tuple[str, str, int], Call] = {}
        self._key_function = as_key_function(by) if by is not None else None
        self.needs_body = self._key_function is not None and self._key_function.needs_body
        self.needs_identity = self._uses_project and by is None
        own = (type(self).make_key, type(self).make_override_key)
        self._has_own_keys = own != (RateLimiterDependency.make_key, RateLimiterDependency.make_override_key)
        self.shortcuts: dict[int, decisions.Shortcut] = {}  # by the identity of their routes

    _uses_project = False

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

    __call__ = decisions.decide

    @property
    def is_same_for_all(self) -> bool:
        """Whether every request to an endpoint is counted alike, whoever sends it, and no code but ours is asked."""
        return False

    def __setattr__(self, name: str, value: Any) -> None:
        """Find out anew how requests are decided by a limiter that is changed."""
        object.__setattr__(self, name, value)
        vars(self).get("shortcuts", {}).clear()

    def shorten(self, shortcut: decisions.Shortcut) -> None:
        """Decide the next requests to a route by a shortcut."""
        if len(self.shortcuts) >= _MOST_CALLS:
            self.shortcuts.clear()
        self.shortcuts[id(shortcut.route)] = shortcut

    def call(self, request: HTTPConnection, settings: Settings, cost: int) -> Call | None:
        """Make the call that decides a request; None if it is not limited here."""
        if not self._has_own_keys:
            subject = self.subject(request)
            if subject is None:
                return None
            return encode(self.policy, subject, self.endpoint_for(request), settings.prefix, Operation.CHECK, cost)
        key = self._checked_key(request, self.make_key(request))
        return None if key is None else encode_keys(self.policy, key, self.make_override_key(request), cost)

    def _checked_key(self, request: HTTPConnection, key: str | None) -> str | None:
        """Refuse a key that is none. What a subclass makes of the None of a request without a subject is still None."""
        if key is None or (isinstance(key, str) and _TAGGED(key)):
            return key
        if RateLimiterDependency.make_key(self, request) is None:
            return None
        raise UnusableRequestError(f"make_key answered {key!r}, which is no key with a tag in braces")

    async def load_body(self, request: HTTPConnection) -> None:
        """Read the body, for a key function that looks into it."""
        if self._key_function is not None:
            request.scope[BODY] = await read_body(request, self._key_function)

    async def cost_for(self, request: HTTPConnection) -> int:
        """Return what a request costs."""
        cost = self.cost(request) if callable(self.cost) else self.cost
        return cost_of(await cost if inspect.isawaitable(cost) else cost, request)

    def is_decided_with(self, other: RateLimiterDependency) -> bool:
        """Whether this limiter and another treat a refusal and an outage alike, so that one call can decide both."""
        return self.current_mode() is other.current_mode() and self.on_outage == other.on_outage

    def note_pass(self, request: HTTPConnection) -> None:
        """Take note of a request that is not limited here; warn of the first where that is not what anybody asked for."""
        by = self._key_function
        if by is not None and (by.is_claimed or by.is_address):
            _count_pass(self.endpoint_for(request), "has no address (a Unix socket?): set trusted_hops")

    def _subject_by(self, request: HTTPConnection) -> str | None:
        """Ask the key function: ratekit's own get its view of the request, a callable gets the framework's."""
        if self._key_function is None:
            return None
        try:
            if not isinstance(self._by, KeyFunction | str):
                return self._key_function(request)  # type: ignore[arg-type]
            front_request = _front_request(request)
            front_request.body = request.scope.get(BODY)
            return self._key_function(front_request)
        except ValueError as error:
            raise UnusableRequestError(f"who is limited cannot be told from the request: {error}") from None

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

    anonymous says what happens to a request without one: "pass" (warned of once per endpoint, and counted), "ip" limits its
    address instead, "refuse" answers 401.
    """

    def __init__(
        self, max_requests: int | None = None, expiry: float | None = None, *, anonymous: str = "pass", **options: Any
    ):
        super().__init__(max_requests, expiry, **options)
        self.anonymous = check_anonymous(anonymous)

    _uses_project = True

    def subject(self, request: HTTPConnection) -> str | None:
        """Return the project, or what by says."""
        subject: str | None = self._subject_by(request) if self._by is not None else request.scope.get(IDENTITY)
        return anonymous_subject(self.anonymous, _front_request(request)) if subject is None else subject

    def note_pass(self, request: HTTPConnection) -> None:
        """Count a request that is not limited, as it has no project; warn of the first."""
        if self._by is not None:
            _count_pass(self.endpoint_for(request), "is said to be nobody's by its key function")
        elif request.scope.get(IDENTITY) is None:
            _count_pass(
                self.endpoint_for(request),
                "has no project. A limiter in dependencies=[…] runs before authentication that is declared as a parameter: "
                "declare it after, set identify=, or anonymous='ip'",
            )


class PathRateLimiter(RateLimiterDependency):
    """Limits an endpoint as a whole, all callers together; with by="ip" or any key function, each caller.

    A caller who does not say what the key function asks for is limited by the address: saying nothing must not pay.
    """

    def call(self, request: HTTPConnection, settings: Settings, cost: int) -> Call | None:
        """Make the call that decides a request; an endpoint as a whole has the same one each time."""
        if not self.is_same_for_all:
            return super().call(request, settings, cost)
        key = (settings.prefix, self.endpoint_for(request), cost)
        call = self._calls.get(key)
        if call is None:
            call = super().call(request, settings, cost)
            if call is not None and not call.compiled.is_soft and len(self._calls) < _MOST_CALLS:  # soft ones draw a number
                self._calls[key] = call
        return call

    @property
    def is_same_for_all(self) -> bool:
        """Whether it counts an endpoint as a whole, and a subclass has no say in it."""
        own = (type(self).subject, type(self).endpoint_for, type(self).call)
        is_own = own != (PathRateLimiter.subject, PathRateLimiter.endpoint_for, PathRateLimiter.call)
        return not (is_own or self._has_own_keys or self._key_function is not None or callable(self.cost))

    def subject(self, request: HTTPConnection) -> str | None:
        """Return the endpoint itself, or what by says."""
        if self._key_function is None:
            return keys.whole_endpoint_subject(self.endpoint_for(request))
        subject = self._subject_by(request)
        if subject is None and self._key_function.is_claimed:
            return _front_request(request).address()
        return subject


def _count_pass(endpoint: str, why: str) -> None:
    note_pass(anonymous_passes, _log, endpoint, why)


# FastAPI before 0.128 does not resolve the names of annotations on the call of an instance.
RateLimiterDependency.__call__.__annotations__ = {"connection": HTTPConnection, "response": Response, "return": None}


def _front_request(request: HTTPConnection) -> AsgiRequest:
    return AsgiRequest(request.scope, settings_of(request.scope).proxies)
