"""What is declared on a view, in a throttle or in a rule of Django or Flask: a policy, whom it limits, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

from ratekit.core.errors import ConfigurationError
from ratekit.core.limit_names import OPTIONS, Meaning, by_methods, by_operation, qualified, with_meaning
from ratekit.core.limits import Limit, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.web.arguments import (
    check_endpoint,
    checked_block,
    checked_cost,
    checked_counter,
    checked_mode,
    checked_on_outage,
    refuse_unknown,
)
from ratekit.web.charging import Charging, ChargingOptions, charging_of, check_charging, meaning_of
from ratekit.web.exemptions import NOTHING, Exempt, Exemptions
from ratekit.web.identity import By, KeyFunction, as_key_function, check_anonymous
from ratekit.web.methods import checked_methods
from ratekit.web.plans import Cost, Declared, LimitsFunction, RuleLimits, declared, without_slots

PROJECT, USER, ENDPOINT = "project", "user", "endpoint"


class Who(NamedTuple):
    """Whom a limit counts: by a key function of ratekit's, by a callable of the project's, or in one of three ways."""

    kind: str
    key: KeyFunction | None = None  # it is asked about ratekit's view of the request
    call: Callable[[Any], Any] | None = None  # it is asked about the framework's request, and may be awaited

    @property
    def name(self) -> str:
        """What people call it: "project", "ip", the name of a callable."""
        if self.key is not None:
            return self.key.name
        return self.kind if self.call is None else getattr(self.call, "__name__", "callable")

    @property
    def function(self) -> Callable[[Any], Any]:
        """The application's own callable."""
        if self.call is None:
            raise TypeError(f"a limit by {self.kind} asks no callable of the application")
        return self.call


class ViewOptions(ChargingOptions, total=False):
    """The arguments of rate_limit that do not say how much is allowed: throttles and apply_rate_limit take them too.

    How it charges is said as in ChargingOptions.
    """

    cost: Cost
    by: By
    methods: Iterable[str] | None
    endpoint: str | None
    counter: str | Callable[[Any], Any] | None
    mode: str | RateLimitMode | None
    on_outage: str | None
    anonymous: str | None
    exempt: Iterable[Exempt]
    block: bool


_ARGUMENTS = {*ChargingOptions.__annotations__, *ViewOptions.__annotations__, "max_requests", "expiry", "limits", "policy"}


class ViewLimit(NamedTuple):
    """A limit as it is declared, checked when it is made."""

    declared: Declared
    cost: Cost
    who: Who
    methods: frozenset[str] | None
    endpoint: str | None
    mode: RateLimitMode | None
    on_outage: OnOutage | None
    anonymous: str | None
    counter: str | Callable[[Any], Any] | None = None  # what it is counted under, whatever the methods, or who says that
    exempt: Exemptions = NOTHING
    block: bool = True
    policy: Policy | None = None  # its limits have the methods and the cost in their names; None: declared is asked
    is_rule: bool = False  # of the settings: it knows URLs, and not the operations of a view
    charging: Charging | None = None  # how it charges, if that is more than a cost

    @property
    def meaning(self) -> Meaning:
        """What it counts, which is part of the names of its limits."""
        return meaning_of(self.cost, self.charging)

    def counts(self, method: str) -> bool:
        """Whether a request of that method is limited. HEAD is GET without the body."""
        return self.methods is None or method in self.methods or (method == "HEAD" and "GET" in self.methods)

    @property
    def fixed_endpoint(self) -> str | None:
        """What it is counted under whatever the route; None: the route, or what counter answers."""
        return self.counter if isinstance(self.counter, str) else self.endpoint

    def policy_on(self, method: str, operation_of: Callable[[str], Sequence[str] | None]) -> Policy | None:
        """Return the policy for a method, None if it has to be asked for."""
        if self.policy is None or self.methods is not None:
            return self.policy
        qualifier = self.qualifier_on(method, operation_of)
        return qualified(self.policy, qualifier) if qualifier else self.policy

    def qualifier_on(self, method: str, operation_of: Callable[[str], Sequence[str] | None]) -> str:
        """Return what tells the counters of a method from others.

        Where no method is declared, all methods share a counter, and OPTIONS has another. operation_of returns the methods
        that the view itself is declared for, None if it declares none.
        """
        if self.methods is not None:
            return "" if self.counter is not None else by_methods(self.methods)
        has_operation = not self.is_rule and self.endpoint is None and self.counter is None
        operation = operation_of(method) if has_operation else None
        return by_operation(operation) if operation is not None else OPTIONS if method == "OPTIONS" else ""


def view_limit(
    max_requests: int | str | None = None,
    expiry: float | None = None,
    *,
    limits: RuleLimits | LimitsFunction | None = None,
    policy: Policy | Limit | None = None,
    cost: Cost = 1,
    by: By = PROJECT,
    methods: Iterable[str] | None = None,
    endpoint: str | None = None,
    counter: str | Callable[[Any], Any] | None = None,
    mode: str | RateLimitMode | None = None,
    on_outage: str | None = None,
    anonymous: str | None = None,
    exempt: Iterable[Exempt] = (),
    block: bool = True,
    **charges: Unpack[ChargingOptions],
) -> ViewLimit:
    """Limit a view: max_requests per expiry seconds, a rate ("5/min"), several limits, a policy, or what a callable answers.

    by says who is limited: the project (default; what RATEKIT["IDENTIFY"] says), "user", "ip", "header:X-API-Key" and its
    like, "endpoint" for all together, a key function, or a callable of the request. limits "plan" asks the lookup of plans.
    anonymous ("pass", "ip", "refuse") is what happens without a project or user. methods limits only those, apart; endpoint
    is the URL pattern unless it is given; counter names what several views count together. block=False never refuses.
    """
    refuse_unknown("rate_limit", charges, _ARGUMENTS)
    return _complete(ViewLimit(
        declared=declared(max_requests, expiry, limits, policy),
        cost=checked_cost(cost),
        who=_who(by),
        methods=None if methods is None else checked_methods(methods),
        endpoint=check_endpoint(endpoint),
        mode=checked_mode(mode),
        on_outage=checked_on_outage(on_outage),
        anonymous=None if anonymous is None else check_anonymous(anonymous),
        counter=_counter(counter, endpoint),
        exempt=Exemptions.of(exempt),
        block=checked_block(block),
        charging=charging_of({**charges, "cost": cost}),
    ))  # fmt: skip


def _counter(counter: str | Callable[[Any], Any] | None, endpoint: str | None) -> str | Callable[[Any], Any] | None:
    if counter is not None and endpoint is not None:
        raise ConfigurationError(f"endpoint {endpoint!r} and counter {counter!r} both name what is counted: give one")
    return checked_counter(counter)


def _complete(limit: ViewLimit) -> ViewLimit:
    """Return a limit with its policy, if that is fixed; its limits have the cost and the methods in their names."""
    check_charging(limit.declared.policy, limit.cost, limit.charging)
    if limit.declared.policy is None:
        return limit
    counted = with_meaning(without_slots(limit.declared.policy), limit.meaning)
    methods = "" if limit.methods is None else limit.qualifier_on("", lambda _: None)
    return limit._replace(policy=qualified(counted, methods))


def _who(by: By) -> Who:
    if by in (PROJECT, USER, ENDPOINT):
        return Who(str(by))
    if isinstance(by, str | KeyFunction):
        try:
            return Who("key", key=as_key_function(by))
        except ConfigurationError as error:
            known = f"{error}; here also {PROJECT!r}, {USER!r} or {ENDPOINT!r}"
            raise ConfigurationError(known if "unknown" in str(error) else str(error)) from None
    if not callable(by):
        raise ConfigurationError(f"by {by!r} is neither a text nor a callable")
    return Who("call", call=by)


class ApplyOptions(TypedDict, total=False):
    """Further arguments, with the meaning that they have for rate_limit."""

    endpoint: str | None
    by: By
    mode: str | RateLimitMode | None
    on_outage: str | None
    anonymous: str | None


def applied_limit(
    max_requests: int, expiry: float, increment_amount: int, subject: str | None, **options: Unpack[ApplyOptions]
) -> ViewLimit:
    """Make the limit of one call of apply_rate_limit: the numbers are those of the call."""
    known = {*ApplyOptions.__annotations__, "subject", "max_requests", "expiry", "increment_amount", "key_suffix"}
    refuse_unknown("apply_rate_limit", options, known)
    if subject is not None:
        options["by"] = lambda _: subject
    # What a request costs is no part of the limit's name: the numbers are the call's, and not a limiter's own.
    return view_limit(max_requests, expiry, **options)._replace(cost=lambda _: increment_amount)
