"""Counting in this process while the store is away: a share of each limit, so that all processes together keep it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ratekit.core import clock
from ratekit.core.compiled import plan_of
from ratekit.core.figures import ADMITS, BANNED, FIGURES, OVERRIDDEN, REPEATED, UNLIMITED
from ratekit.core.limits import MOST_REQUESTS, Algorithm, Limit
from ratekit.core.protocol import Call, Cost, Operation, only, without_overrides
from ratekit.limiter.refusal_cache import aged

if TYPE_CHECKING:
    from ratekit.stores.memory import MemoryStore

MOST_SUBJECTS = 10_000  # that are remembered; and four keys for each, in the embedded store
_OWED = b"owed:"
_BLOCKED = (0, 0, 0, 0, -1, 0)
# What is reserved here is not owed: its settle says what it has cost.
_SPENDING = {Operation.CHECK, Operation.CHARGE, Operation.ACQUIRE, Operation.TAKE, Operation.SETTLE}
_JUDGED = {Operation.CHECK, Operation.PEEK, Operation.ACQUIRE, Operation.TAKE, Operation.RESERVE}  # what a ban refuses


@dataclass(slots=True)
class Seen:
    """What the store has answered last about a subject, and whether the local state follows it yet."""

    figures: Sequence[int]
    at_us: int
    is_followed: bool = False

    def of(self, index: int) -> Sequence[int]:
        """Return the figures of one limit."""
        return self.figures[index * FIGURES : (index + 1) * FIGURES]

    def ban(self, call: Call) -> Sequence[int] | None:
        """Return the answer to a call of a subject that an override refuses until some time, as long as it does."""
        age_us = clock.now_us() - self.at_us
        size = len(call.compiled.limits)
        bans = [self.of(at)[4] for at in range(size) if self.of(at)[0] & BANNED and not call.compiled.limits[at].shadow]
        return aged(self.figures[: size * FIGURES], age_us) if max(bans, default=0) > age_us else None


class LocalFallback:
    """Decides calls by an embedded store of its own, with each maximum divided by the number of instances.

    What the store answers while it is there is remembered, so that who is exhausted stays so when it goes. What is admitted
    here is owed to the store, as long as it matters: in the windows of the limits themselves. A call that was sent and not
    answered is not owed: the store may have charged it.
    """

    def __init__(self, instances: int, most: int = MOST_SUBJECTS) -> None:
        self._instances = instances
        self._most = most
        self._store = _embedded_store()  # now: in the middle of an outage it would take as long as the deadline
        self._lock = threading.RLock()  # what is read here and what is written go together
        self._seen: dict[tuple[bytes, ...], Seen] = {}
        self._owing: dict[tuple[bytes, ...], Call] = {}
        self._settles: dict[bytes, Call] = {}  # by the key of the record

    @property
    def owes(self) -> bool:
        """Whether something was admitted or settled here that the store does not know of."""
        return bool(self._owing or self._settles)

    def learn(self, call: Call, figures: Sequence[int]) -> None:
        """Take note of an answer of the store."""
        seen = self._seen
        seen.pop(call.keys, None)  # so that the one that was not seen for longest comes first
        seen[call.keys] = Seen(figures, clock.now_us())
        if len(seen) > self._most:
            with suppress(KeyError, RuntimeError):  # another thread was faster
                del seen[next(iter(seen))]

    def run(self, call: Call, *, is_in_doubt: bool = False) -> Sequence[int]:
        """Decide one call by this process's share; no figures if there is no room for another subject: it passes.

        is_in_doubt says that the store may have decided the call.
        """
        with self._lock:
            figures = self._run(call)
            if not is_in_doubt and call.operation in _SPENDING and figures and not figures[0] & REPEATED:
                self._owe(self._store, self._as_spent(call, figures), figures)
            return figures

    def _run(self, call: Call) -> Sequence[int]:
        store, seen = self._store, self._seen.get(call.keys)
        if seen is not None and _is_blocked(call, seen):
            return _BLOCKED * len(call.compiled.limits)
        if seen is not None and call.operation in _JUDGED and (banned := seen.ban(call)) is not None:
            return banned
        local = without_overrides(call, self._shares(call, seen))
        if seen is not None and not seen.is_followed:
            self._follow(store, call, local, seen)
        elif len(store) >= 4 * self._most and not store.execute("EXISTS", local.keys[0].decode()):
            return ()
        figures: Sequence[int] = store.run(local)
        return figures

    def _as_spent(self, call: Call, figures: Sequence[int]) -> Call:
        """Return a call with what it has spent here: of a take what was taken, of a settle what is beyond its estimate.

        The store is told of the rest of a settle too, by its id: so the same settle, sent again, changes nothing there.
        """
        taken = figures[FIGURES * len(call.compiled.limits) :]  # nothing of a subject that is blocked
        if taken:
            return call._replace(cost=taken[0] if isinstance(call.cost, int) else tuple(taken))
        if call.operation != Operation.SETTLE or call.extra is None:
            return call
        within, beyond = _parted(call.cost, call.extra.known)
        if len(self._settles) < self._most:
            self._settles[call.all_keys[0]] = call._replace(cost=within)
        return call._replace(cost=beyond)

    def debts(self) -> list[Call]:
        """Return the calls that tell the store what was admitted and settled here and still matters; each one once."""
        with self._lock:
            owing, self._owing = self._owing, {}
            settles, self._settles = self._settles, {}
            return [*settles.values(), *(debt for call in owing.values() for debt in self._debts_of(call))]

    def _debts_of(self, call: Call) -> list[Call]:
        owed = self._owed(call, Operation.PEEK)._replace(cost=0)
        (figures,) = self._store.run_many([owed])
        self._store.run_many([owed._replace(operation=Operation.RESET, cost=0)])
        limits = call.compiled.limits
        used = [0 if isinstance(figures, str) else _used(figures, index) for index in range(len(limits))]
        return [_charge(call, index, limits[index], cost) for index, cost in enumerate(used) if cost > 0]

    def _owe(self, store: MemoryStore, call: Call, figures: Sequence[int]) -> None:
        """Take note of what was spent, if no enforced limit refuses. A shadow that would refuse has spent nothing."""
        all_flags = figures[: FIGURES * len(call.compiled.limits) : FIGURES]
        spent = [index for index, flags in enumerate(all_flags) if flags & ADMITS]
        if not spent or any(not limit.shadow and index not in spent for index, limit in enumerate(call.compiled.limits)):
            return
        if call.keys in self._owing or len(self._owing) < self._most:
            self._owing[call.keys] = call
            store.run_many([only(self._owed(call, Operation.CHARGE), spent, Operation.CHARGE)])

    def _owed(self, call: Call, operation: Operation) -> Call:
        """Return the same call on counters that hold nothing else, with the limits of the store: they fade as its own do."""
        owed = without_overrides(call)
        return owed._replace(keys=tuple(_OWED + key for key in owed.keys), operation=operation, slot=None, extra=None)

    def _shares(self, call: Call, seen: Seen | None) -> tuple[Limit, ...]:
        if seen is None:
            return tuple(part_of(limit, limit.max_requests, self._instances) for limit in call.compiled.limits)
        return tuple(self._share(limit, seen.of(index)) for index, limit in enumerate(call.compiled.limits))

    def _share(self, limit: Limit, figures: Sequence[int]) -> Limit:
        """Return a limit's share. An override lives in the store; what it made of the limit was in the last answer."""
        flags, most = figures[:2]
        if flags & UNLIMITED:
            return replace(limit, max_requests=MOST_REQUESTS, burst=None if limit.burst is None else MOST_REQUESTS)
        overridden = flags & OVERRIDDEN and limit.algorithm is not Algorithm.TOKEN_BUCKET
        return part_of(limit, most if overridden else limit.max_requests, self._instances)

    def _follow(self, store: MemoryStore, call: Call, local: Call, seen: Seen) -> None:
        """Put the local state where the store's was: the same part of it used, rounded up, for as long."""
        seen.is_followed = True
        store.run_many([local._replace(operation=Operation.RESET, cost=0, slot=None, extra=None)])
        for index, limit in enumerate(local.compiled.limits):
            used, reset_us = _used(seen.figures, index), seen.figures[index * FIGURES + 5]
            if used > 0:
                charge = _charge(local, index, limit, -(-used // self._instances))
                store.run_many([charge], at_us=_opened_at(limit, seen.at_us, reset_us))


def _parted(costs: Cost, known: Cost) -> tuple[Cost, Cost]:
    """Return what a request has cost within what the store is known to have reserved, and what beyond."""
    if isinstance(costs, int):
        reserved = known if isinstance(known, int) else known[0]
        return min(costs, reserved), max(costs - reserved, 0)
    all_known = (known,) * len(costs) if isinstance(known, int) else known
    within = tuple(map(min, costs, all_known))
    return within, tuple(cost - own for cost, own in zip(costs, within, strict=True))


def _is_blocked(call: Call, seen: Seen) -> bool:
    """Whether an override has made the maximum of an enforced limit 0. A shadow refuses nobody."""
    return any(seen.of(index)[1] == 0 for index, limit in enumerate(call.compiled.limits) if not limit.shadow)


def _embedded_store() -> MemoryStore:
    from ratekit.stores.memory import MemoryStore

    return MemoryStore(for_one=False)


def _charge(call: Call, index: int, limit: Limit, cost: int) -> Call:
    """Make the call that charges one limit of another call, by its position, whatever the maximum."""
    return Call(plan_of(call.compiled.policy, (limit,)), (call.state_keys[index],), Operation.CHARGE, cost)


def _used(figures: Sequence[int], index: int) -> int:
    """Return what is used of a limit, rounded up: what is left is rounded down, as is what is used."""
    _, most, used, remaining, *_ = figures[index * FIGURES : (index + 1) * FIGURES]
    return max(used, most - remaining)


def _opened_at(limit: Limit, at_us: int, reset_us: int) -> int:
    """Return when a window that ends after so long was opened; other algorithms count from when they were seen."""
    if limit.algorithm is not Algorithm.FIXED_WINDOW or limit.aligned or limit.calendar is not None:
        return at_us
    return min(at_us, at_us + reset_us - limit.window_us)


@lru_cache(maxsize=1024)
def part_of(limit: Limit, max_requests: int, instances: int) -> Limit:
    """Return one process's share of a limit with some maximum."""
    burst = None if limit.burst is None else max(1, limit.burst // instances)
    share = min(max_requests, max(1, max_requests // instances))  # 0 blocks, here too
    return replace(limit, max_requests=share, burst=burst if share else None, _blocking=share == 0)
