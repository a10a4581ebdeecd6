"""Reservations of a client: what a request is estimated to cost, and what it has cost in the end."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from typing import Any

from ratekit.client.answers import Answer
from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import MOST_REQUESTS, REQUESTS, Limit
from ratekit.core.protocol import CostGiven
from ratekit.core.results import RateLimitResult

_OWN = "~"  # begins the id of a reservation that the service has not answered
ENDED = "it was settled when its block ended"
SETTLED_BY_CLIENT = "what reserve_now has reserved is settled by the client: settle(id, actual=…)"
_PLACE = ("id", "resource", "subject", "plan_id", "anchor", "hold")  # what says where a reservation is counted


class Reservation:
    """What was reserved for a request. `settle` says what it has cost, `add` counts what it costs as it goes on.

    Both only take note: the service is told when the block of `reserve` ends, once. Without them the estimate stays. If the
    block raises an exception, all of it returns, unless something was noted: then that stays. A cancelled block keeps it.
    Outside of a block they raise ConfigurationError: what `reserve_now` has reserved is settled by `settle` of the client.
    """

    __slots__ = ("_actual", "_added", "_has_failed", "_lock", "_settled_by", "answer", "estimate", "id")

    def __init__(self, reservation: str, answer: Answer, estimate: CostGiven) -> None:
        self.id = reservation
        self.answer = answer
        self.estimate = estimate  # what was reserved, by unit if the plan has units; what was asked for if no answer came
        self._actual: dict[str, int] = {}
        self._added: dict[str, int] = {}
        self._has_failed = False
        self._lock = threading.Lock()  # threads that work for one request add to one sum
        self._settled_by = ""  # why nothing can be said of its cost any more

    @property
    def allowed(self) -> bool:
        """Whether it was reserved, or passes all the same."""
        return self.answer.allowed

    @property
    def retry_after(self) -> float | None:
        """Seconds until it would be admitted; 0 if it was; None if it can never fit."""
        return self.answer.retry_after

    def settle(self, actual: int | None = None, /, **units: int) -> None:
        """Say what the request has cost: a number, or numbers by unit. A unit that is not named costs what was reserved."""
        self._actual |= self._checked("actual", actual, units)

    def add(self, amount: int | None = None, /, **units: int) -> None:
        """Add to what the request has cost so far, as in a stream: the sum is its actual cost."""
        with self._lock:
            for unit, number in self._checked("amount", amount, units).items():
                self._added[unit] = self._added.get(unit, 0) + number

    def end(self, why: str) -> None:
        """Take note that nothing can be said of its cost any more, and why."""
        with self._lock:
            self._settled_by = why

    def fail(self) -> None:
        """Take note that the request has raised an exception: what was reserved returns, unless something was noted."""
        self._has_failed = True

    def actual(self) -> CostGiven | None:
        """Return the cost that the service has to be told; None if what was reserved stays, and no slot is held."""
        noted = self._added | self._actual
        if not noted and not self._has_failed and self.answer.slot is None and self.answer.degraded is None:
            return None
        costs = self._units | (dict.fromkeys(self._units, 0) if self._has_failed and not noted else noted)
        return costs if isinstance(self.estimate, Mapping) else costs[REQUESTS]

    @property
    def _units(self) -> dict[str, int]:
        return dict(self.estimate) if isinstance(self.estimate, Mapping) else {REQUESTS: self.estimate}

    def _checked(self, name: str, number: int | None, units: Mapping[str, int]) -> dict[str, int]:
        known, given = list(self._units), dict(units)
        if self._settled_by:
            raise ConfigurationError(f"{name} {units or number!r} cannot be taken note of: {self._settled_by}")
        if number is not None:
            others = [unit for unit in known if unit != REQUESTS] or known
            if len(others) > 1:
                raise ConfigurationError(f"{name} {number!r} says no unit, and the plan counts {', '.join(known)}")
            given[others[0]] = number
        for unit, value in given.items():
            if unit not in known and self.answer.degraded is None:
                raise ConfigurationError(f"unit {unit!r} of {name} is unknown: the plan counts {', '.join(known)}")
            if type(value) is not int or not 0 <= value <= MOST_REQUESTS:
                raise ConfigurationError(f"{name} {value!r} of {unit} is not a whole number between 0 and {MOST_REQUESTS}")
        return given


def own_id(body: Mapping[str, Any]) -> str:
    """Return the id of a reservation that was not answered: it says what was asked, so that it can be settled."""
    kept = {name: value for name, value in body.items() if name in _PLACE}
    return _OWN + base64.urlsafe_b64encode(json.dumps(kept).encode()).decode().rstrip("=")


def commit_of(reservation: str, actual: CostGiven) -> dict[str, Any]:
    """Return the body of a commit. Raises ConfigurationError if the id is none."""
    if not isinstance(reservation, str) or not reservation:
        raise ConfigurationError(f"id {reservation!r} of a reservation is not a text")
    if not reservation.startswith(_OWN):
        return {"id": reservation, "actual": actual}
    text = reservation.removeprefix(_OWN)
    try:
        return {**json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))), "actual": actual}
    except ValueError:
        raise ConfigurationError(f"id {reservation!r} is not that of a reservation") from None


def result_of(answer: Answer, now: float) -> RateLimitResult:
    """Return a refusal as the result that RateLimitExceeded has, so that every front can answer with it."""
    reset_us = max(round((answer.reset_at - now) * 1_000_000), 1)
    wait = answer.retry_after
    name = answer.rule.rpartition("/")[2] or "reservation"
    limit = Limit(max(answer.limit, 1), max(reset_us / 1_000_000, 1), name=name)
    retry_us = -1 if wait is None else round(wait * 1_000_000)
    return RateLimitResult((limit,), (0, answer.limit, answer.limit - answer.remaining, 0, retry_us, reset_us), now)
