"""Documents compiled for requests: rules of `ratekit.web.table`, found by an index, with limits by key.

What is compiled does not change. A new document is compiled beside the old one and takes its place in one assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, cast

from ratekit.core.cache import Cache
from ratekit.core.errors import ConfigurationError, DocumentError
from ratekit.core.limit_names import OPTIONS, Meaning, by_methods, qualified, with_meaning
from ratekit.core.limits import REQUESTS, Algorithm, Limit, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.core.protocol import CostGiven
from ratekit.rules.custom import KeyTable
from ratekit.rules.document import Document, RuleModel
from ratekit.rules.fields import ByUnit
from ratekit.rules.formats import Pace
from ratekit.rules.identities import Identity, Part, parts_of
from ratekit.rules.keys import Context, CostReader, UnitCostReader, key_function
from ratekit.rules.limits import Limits
from ratekit.rules.matching import Candidate, Facts, Index
from ratekit.rules.problems import place_text
from ratekit.web.arguments import wrong_type
from ratekit.web.charging import Charging, ChargingOptions, charging_of, check_charging, meaning_of
from ratekit.web.identity import KeyFunction, counted_subject
from ratekit.web.plans import NO_PLAN_OF, unknown_plan
from ratekit.web.requests import FrontRequest
from ratekit.web.table import Rule

DEFAULT_ENDPOINT = "rules"  # under which rules are counted that have neither a path nor a name, without a service
_MOST_FOUND, _LONGEST_FOUND = 4096, 400
_FOREVER = float("inf")
_NO_SLOTS = "a concurrency limit holds its slot until the response has ended: use RuleMiddleware, which frees it"
_SETTLED = ("estimate", "actual", "count", "reset_when")
_NO_SETTLEMENT = f"{', '.join(_SETTLED)} are settled when the response has ended: use RuleMiddleware, which knows that"
_NONE: dict[str, Temporary] = {}


class Temporary(NamedTuple):
    """Limits of a key until a point in time, in seconds since the epoch."""

    limits: Limits
    until: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DocumentRule(Rule):
    """A rule of a document. Its policy is there if it is the same for every key."""

    name: str
    own: Limits | None  # None: only for the keys below
    custom: KeyTable[Limits] | None
    overrides: Mapping[str, Temporary]
    plans: Mapping[str, Limits]
    anonymous: str | None
    valid_from: float = 0.0
    valid_until: float = _FOREVER
    is_final: bool = True  # no later rule is asked if this one matches
    has_every_method: bool = True  # it is for every method, and its endpoint is not the name of a counter
    has_counter: bool = False  # its endpoint is the name of a counter
    own_policy: Policy | None = None  # of its own limits
    asks_plan: bool = False  # some of its limits are "plan"
    units: tuple[str, ...] = (REQUESTS,)  # that any of its limits count
    policies: dict[Any, Policy] = field(default_factory=dict)  # of other limits; shared by the rules of a document

    @property
    def amount(self) -> CostGiven | CostReader | UnitCostReader:
        """What a request costs, or is estimated to cost."""
        given: Any = self.cost if self.charging is None or self.charging.estimate is None else self.charging.estimate
        return 0 if given is None else cast("CostGiven | CostReader | UnitCostReader", given)

    @property
    def _meaning(self) -> Meaning:
        """What it counts, which is part of the names of its limits. Units have a meaning of their own."""
        return meaning_of(1 if isinstance(self.cost, Mapping) else self.cost or 0, self.charging)

    def is_valid(self, now: float) -> bool:
        """Whether the rule counts at a point in time."""
        return self.valid_from <= now < self.valid_until

    def limits_of(self, key: str, now: float) -> Limits | None:
        """Return the limits of a key, None if the rule is not for it."""
        if self.overrides and (temporary := self.overrides.get(key)) is not None and now < temporary.until:
            return temporary.limits
        custom = self.custom.find(key) if self.custom is not None else None
        return self.own if custom is None else custom

    def key_of(self, subject: str) -> str:
        """Return the key of who is counted under a subject, if the rule has limits of its own for it; else the subject.

        Keys are what clients send, and subjects have its hash. It is slow: for who asks from outside of a request.
        """
        keys = (*self.overrides, *(() if self.custom is None else self.custom.exact_keys))
        return next((key for key in keys if counted_subject(key) == subject), subject)

    def policy_for(self, key: str, now: float) -> Policy | None:
        """Return the policy of a key, None if plan_of is asked for it, or if the rule does not limit the key."""
        limits = self.limits_of(key, now) if self.is_valid(now) else None
        is_known = limits is not None and not limits.is_by_plan and not self.is_unlimited(limits)
        return self.policy_of(limits) if limits is not None and is_known else None

    def limits_of_plan(self, name: object) -> Limits | None:
        """Return the limits of the plan that plan_of has named, None if it named none. Raises UnknownLimitsError."""
        if name is None:
            return None
        if not isinstance(name, str):
            raise wrong_type("plan_of", name, "the name of a plan, or None")
        if name not in self.plans:
            raise unknown_plan(name, self.plans)
        return Limits(plan=name)

    def is_unlimited(self, limits: Limits) -> bool:
        """Whether limits, or those of the plan that they name, are none."""
        return limits.is_unlimited or (limits.plan is not None and self.plans[limits.plan].is_unlimited)

    def policy_of(self, limits: Limits) -> Policy:
        """Return the policy of limits that are not unlimited."""
        if limits is self.own and self.own_policy is not None:
            return self.own_policy
        key = (self.name, self.qualifier, self._meaning, limits)
        return self.policies.get(key) or self.policies.setdefault(key, self._policy(limits))

    def _policy(self, limits: Limits) -> Policy:
        own = self.plans[limits.plan].own if limits.plan is not None else limits.own
        return Policy(limits.plan or self.name, _named(own, self._meaning, self.qualifier))


class CompiledRules:
    """The rules of a document, ready for requests. Counts how often a lookup was answered by an earlier one."""

    def __init__(
        self,
        rules: Sequence[DocumentRule],
        candidates: Sequence[Candidate],
        *,
        applies_all: bool,
        last_updated: datetime | None = None,
        pace: Callable[[], None] = lambda: None,
    ) -> None:
        self.rules = tuple(rules)
        self.applies_all = applies_all
        self.last_updated = last_updated  # what the document says of it
        self.index = Index(candidates, pace)
        self.lookups = 0
        self.misses = 0
        self._options: dict[int, DocumentRule] = {}  # by the identity of the rule that they stand for
        # Whether nothing but the method and the path of a request says which rules it has.
        self.is_by_path = not self.index.by_host and not self.index.header_names
        self._found: Cache[tuple[Any, ...], tuple[DocumentRule, ...]] = Cache(self._look, _MOST_FOUND, _is_short)

    def find(self, request: FrontRequest, endpoints: tuple[str, ...] = ()) -> tuple[DocumentRule, ...]:
        """Return the rules of a request, in the order in which they are asked. Without endpoints, its path is its name."""
        index = self.index
        host = ",".join(request.header_lines("host")) or None if index.by_host else None
        headers = tuple(_header(request, name) for name in index.header_names) if index.header_names else ()
        self.lookups += 1
        return self._found[request.method, request.path, endpoints, host, headers]

    def at(self, method: str, path: str) -> tuple[DocumentRule, ...]:
        """Return the rules of a method and a path, where nothing else counts."""
        self.lookups += 1
        return self._found[method, path, (), None, ()]

    def of_endpoint(self, endpoint: str) -> tuple[DocumentRule, ...]:
        """Return the rules of an endpoint, where there is no request."""
        self.lookups += 1
        return self._found[Facts(endpoints=(endpoint,), headers=(None,) * len(self.index.header_names))]

    def of_path(self, method: str, path: str) -> tuple[DocumentRule, ...]:
        """Return the rules of a method and a path, or of an endpoint, where nothing else of a request is known."""
        return self._look((method, path, (path,), None, (None,) * len(self.index.header_names)))

    def counted_under(self, method: str, endpoint: str) -> tuple[DocumentRule, ...]:
        """Return the rules of a counter's name; if no counter has it, those of a method and a path. A path goes before."""
        named = tuple(rule for rule in self.rules if rule.has_counter and rule.endpoint == endpoint)
        matched = self.of_path(method, endpoint)
        return matched or named if endpoint.startswith("/") else named or matched

    def _look(self, key: tuple[Any, ...]) -> tuple[DocumentRule, ...]:
        facts = Facts(*key)
        self.misses += 1
        rules = [self.rules[position] for position in self.index.find(facts)]
        if (facts.method or "").upper() == "OPTIONS":
            return tuple(self._of_options(rule) for rule in rules)
        return tuple(rules)

    def _of_options(self, rule: DocumentRule) -> DocumentRule:
        """Return a rule for preflights, which have counters of their own where no method is named."""
        if not rule.has_every_method:
            return rule
        made = self._options.get(id(rule))
        return made or self._options.setdefault(id(rule), _with_policy(replace(rule, qualifier=OPTIONS, own_policy=None)))


def _header(request: FrontRequest, name: str) -> str | None:
    """Return a header; an empty text if it is there and says nothing: it is empty, or its lines differ."""
    value = request.header(name)
    return "" if value is None and request.header_lines(name) else value


def _is_short(facts: tuple[Any, ...], _: object) -> bool:
    """Whether what was looked up is short enough to be kept: clients choose it, and a cache of long texts is too large."""
    if len(facts[0] or "") + len(facts[1] or "") > _LONGEST_FOUND:
        return False
    return (facts[3] is None and not facts[4]) or sum(len(text or "") for text in (facts[3], *facts[4])) <= _LONGEST_FOUND


def compile_document(
    document: Document,
    service: str | None = None,
    pace: Callable[[], None] | None = None,
    *,
    holds_slots: bool = True,
    asks_plans: bool = True,
) -> CompiledRules:
    """Compile a document. Raises DocumentError.

    service is the endpoint of rules that name none. holds_slots: concurrency limits can be used, as the front frees slots.
    asks_plans: limits can be "plan", as the front has a plan_of.
    """
    pace = pace or Pace()
    compiler = _Compiler(document, service or document.service or DEFAULT_ENDPOINT)
    rules, candidates, problems = [], [], []
    for position, model in enumerate(document.rules):
        pace()
        if not model.enabled:
            continue
        try:
            rule = compiler.rule(model)
            compiler.check_charges(model, rule)
            if not holds_slots:
                compiler.refuse_slots(model)
            if rule.asks_plan and not asks_plans:
                raise DocumentError([NO_PLAN_OF])
        except DocumentError as error:
            problems += [f"rules[{position}]: {problem}" for problem in error.problems]
            continue
        rules.append(rule)
        candidates.append(Candidate(model.match, rule.is_final))
    if problems:
        raise DocumentError(problems)
    is_all, updated = document.apply == "all", document.last_updated
    return CompiledRules(rules, candidates, applies_all=is_all, last_updated=updated, pace=pace)


class _Compiler:
    """Compiles the rules of one document. Identities that stand in many rules are made once."""

    def __init__(self, document: Document, service: str) -> None:
        self._document = document
        self._service = service
        self._plans = dict(document.plans)
        self._functions: dict[tuple[Identity, Context], KeyFunction] = {}
        self._policies: dict[Any, Policy] = {}

    def rule(self, model: RuleModel) -> DocumentRule:
        document = self._document
        endpoint = model.endpoint or self._service
        identity = model.by or document.by
        mode, on_outage = model.mode or document.mode, model.on_outage or document.on_outage
        is_always = model.valid_from is None and model.valid_until is None
        rule = DocumentRule(
            endpoint=endpoint,
            name=model.name or endpoint,
            by=None if identity is None else self._key_function(identity, model, endpoint),
            cost=self._cost(model.cost, model, endpoint),
            charging=self._charging(model, endpoint),
            mode=None if mode is None else RateLimitMode(mode),
            on_outage=None if on_outage is None else OnOutage(on_outage),
            own=model.limits,
            custom=KeyTable(model.custom) if model.custom else None,
            overrides=_temporary(model) if model.overrides else _NONE,
            plans=self._plans,
            anonymous=model.anonymous,
            asks_plan=any(limits.is_by_plan for _, limits in model.all_limits()),
            units=tuple(dict.fromkeys(limit.unit for _, limits in self._all_limits(model) for limit in self._own(limits))),
            policies=self._policies,
            qualifier="" if model.counter is not None else by_methods(model.match.method),
            has_every_method=model.counter is None and not model.match.method,
            has_counter=model.counter is not None,
            valid_from=0.0 if model.valid_from is None else model.valid_from.timestamp(),
            valid_until=_FOREVER if model.valid_until is None else model.valid_until.timestamp(),
            is_final=document.apply == "first" and is_always and model.limits is not None,
        )
        return _with_policy(rule)

    def refuse_slots(self, model: RuleModel) -> None:
        """Raise DocumentError if a rule has a concurrency limit, or settles what requests have cost."""
        if any(getattr(model, name) is not None for name in _SETTLED):
            raise DocumentError([_NO_SETTLEMENT])
        for _, limits in self._all_limits(model):
            if any(limit.algorithm is Algorithm.CONCURRENCY for limit in self._own(limits)):
                raise DocumentError([_NO_SLOTS])

    def _all_limits(self, model: RuleModel) -> Iterator[tuple[str, Limits]]:
        """Yield every set of limits that a request may have by a rule, and its place: with plan_of, those of each plan."""
        for place, limits in model.all_limits():
            if limits.is_by_plan:
                yield from ((f"{place_text(place)} (plan {name!r})", Limits(plan=name)) for name in self._plans)
            else:
                yield place_text(place), limits

    def _own(self, limits: Limits) -> tuple[Limit, ...]:
        return self._plans[limits.plan].own if limits.plan is not None else limits.own

    def _key_function(self, identity: Identity, model: RuleModel, endpoint: str) -> KeyFunction:
        """Return the key function of an identity. It is the same for many rules, unless it has to know its own."""
        kinds = {part.kind for part in parts_of(identity)}
        context = Context(
            endpoint if "everyone" in kinds else "", model.match.path if "path" in kinds else None, model.plain
        )
        made = self._functions.get((identity, context))
        return made or self._functions.setdefault((identity, context), key_function(identity, context))

    def _charging(self, model: RuleModel, endpoint: str) -> Charging | None:
        """Return how a rule charges. What it says was checked with the model."""
        given = {name: getattr(model, name) for name in ChargingOptions.__annotations__}
        if model.estimate is not None:
            given["estimate"] = self._cost(model.estimate, model, endpoint)
        return charging_of(given)

    def _cost(self, cost: int | Part | ByUnit, model: RuleModel, endpoint: str) -> Any:
        context = Context(endpoint, model.match.path, plain=True)
        if isinstance(cost, ByUnit):
            costs = {unit: self._cost(one, model, endpoint) for unit, one in cost.costs}
            return costs if all(isinstance(one, int) for one in costs.values()) else UnitCostReader(costs)
        return cost if isinstance(cost, int) else CostReader(cost, context)

    def check_charges(self, model: RuleModel, rule: DocumentRule) -> None:
        """Raise DocumentError if limits of a rule cannot be charged: a unit that is unknown, or that nothing names."""
        for place, limits in self._all_limits(model):
            if rule.is_unlimited(limits):
                continue
            if rule.charging is None and not isinstance(rule.cost, Mapping) and rule.units == (REQUESTS,):
                continue
            policy = rule.policy_of(limits)
            others = [unit for unit in rule.units if unit not in policy.units]
            try:
                check_charging(policy, rule.cost or 0, rule.charging, others)
            except ConfigurationError as error:
                raise DocumentError([f"{place}: {error}"]) from None


def _temporary(model: RuleModel) -> dict[str, Temporary]:
    return {key: Temporary(one.limits, one.valid_until.timestamp()) for key, one in model.overrides.items()}


def _with_policy(rule: DocumentRule) -> DocumentRule:
    """Make the policy of the rule's own limits now. It is the rule's, if the rule always has it, whatever the key is."""
    if rule.own is None or rule.own.is_by_plan or rule.is_unlimited(rule.own):
        return rule
    policy = rule.policy_of(rule.own)
    is_same = rule.custom is None and not rule.overrides and rule.valid_until == _FOREVER and not rule.valid_from
    return replace(rule, own_policy=policy, policy=policy if is_same else None)


@lru_cache(maxsize=4096)
def _named(limits: tuple[Limit, ...], meaning: Meaning, qualifier: str) -> tuple[Limit, ...]:
    """Return limits with meaning and methods in their names: the same objects for each of the rules that have them."""
    return qualified(with_meaning(Policy(DEFAULT_ENDPOINT, limits), meaning), qualifier).limits
