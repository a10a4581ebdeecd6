"""Several limits of one request: one table of cases for every front and store.

A front declares the limits of a case on `/x` in its own way; a case sends requests and says which counters have been charged
by how much afterwards. The rule behind all of it: a request that is refused has spent nothing anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratekit import Limit


class Declared(NamedTuple):
    """One limit that a front declares: by whom it counts, and how it treats a refusal and an outage."""

    limit: Limit
    by: str = "ip"
    cost: int = 1
    mode: str | None = None
    on_outage: str | None = None

    @property
    def name(self) -> str:
        return self.limit.name


class Sent(NamedTuple):
    """A request, by whom, and the status that is expected."""

    user: str
    status: int
    times: int = 1


@dataclass(frozen=True)
class Case:
    """Limits, requests, and what each limit's counters have been charged in sum."""

    declared: tuple[Declared, ...]
    sent: tuple[Sent, ...]
    used: dict[str, int] = field(default_factory=dict)


def limit(most: int, name: str, **options: Any) -> Limit:
    return Limit(most, 3600, name=name, **options)


WIDE = Declared(limit(100, "route"))
USER = Declared(limit(1, "user"), by="header:X-User")

CASES = {
    "two subjects": Case((WIDE, USER), (Sent("ann", 200), Sent("ann", 429, 4), Sent("bob", 200)), {"route": 2, "user": 2}),
    "two subjects, the second refuses first": Case(
        (USER, WIDE), (Sent("ann", 200), Sent("ann", 429, 4), Sent("bob", 200)), {"route": 2, "user": 2}
    ),
    "two costs": Case(
        (WIDE._replace(cost=7), USER._replace(limit=limit(10, "user"), cost=4)),
        (Sent("ann", 200, 2), Sent("ann", 429, 3), Sent("bob", 200)),
        {"route": 21, "user": 12},
    ),
    "three limits, the middle one refuses": Case(
        (WIDE, USER, Declared(limit(50, "last"), by="header:X-User", cost=5)),
        (Sent("ann", 200), Sent("ann", 429, 3)),
        {"route": 1, "user": 1, "last": 5},
    ),
    "monitored beside enforced": Case(
        (Declared(limit(1, "candidate"), mode="monitor"), Declared(limit(3, "user"), by="header:X-User")),
        (Sent("ann", 200, 3), Sent("ann", 429, 2)),
        {"candidate": 1, "user": 3},
    ),
    "enforced refuses, monitored spends nothing": Case(
        (Declared(limit(100, "candidate"), mode="monitor"), USER),
        (Sent("ann", 200), Sent("ann", 429, 4)),
        {"candidate": 1, "user": 1},
    ),
    "mode off beside enforced": Case(
        (WIDE._replace(mode="off"), USER), (Sent("ann", 200), Sent("ann", 429, 2)), {"user": 1}
    ),
    "two outage policies": Case(
        (WIDE._replace(on_outage="closed"), USER._replace(on_outage="open")),
        (Sent("ann", 200), Sent("ann", 429, 4)),
        {"route": 1, "user": 1},
    ),
    "a shadow refuses nobody": Case(
        (Declared(limit(1, "candidate", shadow=True)), Declared(limit(3, "user"), by="header:X-User")),
        (Sent("ann", 200, 3), Sent("ann", 429, 2)),
        {"candidate": 1, "user": 3},
    ),
    "a shadow spends nothing for who is refused": Case(
        (Declared(limit(100, "candidate", shadow=True)), USER),
        (Sent("ann", 200), Sent("ann", 429, 4)),
        {"candidate": 1, "user": 1},
    ),
    "several algorithms": Case(
        (
            Declared(limit(100, "bucket", algorithm="token_bucket")),
            Declared(limit(100, "log", algorithm="sliding_window_log")),
            Declared(limit(100, "counter", algorithm="sliding_window_counter")),
            USER,
        ),
        (Sent("ann", 200), Sent("ann", 429, 3)),
        {"bucket": 1, "log": 1, "counter": 1, "user": 1},
    ),
    "one counter twice, the stricter one decides": Case(
        (Declared(limit(100, "both")), Declared(limit(2, "both"))),
        (Sent("ann", 200, 2), Sent("ann", 429, 3)),
        {"both": 2},
    ),
    "one counter, enforced and monitored": Case(
        (Declared(limit(4, "both")), Declared(limit(2, "both"), mode="monitor")),
        (Sent("ann", 200, 4), Sent("ann", 429, 3)),
        {"both": 4},
    ),
    "one counter in two outage policies": Case(
        (Declared(limit(100, "both")), Declared(limit(2, "both"), on_outage="closed")),
        (Sent("ann", 200, 2), Sent("ann", 429, 3)),
        {"both": 2},
    ),
}
