"""What there is to decide about a request: checks, and the groups of them that one call decides.

Checks of one mode and one on_outage are one call of the script, whatever their subjects and costs; on a Redis Cluster one
call a slot. Enforced checks come first, so that a monitored one never spends for a request that is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ratekit.core.limits import REQUESTS, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.core.protocol import CHECK, Call, CostGiven, Extra, Operation, encode, merge, part_of, parts
from ratekit.core.results import RateLimitResult
from ratekit.limiter.operations import new_slot
from ratekit.limiter.reservations import HOLD, hold_ms
from ratekit.web.charging import Charging

_ON = RateLimitMode.ON
_HOLD_MS = hold_ms(HOLD)


class Check(NamedTuple):
    """One thing to decide about a request: who spends how much of what, and how a refusal and an outage are treated."""

    call: Call
    endpoint: str
    mode: RateLimitMode = _ON
    on_outage: OnOutage | None = None  # None: as the limiter does
    is_kept: bool = False  # spent even if the request is refused by another check
    charging: Charging | None = None  # how it charges, if that is more than a cost
    other_units: tuple[str, ...] = ()  # that may be named when it is settled, and are not counted

    @property
    def is_reserved(self) -> bool:
        """Whether what it costs is settled when the response has ended."""
        return self.charging is not None and self.charging.is_reserved

    @classmethod
    def of(
        cls,
        policy: Policy,
        subject: str,
        endpoint: str,
        prefix: str,
        cost: CostGiven = 1,
        mode: RateLimitMode = _ON,
        on_outage: OnOutage | None = None,
        charging: Charging | None = None,
        share: float | None = None,
        other_units: tuple[str, ...] = (),
    ) -> Check:
        """Make a check of a policy. One with a concurrency limit takes a slot.

        charging says whether its cost is an estimate, and what is settled by which outcome. share is the fraction of each
        capacity that the request may use. other_units may be named when it is settled, and are not counted.
        """
        operation, slot = CHECK, None
        extra = None if share is None else Extra(share=share)
        if charging is not None and charging.is_reserved:
            operation, slot, extra = Operation.RESERVE, new_slot(), Extra(share=share, hold_ms=_HOLD_MS)
        elif policy.has_slots:
            operation, slot, cost = Operation.ACQUIRE, new_slot(), 1 if policy.units == (REQUESTS,) else cost
        call = encode(policy, subject, endpoint, prefix, operation, cost, slot=slot, extra=extra)
        return cls(call, endpoint, mode, on_outage, charging=charging, other_units=other_units)


class Group(NamedTuple):
    """Checks that one call decides together, all or nothing."""

    call: Call
    checks: tuple[Check, ...]
    mode: RateLimitMode
    on_outage: OnOutage | None
    is_kept: bool = False

    @property
    def is_single_use(self) -> bool:
        """Whether it is for one request only: a soft limit draws a number for each, and a slot is one request's own."""
        return self.call.compiled.is_soft or self.call.slot is not None

    @property
    def is_reserved(self) -> bool:
        """Whether what it has spent is settled when the response has ended."""
        return self.call.operation is Operation.RESERVE

    @property
    def is_held(self) -> bool:
        """Whether something is left to do when the response has ended: to settle, or to free slots."""
        return self.call.slot is not None

    def over_limit(self, result: RateLimitResult) -> str:
        """Return the endpoint of the first check that is over its limit."""
        for check, part in zip(self.checks, parts(self.call), strict=True):
            if part_of(result, part).is_over_limit:
                return check.endpoint
        return self.checks[0].endpoint


def grouped(checks: Sequence[Check], *, one_slot: bool) -> tuple[Group, ...]:
    """Group checks by what one call can decide; the enforced ones first. one_slot: the store is a Redis Cluster."""
    if len(checks) == 1:
        (check,) = checks
        return (Group(check.call, (check,), check.mode, check.on_outage, check.is_kept),)
    groups: dict[tuple[object, ...], list[Check]] = {}
    for check in checks:
        tag = check.call.keys[0].partition(b"{")[2].partition(b"}")[0] if one_slot else None
        groups.setdefault((check.mode, check.on_outage, tag, check.is_kept, check.call.share), []).append(check)
    made = [group_of(checks) for checks in groups.values()]
    return (
        tuple(sorted(made, key=lambda group: (group.mode is not _ON, not group.is_kept))) if len(made) > 1 else tuple(made)
    )


def group_of(checks: Sequence[Check], *, reserved: bool = False) -> Group:
    """Group checks that one call decides. reserved: what they cost is settled, even if none of them says so."""
    first, is_reserved = checks[0], reserved or any(check.is_reserved for check in checks)
    call = merge(calls_of(checks, is_reserved=is_reserved), spreads=is_reserved)
    return Group(call, tuple(checks), first.mode, first.on_outage, first.is_kept)


def calls_of(checks: Sequence[Check], *, is_reserved: bool) -> list[Call]:
    """Return the calls of checks. All slots and reservations of one call have one id; if one is reserved, all are."""
    slot = next((check.call.slot for check in checks if check.call.slot is not None), None)
    if is_reserved:
        extra = Extra(share=checks[0].call.share, hold_ms=_HOLD_MS)
        return [check.call._replace(operation=Operation.RESERVE, slot=slot, extra=extra) for check in checks]
    return [check.call if check.call.slot is None else check.call._replace(slot=slot) for check in checks]
