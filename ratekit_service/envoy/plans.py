"""From the bytes of a request to a plan: the checks to decide, and where the status of each descriptor comes from.

All descriptors of a request are decided together. The plan of some bytes is kept, as Envoy sends the same bytes for each
request of a client on a route.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ratekit.core.cache import Cache
from ratekit.core.limits import MOST_REQUESTS, REQUESTS, Policy
from ratekit.core.modes import RateLimitMode, weakest
from ratekit.core.outages import OnOutage
from ratekit.core.protocol import CostGiven, parts
from ratekit.rules.descriptors.documents import DocumentDomain
from ratekit.rules.descriptors.file import UNIT_OF_NUMBER, Unit
from ratekit.rules.descriptors.tree import Domain, Domains, Rule, endpoint_of, policy_of, subject_of
from ratekit.web.checks import Check, Group, grouped
from ratekit_service.envoy.errors import GrpcError, StatusCode
from ratekit_service.envoy.wire import MalformedMessageError, RateLimitRequest, RequestedDescriptor, read_request

MOST_BYTES = 256 * 1024  # of a request
MOST_DESCRIPTORS = 100  # of a request
_MOST_KEPT, _LONGEST_KEPT = 16384, 1024


class Place(NamedTuple):
    """A descriptor in a plan: its rule, and the group and the limits of it that decide. No group: nothing is limited."""

    name: str = ""
    unit: int = 0
    group: int | None = None
    part: slice = slice(0)
    is_unlimited: bool = False


class Plan(NamedTuple):
    """What is to be decided about a request, and where the status of each descriptor comes from."""

    groups: tuple[Group, ...]
    places: tuple[Place, ...]
    is_lasting: bool = True  # it does not change with time


class _Found(NamedTuple):
    """The limit of a descriptor: that of its rule, or the one that it brings with it."""

    name: str
    endpoint: str
    subject: str
    policy: Policy | None  # None: unlimited
    unit: Unit | None
    declared: str = ""  # the name by which others may replace it
    replaces: tuple[str, ...] = ()
    mode: RateLimitMode | None = None  # of the rule
    on_outage: OnOutage | None = None
    cost: int = 1  # if the request says none


class Planner:
    """Makes plans by the limits of some domains."""

    def __init__(self, domains: Domains, prefix: str, *, one_slot: bool) -> None:
        self._domains = domains
        self._prefix = prefix
        self._one_slot = one_slot
        self._plans = {mode: self._cache(mode) for mode in (RateLimitMode.ON, RateLimitMode.MONITOR)}

    def plan(self, message: bytes, mode: RateLimitMode) -> Plan:
        """Return the plan of a request. Raises GrpcError for a request that makes no sense."""
        return self._plans[mode][message]

    def places(self, message: bytes) -> int:
        """Return how many descriptors a request has, after the same checks as those of `plan`."""
        return len(self._read(message).descriptors)

    def _cache(self, mode: RateLimitMode) -> Cache[bytes, Plan]:
        return Cache(lambda message: self._made(self._read(message), mode), _MOST_KEPT, _is_kept)

    def _read(self, message: bytes) -> RateLimitRequest:
        if len(message) > MOST_BYTES:
            raise _invalid(f"the request has {len(message)} bytes, and at most {MOST_BYTES} are read")
        try:
            request = read_request(message)
        except MalformedMessageError as error:
            raise _invalid(f"the request is not a RateLimitRequest: {error}") from None
        if not request.domain:
            raise _invalid("domain is empty")
        if not 1 <= len(request.descriptors) <= MOST_DESCRIPTORS:
            raise _invalid(f"descriptors are {len(request.descriptors)}, not 1 to {MOST_DESCRIPTORS}")
        return request

    def _made(self, request: RateLimitRequest, mode: RateLimitMode) -> Plan:
        domain = self._domains.by_name.get(request.domain)
        if domain is None:
            known = ", ".join(sorted(self._domains.by_name))[:500]
            raise GrpcError(StatusCode.NOT_FOUND, f"domain {_shown(request.domain)} is unknown: there are {known}")
        found = _without_replaced([_find(domain, descriptor) for descriptor in request.descriptors])
        checks: dict[int, Check] = {}
        for index, (limit, descriptor) in enumerate(zip(found, request.descriptors, strict=True)):
            if limit is not None and limit.policy is not None:
                weaker = mode if limit.mode is None else weakest(mode, limit.mode)
                cost = _cost(request, descriptor, limit)
                checks[index] = Check.of(
                    limit.policy, limit.subject, limit.endpoint, self._prefix, cost, weaker, limit.on_outage
                )
        groups = grouped(list(checks.values()), one_slot=self._one_slot) if checks else ()
        is_lasting = isinstance(domain, Domain) or not domain.is_timed
        places = tuple(_place(limit, checks.get(index), groups) for index, limit in enumerate(found))
        return Plan(groups, places, is_lasting)


def _find(domain: Domain | DocumentDomain, descriptor: RequestedDescriptor) -> _Found | None:
    if descriptor.is_negative:
        raise GrpcError(StatusCode.UNIMPLEMENTED, "is_negative_hits is not supported: hits are not given back")
    if isinstance(domain, DocumentDomain):
        return _found_in_document(domain, descriptor)
    rule, entries = domain.find(descriptor.entries), descriptor.entries
    if descriptor.limit is not None:
        return _brought(domain, descriptor, rule)
    if rule is None:
        return None
    return _Found(rule.name, rule.endpoint, rule.subject(entries), rule.policy, rule.unit, rule.declared, rule.replaces)


def _found_in_document(domain: DocumentDomain, descriptor: RequestedDescriptor) -> _Found | None:
    match = domain.match(descriptor.entries)
    if match is None:
        return None if descriptor.limit is None else _brought(domain, descriptor, None)
    if descriptor.limit is not None:
        return _brought(domain, descriptor, None)._replace(endpoint=match.endpoint, subject=match.subject)
    return _Found(
        match.name, match.endpoint, match.subject, match.policy, match.unit,
        mode=match.mode, on_outage=match.on_outage, cost=match.cost,
    )  # fmt: skip


def _brought(domain: Domain | DocumentDomain, descriptor: RequestedDescriptor, rule: Rule | None) -> _Found:
    """Return the limit that a descriptor brings with it. It counts where its rule would, and is never a shadow."""
    assert descriptor.limit is not None  # noqa: S101 - see _find
    requests, number = descriptor.limit
    unit, entries = UNIT_OF_NUMBER.get(number), descriptor.entries
    if unit is None:
        raise _invalid(f"the unit {number} of a descriptor's limit is none of {', '.join(map(str, UNIT_OF_NUMBER))}")
    if not entries:
        raise _invalid("a descriptor with a limit has no entries")
    endpoint = endpoint_of(domain.name, [key for key, _ in entries]) if rule is None else rule.endpoint
    subject = subject_of(entries) if rule is None else rule.subject(entries)
    name = endpoint if rule is None else rule.name
    return _Found(name, endpoint, subject, _brought_policy(name, requests, unit), unit)


_brought_policy = lru_cache(maxsize=4096)(policy_of)


def _without_replaced(found: Sequence[_Found | None]) -> list[_Found | None]:
    replaced = {name for limit in found if limit is not None for name in limit.replaces}
    return [None if limit is None or limit.declared in replaced else limit for limit in found]


def _cost(request: RateLimitRequest, descriptor: RequestedDescriptor, limit: _Found) -> CostGiven:
    """Return what a descriptor costs. Of limits that count another unit, hits are so many of that unit."""
    cost = (request.hits or limit.cost) if descriptor.hits is None else descriptor.hits
    if cost > MOST_REQUESTS:
        raise _invalid(f"hits_addend {cost} is more than {MOST_REQUESTS}")
    units = () if limit.policy is None else limit.policy.units
    others = [unit for unit in units if unit != REQUESTS]
    return dict.fromkeys(others, cost) if others else cost


def _place(limit: _Found | None, check: Check | None, groups: Sequence[Group]) -> Place:
    if limit is None:
        return Place()
    if check is None or limit.unit is None:
        return Place(limit.name, is_unlimited=True)
    for number, group in enumerate(groups):
        for other, part in zip(group.checks, parts(group.call), strict=True):
            if other is check:
                return Place(limit.name, limit.unit.number, number, part)
    raise AssertionError("a check is in no group")


def _is_kept(message: bytes, plan: Plan) -> bool:
    return len(message) <= _LONGEST_KEPT and plan.is_lasting


def _invalid(sentence: str) -> GrpcError:
    return GrpcError(StatusCode.INVALID_ARGUMENT, sentence)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:99] + "…")
