"""What is allowed: limits as they are declared, plans, and what the application's own code answers for a request.

A plan is a named set of limits ("free", "pro"). `limits=` may be a callable of the request, which answers limits, a Policy,
the name of a plan, or None (not limited); `limits="plan"` asks the application's `plan_of`.

**Counters do not know plans.** A counter belongs to an endpoint, a subject and the name of a limit, which is its window
("60s") unless it was given. So when a subject's plan changes, what is used in a running window counts on wherever the new
plan has a limit of the same name, as with an override; a limit of another window or algorithm has a counter of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ratekit.core.cache import Cache
from ratekit.core.errors import ConfigurationError, UnknownLimitsError
from ratekit.core.limit_names import Meaning, qualified, with_meaning
from ratekit.core.limits import UNNAMED_POLICY, Limit, Policy
from ratekit.web.arguments import wrong_type

RuleLimits = Policy | Limit | str | Iterable[Limit | str]
LimitsAnswer = Policy | Limit | str | Sequence[Limit | str] | None
LimitsFunction = Callable[[Any], LimitsAnswer | Awaitable[LimitsAnswer]]
PlanFunction = Callable[[Any], str | Awaitable[str | None] | None]
Cost = int | Mapping[str, int] | Callable[[Any], Any]
PLAN: Final = "plan"  # in place of limits: those of the plan that plan_of names
NO_PLAN_OF = "limits 'plan' needs plan_of, a callable of the request that names its plan"
NO_LIMITS = "limits has answered None"
_OF_REQUESTS = Meaning()
_MOST_POLICIES = 4096
_WANTED = "limits, a Policy, the name of a plan, or None"
_log = logging.getLogger("ratekit.web")


class Plans:
    """Named sets of limits. `replace` changes all of them at once, while requests are decided.

    `policy` makes a policy of what limits= or plan_of has answered, and keeps it: an answer that was seen before costs one
    look into a dictionary.
    """

    def __init__(self, plans: Mapping[str, RuleLimits] | None = None) -> None:
        self._current = _PlanSet({})
        self.replace({} if plans is None else plans)

    def replace(self, plans: Mapping[str, RuleLimits]) -> None:
        """Put other plans in force, from the next request on. If one of them makes no sense, none of them are."""
        if not isinstance(plans, Mapping):
            raise ConfigurationError(f"plans {plans!r} is not a mapping of names to limits")
        self._current = _PlanSet({_checked_name(name): _plan(name, limits) for name, limits in plans.items()})

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The plans in force, by name. The policy of a plan has the plan's name."""
        return self._current.policies

    @property
    def units(self) -> tuple[str, ...]:
        """The units that the plans count, each once."""
        return self._current.units

    def policy(
        self, answer: object, qualifier: str = "", meaning: Meaning = _OF_REQUESTS, *, is_plan: bool = False
    ) -> Policy | None:
        """Return the policy that an answer stands for, None if the request is not limited.

        qualifier and meaning are the limiter's, and part of the names of its limits. is_plan: it was plan_of that answered.
        It names a plan, and nothing else: a name may come from where users write, and "1000/s" is no limit there.
        """
        if answer is None:
            return None
        if is_plan:
            self._check_plan(answer)
        if type(answer) is not str and not isinstance(answer, str | Policy | Limit):
            answer = _checked_list(answer)
        key = (answer, qualifier, meaning)
        return self._current.resolved[key] if isinstance(meaning.cost, Hashable) else self._current.resolve(key)

    def _check_plan(self, answer: object) -> None:
        if not isinstance(answer, str):
            raise wrong_type("plan_of", answer, "the name of a plan, or None")
        if answer not in self._current.policies:
            raise unknown_plan(answer, self._current.policies)

    def __iter__(self) -> Iterator[str]:
        return iter(self._current.policies)


class _PlanSet:
    """Plans that do not change, with the policies of the answers seen since they are in force."""

    __slots__ = ("policies", "resolved", "units")

    def __init__(self, policies: dict[str, Policy]) -> None:
        self.policies = MappingProxyType(policies)
        self.resolved: Cache[tuple[Any, str, Meaning], Policy] = Cache(self.resolve, _MOST_POLICIES)
        self.units = tuple(dict.fromkeys(unit for policy in policies.values() for unit in policy.units))

    def resolve(self, key: tuple[Any, str, Meaning]) -> Policy:
        """Make the policy of an answer, a qualifier and a meaning."""
        answer, qualifier, meaning = key
        return qualified(with_meaning(policy_answered(answer, self.policies), meaning), qualifier)


def policy_answered(answer: LimitsAnswer, plans: Mapping[str, Policy]) -> Policy:
    """Make a policy of an answer that is not None: a Policy, the name of a plan, a rate, a limit, or several."""
    if isinstance(answer, Policy):
        return answer
    if isinstance(answer, str) and answer in plans:
        return plans[answer]
    try:
        return as_rule_policy(UNNAMED_POLICY, answer)  # type: ignore[arg-type] # what is none is an error
    except ConfigurationError as error:
        what = "is neither a plan nor a rate" if isinstance(answer, str) else str(error)
        raise _unknown(answer, plans, what) from None


def as_plans(plans: Plans | Mapping[str, RuleLimits] | None) -> Plans:
    """Return plans as they were given, or made of a mapping."""
    return plans if isinstance(plans, Plans) else Plans(plans)


def as_rule_policy(endpoint: str, limits: RuleLimits) -> Policy:
    """Make the policy of an endpoint of what a user gives: a policy, a limit, a rate, or several."""
    if isinstance(limits, Policy):
        return limits
    if isinstance(limits, Limit | str):
        return Policy(endpoint, [limits])
    if isinstance(limits, Iterable):
        return Policy(endpoint, limits)
    raise ConfigurationError(f"rule {limits!r} of {endpoint!r} is neither a policy, nor a limit, nor a rate")


class Declared(NamedTuple):
    """What a limiter was declared with: fixed limits, or a callable that is asked about each request."""

    policy: Policy | None = None
    limits: LimitsFunction | None = None
    is_by_plan: bool = False  # plan_of is asked

    def function(self, plan_of: PlanFunction | None) -> Callable[[Any], Any]:
        """Return what is asked for the limits of a request; plan_of is the application's lookup of plans."""
        return asked_for_limits(plan_of if self.is_by_plan else self.limits)


def asked_for_limits(function: LimitsFunction | PlanFunction | None) -> Callable[[Any], Any]:
    """Return the callable that tells the limits of a request, or raise ConfigurationError if nobody has given one."""
    if function is None:
        raise ConfigurationError(NO_PLAN_OF)
    return function


def declared(
    max_requests: int | str | None,
    expiry: float | None,
    limits: RuleLimits | LimitsFunction | None,
    policy: Policy | Limit | None,
) -> Declared:
    """Read what a limiter of a route is declared with: max_requests with expiry, limits, or policy.

    A rate may stand first: "5/min" in place of max_requests is the same as limits="5/min".
    """
    if isinstance(max_requests, str):
        if expiry is not None or limits is not None or policy is not None:
            raise ConfigurationError(
                f"max_requests {max_requests!r} is a rate, which says all that is allowed: give nothing else beside it"
            )
        max_requests, limits = None, max_requests
    given = [max_requests is not None or expiry is not None, limits is not None, policy is not None]
    if sum(given) != 1:
        raise ConfigurationError("give exactly one of max_requests with expiry, limits, or policy")
    if limits is not None:
        return declared_limits(UNNAMED_POLICY, limits)
    return Declared(_fixed(max_requests, expiry, policy))


def declared_limits(endpoint: str, limits: RuleLimits | LimitsFunction) -> Declared:
    """Read limits: fixed ones, a callable of the request, or "plan"."""
    if callable(limits):
        return Declared(limits=limits)
    if limits == PLAN:
        return Declared(is_by_plan=True)
    return Declared(as_rule_policy(endpoint, limits))


def without_slots(policy: Policy) -> Policy:
    """Return the policy of a limiter that runs before the application, or raise ConfigurationError if it takes slots."""
    if policy.has_slots:
        raise ConfigurationError(
            "a concurrency limit has to hold its slot until the response has ended: use ratekit.asgi or ratekit.wsgi"
        )
    return policy


def checked_plan_of(plan_of: PlanFunction | None) -> PlanFunction | None:
    """Return a lookup of plans as it was given, or raise ConfigurationError if it is no callable."""
    if plan_of is not None and not callable(plan_of):
        raise ConfigurationError(f"plan_of {plan_of!r} is not a callable of the request that names a plan")
    return plan_of


def _fixed(max_requests: int | None, expiry: float | None, policy: Policy | Limit | None) -> Policy:
    if policy is not None and not isinstance(policy, Policy | Limit):
        raise ConfigurationError(f"policy {policy!r} is neither a Policy nor a Limit")
    if policy is not None:
        return as_rule_policy(UNNAMED_POLICY, policy)
    if max_requests is None or expiry is None:
        raise ConfigurationError(f"max_requests {max_requests!r} and expiry {expiry!r} have to be given together")
    try:
        return Policy(UNNAMED_POLICY, [Limit(max_requests, expiry)])
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("window", "expiry", 1)) from None


def _plan(name: str, limits: RuleLimits) -> Policy:
    """Make the policy of a plan. A policy of another name is called as the plan, so that metrics name the plan."""
    try:
        return Policy(name, as_rule_policy(name, limits).limits)
    except ConfigurationError as error:
        raise ConfigurationError(f"plans[{name!r}]: {error}") from None


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigurationError(f"plan {name!r} is not a name: it is not a printable text")
    if _is_rate(name):
        raise ConfigurationError(f"plan {name!r} is called like a rate: a callable that answers {name!r} could mean either")
    return name


def _is_rate(text: str) -> bool:
    try:
        Policy(UNNAMED_POLICY, text)
    except ConfigurationError:
        return False
    return True


def _checked_list(answer: object) -> tuple[Limit | str, ...]:
    if isinstance(answer, list | tuple) and all(isinstance(item, Limit | str) for item in answer):
        return tuple(answer)
    raise wrong_type("limits", answer, _WANTED)


def unknown_plan(answer: str, plans: Iterable[str]) -> UnknownLimitsError:
    """Return the error of a plan_of that has named a plan that there is not."""
    return _unknown(answer, plans, "is no plan")


def _unknown(answer: object, plans: Iterable[str], what: str) -> UnknownLimitsError:
    if isinstance(answer, str):
        what = f"{answer!r:.100} {what}: the plans are {', '.join(sorted(plans)) or 'none'}"
    fault = UnknownLimitsError(f"limits answered what cannot be read: {what}")
    _log.error("%s", fault)
    return fault
