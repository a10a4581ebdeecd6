"""From the rules of a document and a request to checks: who asks, which limits that key has, what the request costs.

A flow, like the engine that decides its checks, so that bodies and functions of the application may be awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from ratekit.core import clock
from ratekit.core.errors import ConfigurationError, RatekitError, UnusableRequestError
from ratekit.core.modes import RateLimitMode, weakest
from ratekit.core.protocol import CostGiven
from ratekit.rules.compiled import DocumentRule
from ratekit.rules.keys import CostReader, KeyFunctionError, UnitCostReader, subject_of_key
from ratekit.rules.limits import Limits
from ratekit.stores.contract import AsyncStore, Store
from ratekit.web.answers import ErrorResponse, ResponseWriter, error_response
from ratekit.web.arguments import cost_of, untold
from ratekit.web.charging import spent_by
from ratekit.web.checks import Check, grouped
from ratekit.web.decide import decide, refuse
from ratekit.web.identity import KeyFunction, anonymous_subject, asubject_of, note_pass, subject_of, why_nobody
from ratekit.web.ledger import Ledger
from ratekit.web.options import LoadBody
from ratekit.web.plans import NO_LIMITS, NO_PLAN_OF, PlanFunction
from ratekit.web.requests import FrontRequest
from ratekit.web.steps import Ask, Flow, Step, Verdict

AskPlan = Callable[[FrontRequest | None, str], Ask]
_OFF = RateLimitMode.OFF


class Front(NamedTuple):
    """What a front says where a document does not."""

    prefix: str
    by: KeyFunction
    applies_all: bool = False
    ask_plan: AskPlan | None = None  # the step that asks for the plan of a request, or of a key where there is none


def plan_asker(plan_of: PlanFunction | None) -> AskPlan | None:
    """Return what asks plan_of about a request as the application knows it; None if there is no plan_of."""
    if plan_of is None:
        return None
    return lambda request, key: Ask(plan_of, None if request is None else request.application_request, plan_of)


class Found(NamedTuple):
    """What a rule says of a request: who asks, which limits that key has, and what the request costs."""

    rule: DocumentRule
    key: str
    limits: Limits
    cost: CostGiven
    mode: RateLimitMode

    def check(self, prefix: str) -> Check:
        """Return the check for the engine."""
        rule, charging = self.rule, self.rule.charging
        policy, subject = rule.policy_of(self.limits), subject_of_key(self.key)
        others = () if len(rule.units) == 1 else tuple(unit for unit in rule.units if unit not in policy.units)
        if charging is None:
            cost = spent_by(policy, self.cost, None, others)
            return Check.of(policy, subject, rule.endpoint, prefix, cost, self.mode, rule.on_outage)
        anchor = None if callable(charging.anchor) else charging.anchor
        share = None if callable(charging.share) else charging.share
        cost = spent_by(policy, self.cost, charging, others)
        policy = policy.anchored(anchor)
        return Check.of(policy, subject, rule.endpoint, prefix, cost, self.mode, rule.on_outage, charging, share, others)


def read_checks(
    rules: Sequence[DocumentRule], request: FrontRequest, front: Front, mode: RateLimitMode, load_body: LoadBody
) -> Generator[Step, Any, list[Check] | ErrorResponse]:
    """Find out the checks of a request, or the response to one that cannot be limited."""
    found = yield from read_found(rules, request, front, mode, load_body)
    return found if isinstance(found, ErrorResponse) else [one.check(front.prefix) for one in found]


def read_found(
    rules: Sequence[DocumentRule], request: FrontRequest, front: Front, mode: RateLimitMode, load_body: LoadBody
) -> Generator[Step, Any, list[Found] | ErrorResponse]:
    """Find out what the rules say of a request, or the response to one that cannot be limited.

    The first rule that has limits for the key of the request applies, or all of them. A rule that is off, or unlimited, is
    the first one too.
    """
    checks: list[Found] = []
    now = clock.now()
    for rule in rules:
        if not rule.is_valid(now):
            continue
        own_mode = mode if rule.mode is None else weakest(mode, rule.mode)
        try:
            found = None if own_mode is _OFF else (yield from _found(rule, request, front, own_mode, load_body, now))
        except RatekitError as error:
            if (response := error_response(error, own_mode)) is not None:
                return response
            found = None
        if isinstance(found, Found):
            checks.append(found)
        if found is not NOT_FOR_KEY and not front.applies_all:
            break
    return checks


NOT_FOR_KEY = Limits(plan="")  # stands for: the rule has no limits for this key, and the next one is asked


def _found(
    rule: DocumentRule, request: FrontRequest, front: Front, mode: RateLimitMode, load_body: LoadBody, now: float
) -> Generator[Step, Any, Found | Limits | None]:
    """Return what a rule says; None if the request is not limited by it; NOT_FOR_KEY if the next rule is asked."""
    by = rule.by or front.by
    key = yield from _key(rule, by, request, load_body)
    if key is None:
        note_pass(rule.endpoint, why_nobody(by))
        return None
    limits = rule.limits_of(key, now)
    if limits is None:
        return NOT_FOR_KEY
    limits = yield from _in_plan(rule, limits, front, request, key)
    if limits is None or rule.is_unlimited(limits):
        return None
    cost = rule.amount
    if isinstance(cost, CostReader | UnitCostReader):
        cost = yield from _cost(cost, request, load_body)
    return Found(rule, key, limits, cost, mode)


def _in_plan(
    rule: DocumentRule, limits: Limits, front: Front, request: FrontRequest | None, key: str
) -> Generator[Step, Any, Limits | None]:
    """Return limits, or those of the plan that plan_of names, where it is asked; None if it names none."""
    if not limits.is_by_plan:
        return limits
    if front.ask_plan is None:
        raise ConfigurationError(NO_PLAN_OF)
    planned = rule.limits_of_plan((yield front.ask_plan(request, key)))
    if planned is None:
        note_pass(rule.endpoint, NO_LIMITS)
    return planned


def checks_of_key(
    rules: Sequence[DocumentRule], key: str, front: Front, mode: RateLimitMode, cost: int | None
) -> Generator[Step, Any, list[Check]]:
    """Find out the checks of a key, where there is no request: the first rule that has limits for it applies, or all."""
    checks = []
    for found in found_of_key(rules, key, mode, cost, applies_all=front.applies_all):
        limits = yield from _in_plan(found.rule, found.limits, front, None, key)
        if limits is not None and not found.rule.is_unlimited(limits):
            checks.append(found._replace(limits=limits).check(front.prefix))
    return checks


def found_of_key(
    rules: Sequence[DocumentRule], key: str, mode: RateLimitMode, cost: int | None, *, applies_all: bool
) -> Iterator[Found]:
    """Yield what the rules say of a key, where there is no request."""
    now = clock.now()
    for rule in rules:
        limits = rule.limits_of(key, now) if rule.is_valid(now) else None
        if limits is None:
            continue
        own_mode = mode if rule.mode is None else weakest(mode, rule.mode)
        if own_mode is not _OFF and not rule.is_unlimited(limits):
            own_cost = 1 if isinstance(rule.amount, CostReader | UnitCostReader) else rule.amount
            yield Found(rule, key, limits, own_cost if cost is None else cost, own_mode)
        if not applies_all:
            break


def _key(
    rule: DocumentRule, by: KeyFunction, request: FrontRequest, load_body: LoadBody
) -> Generator[Step, Any, str | None]:
    """Return who asks. What is done with a request that does not say it, or says it wrongly, is for the rule to say."""
    try:
        yield from _loaded(by, request, load_body)
        if by.aread is None and rule.anonymous is None:
            return subject_of(by, request)
        if rule.anonymous is None:
            key: str | None = yield Ask(partial(subject_of, by), request, partial(asubject_of, by))
            return key
        key = yield Ask(by.read, request, by.aread or by.read)
    except KeyFunctionError:
        return anonymous_subject(rule.anonymous or "ip", request, "key")
    except (UnusableRequestError, ValueError) as error:
        if rule.anonymous is None:
            raise error if isinstance(error, RatekitError) else untold("who is limited", error) from None
        return anonymous_subject(rule.anonymous, request, "key")
    return anonymous_subject(rule.anonymous, request, "key") if key is None else key


def _loaded(by: KeyFunction, request: FrontRequest, load_body: LoadBody) -> Generator[Step, Any, None]:
    if not by.looks_into_body(request):
        return
    if request.body is None and request.body_error is None:
        yield Ask(load_body, by, load_body)
    if request.body_error is not None:
        raise request.body_error


def _cost(cost: CostReader | UnitCostReader, request: FrontRequest, load_body: LoadBody) -> Generator[Step, Any, CostGiven]:
    for by in cost.sources:
        yield from _loaded(by, request, load_body)
    return cost_of(cost, request)


def decide_by_rules(
    rules: Sequence[DocumentRule],
    request: FrontRequest,
    front: Front,
    mode: RateLimitMode,
    load_body: LoadBody,
    ledger: Ledger,
    writer: ResponseWriter,
    store: Store | AsyncStore,
) -> Flow:
    """Decide a request by the rules of a document, for a front whose requests have a ledger already."""
    checks = yield from read_checks(rules, request, front, mode, load_body)
    if isinstance(checks, ErrorResponse):
        yield from refuse(ledger, store.place)
        return Verdict(checks)
    return (yield from decide(grouped(checks, one_slot=store.one_slot), ledger, writer, store.place))
