"""Limits that depend on who asks: one table of cases for every front.

A front limits `/x` by what a case declares, and is asked by users; the case says what each of them is answered. Callables of
a case take the name of the user, and `of_request` makes callables of the front's own request of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ratekit import Limit, Policy
from ratekit.identity import combine
from support.several_limits import Sent

BY_USER = "header:X-User"
PLANS = {"free": ["2/min", "100/h"], "pro": "4/min"}
PLAN_OF = {"ann": "free", "bob": "pro", "eve": None}


@dataclass(frozen=True)
class Case:
    """What a limiter is declared with, what the application has set, and the requests."""

    options: Mapping[str, Any]
    sent: tuple[Sent, ...]
    plan_of: Callable[[str], Any] | None = None
    by: Any = BY_USER
    names: tuple[str, ...] = ("limits", "cost", "counter")  # options that are callables of the user
    used: dict[str, int] = field(default_factory=dict)  # what the counters have been charged, if that is part of the case


def user_of(request: Any) -> str:
    """Return who asks, whatever kind of request it is."""
    name = request.headers.get("x-user") if hasattr(request, "headers") else request.header("x-user")
    return str(name)


def of_request(function: Any) -> Any:
    """Make a callable of a request of one of a user's name, in the same colour; anything else stays as it is."""
    if not callable(function):
        return function
    if inspect.iscoroutinefunction(function):

        async def awaited(request: Any) -> Any:
            return await function(user_of(request))

        return awaited
    return lambda request: function(user_of(request))


def declared(case: Case) -> dict[str, Any]:
    """Return the options of a case as a front takes them."""
    asked = {name: of_request(value) if name in case.names else value for name, value in case.options.items()}
    return {"by": case.by, **asked}


async def plan_later(user: str) -> str | None:
    return PLAN_OF[user]


async def two_later(_: str) -> str:
    return "2/min"


def nothing_known(_: str) -> str:
    raise KeyError("secret")


TWO = (Sent("ann", 200, 2), Sent("ann", 429), Sent("bob", 200, 2), Sent("bob", 429))
BY_PLAN = (Sent("ann", 200, 2), Sent("ann", 429), Sent("bob", 200, 4), Sent("bob", 429), Sent("eve", 200, 6))
ONE_FAULT = (Sent("ann", 500, 2),)

CASES = {
    "limits answers a rate": Case({"limits": lambda user: "2/min"}, TWO),
    "limits answers a limit": Case({"limits": lambda user: Limit(2, 60)}, TWO),
    "limits answers several": Case({"limits": lambda user: ["2/min", Limit(100, 3600)]}, TWO),
    "limits answers a policy": Case({"limits": lambda user: Policy("own", ["2/min"])}, TWO),
    "limits answers a plan, or None": Case({"limits": PLAN_OF.__getitem__}, BY_PLAN),
    "limits is a plan of the lookup": Case({"limits": "plan"}, BY_PLAN, plan_of=PLAN_OF.__getitem__),
    "limits answers an unknown plan": Case({"limits": lambda user: "gold"}, ONE_FAULT),
    "limits answers a rate that is none": Case({"limits": lambda user: ["2/fortnight"]}, ONE_FAULT),
    "limits answers a wrong type": Case({"limits": lambda user: 5}, ONE_FAULT),
    "limits raises": Case({"limits": nothing_known}, ONE_FAULT),
    "lookup names an unknown plan": Case({"limits": "plan"}, ONE_FAULT, plan_of=lambda user: "gold"),
    "faults pass in monitor mode": Case({"limits": lambda user: "gold", "mode": "monitor"}, (Sent("ann", 200, 2),)),
    "faults pass where nothing is blocked": Case({"limits": lambda user: 5, "block": False}, (Sent("ann", 200, 2),)),
    "limits and a cost": Case({"limits": lambda user: "2/min", "cost": 2}, (Sent("ann", 200), Sent("ann", 429))),
    "nothing is blocked": Case({"limits": "2/min", "block": False}, (Sent("ann", 200, 5),), used={"60s": 2}),
    "a combination of parts": Case(
        {"limits": "2/min"}, TWO, by=combine("header:X-User", lambda request: "the same for all")
    ),
    "a callable names the user": Case({"limits": "2/min"}, TWO, by=user_of),
}
ASYNC_CASES = {
    "limits is awaited": Case({"limits": two_later}, TWO),
    "the lookup is awaited": Case({"limits": "plan"}, BY_PLAN, plan_of=plan_later),
}
# Of path tables, and of Django's and Flask's decorators.
RULE_CASES = {
    "a callable exempts": Case(
        {"limits": "2/min", "exempt": [lambda user: user == "eve"]},
        (*TWO, Sent("eve", 200, 5)),
        names=("limits", "exempt"),
    ),
    "a network is exempt": Case({"limits": "2/min", "exempt": ["192.0.2.0/24"]}, (Sent("ann", 200, 5),)),
    "another network is exempt": Case({"limits": "2/min", "exempt": ["198.51.100.0/24", "2001:db8::/32"]}, TWO),
    "a path is exempt": Case({"limits": "2/min", "exempt": ["/x"]}, (Sent("ann", 200, 5),)),
    "another path is exempt": Case({"limits": "2/min", "exempt": ["/y", "POST /x"]}, TWO),
    "exempt answers a wrong type": Case(
        {"limits": "2/min", "exempt": [lambda user: "yes"]}, ONE_FAULT, names=("limits", "exempt")
    ),
    "a counter of its own": Case({"limits": "2/min", "counter": "search"}, TWO),
    "a callable names the counter": Case(
        {"limits": "2/min", "counter": lambda user: f"of {user}"}, (Sent("ann", 200, 2), Sent("ann", 429))
    ),
    "counter answers a wrong type": Case({"limits": "2/min", "counter": lambda user: 5}, ONE_FAULT),
    "other methods": Case({"limits": "2/min", "methods": ["POST"]}, (Sent("ann", 200, 5),)),
}
