"""The names of limits that count apart on one endpoint: by the declared method, by cost, and by the outcomes that count.

    60s                       every method; in FastAPI, where each operation has its own counter, GET
    post-60s                  POST
    get-post-60s              an operation, a rule or a view that is declared for both
    options-60s               OPTIONS, where no method is declared
    cost-50-60s               a limiter with cost=50
    post-cost-elements-60s    POST, by a limiter with cost=elements
    count-401-403-60s         a limiter with count=(401, 403)
    count-4xx-reset-2xx-60s   a limiter with count="4xx" and reset_when="2xx"

A name is made of its own declaration alone: no other route changes it, and no restart does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from types import CodeType
from typing import Any, NamedTuple

from ratekit.core.limits import REQUESTS, Algorithm, Limit, Policy

OPTIONS = "options"  # the qualifier of a preflight, where no method is declared
_SIMPLE = (int, float, str, bytes, bool, type(None))


class Meaning(NamedTuple):
    """What a limiter counts, if not requests: each meaning has a counter of its own."""

    cost: int | Mapping[str, int] | Callable[[Any], Any] = 1
    outcomes: str = ""  # those that count, and those that reset: "count-401-reset-200"


@lru_cache(maxsize=1024)
def qualified(policy: Policy, qualifier: str) -> Policy:
    """Return a policy whose limits have a qualifier before their names, and so counters of their own."""
    if not qualifier:
        return policy
    return Policy(policy.name, [replace(limit, name=f"{qualifier}-{limit.name}") for limit in policy.limits])


@lru_cache(maxsize=1024)
def _with_meaning(policy: Policy, cost: str, outcomes: str) -> Policy:
    return Policy(policy.name, [_meaning(limit, cost, outcomes) for limit in policy.limits])


def _meaning(limit: Limit, cost: str, outcomes: str) -> Limit:
    """Return a limit with its meaning in its name. Clients are not shown which outcomes count: who guesses may use it."""
    if _keeps_name(limit):
        return limit
    named = replace(limit, name="-".join(part for part in (cost, outcomes, limit.name) if part))
    return named.with_title(f"outcomes {limit.title}") if outcomes else named


def with_meaning(policy: Policy, meaning: Meaning) -> Policy:
    """Return the policy of a limiter that counts something of its own: requests, units and failures have a counter each.

    A limit that has a name keeps it, so that limiters of different costs can share a budget; so does one that counts slots.
    """
    cost = _cost_name(policy, meaning.cost)
    return _with_meaning(policy, cost, meaning.outcomes) if cost or meaning.outcomes else policy


def _cost_name(policy: Policy, cost: int | Mapping[str, int] | Callable[[Any], Any]) -> str:
    """Return the part of a name that a cost makes; "" for one that changes no meaning.

    A cost of 0 only looks, and a slot costs 1. Where a limit says its unit, its counter has no other meaning.
    """
    if cost in (0, 1) or policy.has_slots or isinstance(cost, Mapping) or policy.units != (REQUESTS,):
        return ""
    return f"cost-{cost if isinstance(cost, int) else callable_name(cost)}"


def by_methods(methods: Iterable[str]) -> str:
    """Return the qualifier of the methods that a rule or a view is declared for. HEAD counts as GET."""
    names = {method.lower() for method in methods}
    return "-".join(sorted(names - {"head"} if "get" in names else names))


def by_operation(methods: Iterable[str]) -> str:
    """Return the qualifier of an operation, which is declared for some methods in any case: GET goes without saying."""
    qualifier = by_methods("GET" if method.upper() == "HEAD" else method for method in methods)
    return "" if qualifier == "get" else qualifier


def _keeps_name(limit: Limit) -> bool:
    return limit.algorithm is Algorithm.CONCURRENCY or limit.name != replace(limit, name="").name


def callable_name(function: Callable[..., Any]) -> str:
    """Return the name of a callable; of a lambda, an inner function and a partial also a digest of what it is made of."""
    if isinstance(function, partial):
        return f"{callable_name(function.func)}-{_digest((function.args, tuple(sorted(function.keywords.items()))))}"
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    own = re.sub(r"[^a-z0-9._]+", "", name.rpartition("<locals>.")[2].lower()).lstrip("._") or "callable"
    code = getattr(function, "__code__", None)
    if code is None or "<" not in name:
        return own
    return f"{own}-{_digest((code, _closure(function), getattr(function, '__defaults__', None)))}"


def _closure(function: Any) -> tuple[Any, ...]:
    """Return the values that an inner function has from the one around it."""
    try:
        return tuple(cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    except ValueError:  # one of them has no value yet
        return ()


def _digest(parts: tuple[Any, ...]) -> str:
    import hashlib  # imported late: few costs are lambdas, and the import of ratekit is faster without it

    return hashlib.sha256(_described(parts).encode()).hexdigest()[:6]


def _described(value: Any) -> str:
    """Describe a value, the same in every process: no address, and no order that depends on hashes."""
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()}{_described(value.co_consts)}{value.co_names}"
    if isinstance(value, tuple):
        return f"({','.join(map(_described, value))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_described, value)))}}}"
    return repr(value) if isinstance(value, _SIMPLE) else type(value).__qualname__
