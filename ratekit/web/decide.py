"""The engine: decides a request by all of its checks, for every front.

A front turns its request into checks (`web.checks`), groups them, and drives `decide`, a generator of `web.steps`, by
`web.drivers`. The verdict says whether the request passes. **A request that is refused has spent nothing**: checks that can
be decided in one atomic call are, and what earlier calls of the same request have spent, which `web.ledger` knows, is given
back, to the windows in which it was spent.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Sequence
from typing import Any

from ratekit.core.errors import RatekitError, RateLimitExceeded
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.core.protocol import Call, Operation, only
from ratekit.core.results import RateLimitResult
from ratekit.limiter.operations import new_slot
from ratekit.telemetry.datadog import tag_over_limit
from ratekit.web.answers import ErrorResponse, ResponseWriter, error_response
from ratekit.web.checks import Group, group_of
from ratekit.web.ledger import Ledger, Spent
from ratekit.web.steps import PASS, Decide, Flow, GiveBack, Step, Verdict

_ON = RateLimitMode.ON


def decide(
    groups: Sequence[Group],
    ledger: Ledger,
    writer: ResponseWriter,
    place: Hashable,
    *,
    once: bool = True,
    known: RateLimitResult | RatekitError | None = None,
) -> Flow:
    """Decide a request, group by group, and give back what it has spent if one refuses it.

    place is where the store that decides keeps its state. once: limits of a request that meet in one counter charge it
    once. A throttle that is asked after another has refused the request spends nothing any more. known is the answer to the
    first group, where it was decided before.
    """
    if ledger.is_refused and once:
        return PASS
    result: RateLimitResult | None = None
    for own in groups:
        group, again, joins = _after_others(own, ledger, place) if once and ledger.spent else (own, {}, None)
        try:
            result = (yield _step(group, again, joins)) if known is None else _known(known)
        except RatekitError as error:
            response = error_response(error, group.mode)
            if response is not None:
                yield from refuse(ledger, place)
                return Verdict(response, error)
            continue
        finally:
            known = None
        ledger.results.append(result)
        if result.allowed:
            yield from _noted(group, again, joins, ledger, place, result)
        elif group.mode is _ON:
            _forget(again, joins)
            yield from refuse(ledger, place)
            return Verdict(writer.refusal(ledger.results), RateLimitExceeded(result), result)
        else:
            tag_over_limit(group.over_limit(result))
    return PASS if result is None else Verdict(result=result)


def _known(answer: RateLimitResult | RatekitError) -> RateLimitResult:
    if isinstance(answer, RatekitError):
        raise answer
    return answer


def refusal_of(error: RatekitError, ledger: Ledger, writer: ResponseWriter) -> ErrorResponse:
    """Return the response to an error of a limiter: 429, 503, or another 4xx."""
    if not isinstance(error, RateLimitExceeded):
        response = error_response(error, RateLimitMode.ON)
        assert response is not None  # noqa: S101 - there is one for each error that is enforced
        return response
    if error.result not in ledger.results:
        ledger.results.append(error.result)
    return writer.refusal(ledger.results)


def refuse(ledger: Ledger, place: Hashable) -> Generator[Step, Any, None]:
    """Take note that a request is refused, and give back what was spent for it in one place."""
    ledger.refuse()
    yield from give_back(ledger, place)


def give_back(ledger: Ledger, place: Hashable) -> Generator[Step, Any, None]:
    """Give back what was spent for a request in one place, as far as the windows in which that was still count it."""
    mine = ledger.take_spent(place)
    yield from given_back((spent, spent.returns()) for spent in mine)


def given_back(parts: Iterable[tuple[Spent, Sequence[Call]]]) -> Generator[Step, Any, None]:
    """Let the store run the calls that end what was spent, and renew its slots no more."""
    batches: dict[OnOutage | None, list[Call]] = {}
    for spent, calls in parts:
        batches.setdefault(spent.group.on_outage, []).extend(calls)
        if spent.renewal is not None:
            spent.renewal.stop()
        spent.counters.clear()  # a front around this one has the same entry, and must not give it back again
    for on_outage, calls in batches.items():
        if calls:
            yield GiveBack(tuple(calls), on_outage)


_Again = dict[bytes, Spent]


def _after_others(group: Group, ledger: Ledger, place: Hashable) -> tuple[Group, _Again, Spent | None]:
    """Return what is decided of a group after others, its counters that they have charged, and what it is joined with."""
    joins = _reserved_before(group, ledger, place)
    return (group, _charged_before(group, ledger, place), None) if joins is None else (_joined(joins, group), {}, joins)


def _charged_before(group: Group, ledger: Ledger, place: Hashable) -> _Again:
    """Return the counters of a group that were charged for this request before."""
    mine = [spent for spent in ledger.spent_by(place) if not spent.group.is_reserved or group.mode is not _ON]
    return {key: spent for key in group.call.state_keys for spent in mine if key in spent.counters}


def _reserved_before(group: Group, ledger: Ledger, place: Hashable) -> Spent | None:
    """Return what a group is decided together with: it has charged a counter of the group, and one of the two is settled.

    What one of them settles must not return what the other has charged. Slots stay with the front that renews them.
    """
    keys = set(group.call.state_keys)
    for spent in ledger.spent_by(place) if group.mode is _ON else ():
        is_settled = group.is_reserved or spent.group.is_reserved
        if is_settled and _is_alike(spent.group, group) and not keys.isdisjoint(spent.counters):
            return spent if spent.result.degraded is None and not spent.concluded else None
    return None


def _is_alike(earlier: Group, group: Group) -> bool:
    """Whether one call can decide both."""
    ways = [(one.mode, one.on_outage, one.is_kept, one.call.share) for one in (earlier, group)]
    return ways[0] == ways[1] and not earlier.call.compiled.has_slots


def _joined(spent: Spent, group: Group) -> Group:
    """Return a group with what was decided before, and an id of its own: that of a settled reservation is used up."""
    both = group_of([*spent.group.checks, *group.checks], reserved=True)
    return both._replace(call=both.call._replace(slot=new_slot()))


def _step(group: Group, again: _Again, joins: Spent | None) -> Decide:
    """Decide a group as if the request had not charged its counters yet.

    The earlier charge is given back in the same atomic call: so the stricter limit decides, and the counter is charged once.
    A monitored group must not lower a counter that an enforced one has charged: it looks, and the charge is restored.
    """
    if joins is not None:
        returns = tuple(joins.returns())
        return Decide((*returns, group.call), group.mode, group.on_outage, len(returns))
    if not again:
        return Decide((group.call,), group.mode, group.on_outage)
    if group.mode is _ON:
        returns = tuple(part for key, spent in again.items() for part in spent.returned([key]))
        return Decide((*returns, group.call), group.mode, group.on_outage, len(returns))
    refunds = tuple(only(spent.group.call, [spent.counters[key]], Operation.REFUND) for key, spent in again.items())
    restored = tuple(part._replace(operation=Operation.CHARGE) for part in refunds)
    peek = only(group.call, range(len(group.call.compiled.limits)), Operation.PEEK)
    return Decide((*refunds, peek, *restored), group.mode, group.on_outage, len(refunds))


def _noted(
    group: Group, again: _Again, joins: Spent | None, ledger: Ledger, place: Hashable, result: RateLimitResult
) -> Generator[Step, Any, None]:
    """Take note of what an admitted group has spent; charge what a monitored group has only looked at."""
    if joins is not None:
        ledger.join(joins, group, result)
        return
    if (result.degraded is not None and not group.is_reserved) or group.is_kept:
        return
    if again and group.mode is not _ON:
        rest = [index for index, key in enumerate(group.call.state_keys) if key not in again]
        if rest:
            yield GiveBack((only(group.call, rest, Operation.CHARGE),), group.on_outage)
        return
    _forget(again)
    ledger.note(Spent(group, place, result))


def _forget(again: _Again, joins: Spent | None = None) -> None:
    """The earlier charge of these counters is given back, and all of what a group was joined with."""
    if joins is not None:
        joins.counters.clear()  # a reservation can be settled again, and that changes nothing
    for key, spent in again.items():
        spent.counters.pop(key, None)
