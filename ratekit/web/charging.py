"""How a limiter charges: by an estimate that is settled, by outcomes that count, by a share, from an anchor.

A limiter that says any of `estimate`, `count`, `reset_when` or `actual` reserves what a request costs, and settles it when
the response has ended: see `web.settling`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple, TypedDict

from ratekit.core.errors import ConfigurationError
from ratekit.core.limit_names import Meaning, callable_name
from ratekit.core.limits import REQUESTS, Policy
from ratekit.core.protocol import CostGiven, cost_of, unsaid
from ratekit.limiter.reservations import checked_share
from ratekit.web.arguments import checked_cost, is_awaited
from ratekit.web.plans import Cost

Outcome = int | str | Iterable[int | str] | Callable[[Any], bool]  # statuses, classes ("4xx"), or a callable of the response
Share = float | Callable[[Any], Any]
Anchor = int | date | Callable[[Any], Any]
_HEADER = re.compile(r"header:([!#$%&'*+.^_`|~0-9A-Za-z-]+)")
_words: dict[str, Callable[[Any], bool]] = {}  # of frameworks, such as Django's "login_failed"
_log = logging.getLogger("ratekit.web")


class ResponseHead(NamedTuple):
    """What is known of a response when it starts. Callables of the application get native, or this where there is none."""

    status_code: int
    headers: Mapping[str, str] = {}  # names in lower case
    native: Any = None  # the framework's response
    request: Any = None  # the framework's request, for the words of a framework
    has_trailers: bool = False  # which may say the actual cost, after the body


def joined(lines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return header lines by name, in lower case. Several lines of one name are one text: no number, if it should be one."""
    headers: dict[str, str] = {}
    for name, value in lines:
        known = headers.get(name.lower())
        headers[name.lower()] = value if known is None else f"{known}, {value}"
    return headers


class Outcomes:
    """Some outcomes of requests, by the status of the response or by what a callable says of it."""

    __slots__ = ("_classes", "_function", "_statuses", "_words", "name", "qualifier")

    def __init__(self, name: str, given: Outcome) -> None:
        self.name = name
        self._function = given if callable(given) else None
        items = [] if callable(given) else _items(given)
        self._words = [_words[item] for item in items if item in _words]
        texts = [] if callable(given) else _texts(name, given, [item for item in items if item not in _words])
        self._classes = {int(text[0]) for text in texts if text.endswith("xx")}
        self._statuses = {int(text) for text in texts if not text.endswith("xx")}
        named = sorted({*texts, *(item for item in items if item in _words)})
        self.qualifier = "-".join(named) if self._function is None else callable_name(self._function)  # in names of limits
        if is_awaited(given):
            raise ConfigurationError(f"{name} {given!r} has to be awaited, and a response that starts does not wait")

    def matches(self, head: ResponseHead, on_fault: bool) -> bool:
        """Whether a response is one of them. A callable that raises, or answers neither True nor False, is logged."""
        if self._function is None:
            is_one = head.status_code in self._statuses or head.status_code // 100 in self._classes
            return is_one or any(word(head.request) for word in self._words)
        try:
            answer = self._function(head if head.native is None else head.native)
        except Exception:  # noqa: BLE001 - the application's own: a response that starts is not to fail because of it
            _log.exception("%s raised an exception: the request counts as if it had answered %s", self.name, on_fault)
            return on_fault
        if not isinstance(answer, bool):
            kind = type(answer).__name__
            _log.error("%s gave a value of the type %s: it has to be True or False; %s counts", self.name, kind, on_fault)
            return on_fault
        return answer


class ChargingOptions(TypedDict, total=False):
    """The arguments of every front that say how a limiter charges.

    - estimate: what a request costs for now: a number, one for each unit, or a callable of the request. It is settled when
      the response has ended
    - actual: "header:x-usage-tokens": the response says what the request has cost. hide removes that header
    - count: only these outcomes count: statuses, classes ("4xx"), a framework's words, or a callable of the response
    - reset_when: these outcomes forget what was counted, in the same words
    - share: the fraction of each capacity that the request may use, or a callable of the request
    - anchor: from when periods of calendars are counted, or a callable of the request
    """

    estimate: Cost | None
    actual: str | None
    hide: bool
    count: Outcome | None
    reset_when: Outcome | None
    share: Share | None
    anchor: Anchor | None


@dataclass(frozen=True, slots=True)
class Charging:
    """How a limiter charges, checked when it is declared."""

    estimate: Cost | None = None
    actual: str | None = None  # the name of a header, in lower case
    hide: bool = False
    count: Outcomes | None = None
    reset_when: Outcomes | None = None
    share: Share | None = None
    anchor: Anchor | None = None

    @property
    def is_reserved(self) -> bool:
        """Whether what a request costs is settled when the response has ended."""
        given = (self.estimate, self.actual, self.count, self.reset_when)
        return any(value is not None for value in given)

    @property
    def is_estimated(self) -> bool:
        """Whether the application, or its response, says what a request has cost."""
        return self.estimate is not None or self.actual is not None

    @property
    def outcomes(self) -> str:
        """What stands for the outcomes in the names of limits: failures are not counted in the counter of requests.

        None of an estimate: there, outcomes say what a request costs, and not what is counted.
        """
        given = {} if self.is_estimated else {"count": self.count, "reset": self.reset_when}
        return "-".join(f"{word}-{one.qualifier}" for word, one in given.items() if one is not None)

    @property
    def callables(self) -> list[tuple[str, object]]:
        """What is asked about a request, by the name of the argument."""
        given = {"estimate": self.estimate, "share": self.share, "anchor": self.anchor}
        return [(name, value) for name, value in given.items() if callable(value)]


def charging_of(options: Mapping[str, Any]) -> Charging | None:
    """Read how a limiter charges from its arguments; None if they say nothing of it."""
    given = {name: options[name] for name in ChargingOptions.__annotations__ if options.get(name) is not None}
    if given.get("hide") is False:
        del given["hide"]
    if not given:
        return None
    if options.get("estimate") is not None and options.get("cost", 1) not in (None, 1):
        raise ConfigurationError(
            f"cost {options['cost']!r} and estimate {options['estimate']!r} both say what it costs: give one"
        )
    if "hide" in given and (given["hide"] is not True or "actual" not in given):
        raise ConfigurationError(f"hide {given['hide']!r} has no meaning without actual, and is True or False")
    for name, read in _READ.items():
        if name in given:
            given[name] = read(given[name])
    return Charging(**given)


def _header(actual: Any) -> str:
    match = _HEADER.fullmatch(actual) if isinstance(actual, str) else None
    if match is None:
        raise ConfigurationError(f"actual {actual!r} is not the name of a header: such as 'header:x-usage-tokens'")
    return match[1].lower()


def _anchor(anchor: Any) -> Anchor:
    if callable(anchor) or isinstance(anchor, date) or (type(anchor) is int and 1 <= anchor <= 31):
        chosen: Anchor = anchor
        return chosen
    raise ConfigurationError(f"anchor {anchor!r} is neither a day of 1 to 31, a date, nor a callable of the request")


_READ: dict[str, Callable[[Any], Any]] = {
    "estimate": lambda estimate: checked_cost(estimate, "estimate"),
    "actual": _header,
    "count": lambda given: Outcomes("count", given),
    "reset_when": lambda given: Outcomes("reset_when", given),
    "share": lambda share: share if callable(share) else checked_share(share),
    "anchor": _anchor,
}


def add_outcome(word: str, function: Callable[[Any], bool]) -> None:
    """Let a framework name an outcome: function says of a request, which is None for other fronts, whether it was one."""
    _words[word] = function


def _items(given: Any) -> list[Any]:
    return [given] if isinstance(given, int | str) else list(given) if isinstance(given, Iterable) else []


def _texts(name: str, given: Any, items: Sequence[Any]) -> list[str]:
    texts = [str(item).lower() for item in items if type(item) in (int, str)]
    is_read = len(texts) == len(items) and all(re.fullmatch(r"[1-5](xx|\d\d)", text) for text in texts)
    if not is_read or not _items(given):
        known = "".join(f", {word!r}" for word in _words)
        raise ConfigurationError(
            f"{name} {given!r} is neither a status (401), a class of them ('4xx'){known}, several, "
            "nor a callable of the response"
        )
    return texts


def meaning_of(cost: Cost, charging: Charging | None) -> Meaning:
    """Return what a limiter counts, as the names of its limits tell it: an estimate is none of it, as it may change."""
    if charging is None:
        return Meaning(cost)
    return Meaning(cost if charging.estimate is None else 1, charging.outcomes)


def other_units(policy: Policy, cost: CostGiven, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the units that may be named though a policy does not count them, where limits are asked for each request.

    asked are the units of all plans, None if the limits are fixed. Who names a unit that one plan counts names it for all.
    """
    if asked is None:
        return ()
    named = (*asked, *cost) if isinstance(cost, Mapping) else asked
    return tuple(unit for unit in dict.fromkeys(named) if unit not in policy.units)


def main_unit(units: Sequence[str]) -> str | None:
    """Return the unit that a number without one stands for in an estimate: the only one beside requests; None: no one."""
    others = [unit for unit in units if unit != REQUESTS]
    return others[0] if len(others) == 1 else REQUESTS if not others else None


def spent_by(policy: Policy, cost: CostGiven, charging: Charging | None, others: Sequence[str] = ()) -> CostGiven:
    """Return what a request spends by unit. A number is an estimate of the only unit beside requests.

    others are units that may be named, and are not counted.
    """
    is_estimate = charging is not None and charging.estimate is not None
    if isinstance(cost, Mapping):
        missing = [unit for unit in policy.units if unit != REQUESTS and unit not in cost] if others else []
        if missing:
            raise unsaid("estimate" if is_estimate else "cost", cost, missing[0])
        return {unit: number for unit, number in cost.items() if unit not in others} if others else cost
    units = (*policy.units, *others)
    if not is_estimate or units == (REQUESTS,):
        return cost
    unit = main_unit(units)
    if unit is None and policy.units == (REQUESTS,):
        return {}  # whichever unit of another plan it is
    if unit is None:
        raise ConfigurationError(f"estimate {cost!r} says no unit, and the limits count {', '.join(units)}")
    return {} if unit in others else {unit: cost}


def check_charging(policy: Policy | None, cost: Cost, charging: Charging | None, others: Sequence[str] = ()) -> None:
    """Refuse at the start what could never be charged by fixed limits: a unit that is unknown, or is not named.

    others are units that may be named, and are not counted.
    """
    if policy is None:
        return
    given = cost if charging is None or charging.estimate is None else charging.estimate
    if not callable(given):
        units = () if policy.units == (REQUESTS,) else policy.units
        if units or isinstance(given, Mapping):
            name = "cost" if charging is None or charging.estimate is None else "estimate"
            cost_of(units, spent_by(policy, given, charging, others), name=name)
    if charging is None:
        return
    if charging.actual is not None and main_unit((*policy.units, *others)) is None:
        raise ConfigurationError(
            f"actual names one header, and the limits count {', '.join(policy.units)}: settle them instead"
        )
    if charging.anchor is not None and not callable(charging.anchor):
        policy.anchored(charging.anchor)
