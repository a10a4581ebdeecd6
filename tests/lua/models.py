"""What the algorithms should answer, in exact arithmetic: a model of each, for one subject of one limit, and of a policy.

Written from the words of the design, to be compared with lua/ratekit.lua. Times are whole microseconds. No wait is computed
by a formula here: it is searched for, as the first instant at which the request would fit.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ratekit import Algorithm, Limit

HALF = Fraction(1, 2)
SECOND_US = 1_000_000
MILLISECOND_US = 1_000
CENTURY_US = 100 * 31_557_600 * SECOND_US  # no wait is longer, and no key is kept for longer


def rounding_error(value: Fraction) -> Fraction:
    """How far off floating point may be where a value was computed in some steps."""
    return Fraction(1, 10**14) * (1000 + abs(value))


@dataclass(frozen=True)
class Numbers:
    """The numbers of a limit that count for a request: its own, or an override's."""

    max_requests: int
    capacity: int
    window_us: int
    aligned: bool = False
    overridden: bool = False
    unlimited: bool = False


@dataclass
class Model:
    """The state of one subject. `used`, `slack` and `reset_us` look; `add` and `take_back` change what is used."""

    expires_us: Fraction | None = field(default=None, init=False)  # when the store forgets it

    def used(self, now_us: int, numbers: Numbers) -> Fraction:
        raise NotImplementedError

    def slack(self, now_us: int, numbers: Numbers) -> Fraction:
        """What fades in half a microsecond counts as gone: at most half a request."""
        return Fraction(0)

    def refundable(self, now_us: int, numbers: Numbers) -> Fraction:
        """How much can be given back."""
        return self.used(now_us, numbers)

    def reset_us(self, now_us: int, numbers: Numbers) -> Fraction:
        raise NotImplementedError

    def add(self, now_us: int, numbers: Numbers, amount: int) -> None:
        raise NotImplementedError

    def take_back(self, now_us: int, numbers: Numbers, amount: Fraction) -> None:
        raise NotImplementedError

    def forgotten(self, now_us: int, numbers: Numbers) -> Model:
        """Return what is left after a reset."""
        return type(self)()

    def fits(self, now_us: int, numbers: Numbers, cost: int) -> bool:
        return self.used(now_us, numbers) + cost <= numbers.capacity + self.slack(now_us, numbers)

    def wait_us(self, now_us: int, numbers: Numbers, cost: int) -> int:
        """How long until a cost fits that does not fit now, if nothing else is spent."""
        most = 1
        while not self.fits(now_us + most, numbers, cost):
            most *= 2
        return bisect_left(range(most + 1), True, key=lambda wait_us: self.fits(now_us + wait_us, numbers, cost))

    def is_close_call(self, now_us: int, numbers: Numbers, cost: int) -> bool:
        """Whether a rounding error of the size that floating point makes would decide otherwise."""
        slack = self.slack(now_us, numbers)
        distance = abs(self.used(now_us, numbers) + cost - numbers.capacity - slack)
        return slack > 0 and distance < rounding_error(self.used(now_us, numbers) + cost)


@dataclass
class FixedWindow(Model):
    """Counts in a window that the first spent request opens, and that keeps its end."""

    count: int = 0
    end_us: int = 0

    def used(self, now_us, numbers):
        return Fraction(self.count if now_us < self.end_us else 0)

    def reset_us(self, now_us, numbers):
        return Fraction(max(self.end_us - now_us, 0))

    def add(self, now_us, numbers, amount):
        if now_us >= self.end_us:
            start_us = now_us - now_us % numbers.window_us if numbers.aligned else now_us
            self.count, self.end_us = 0, start_us + numbers.window_us
        self.count += amount

    def take_back(self, now_us, numbers, amount):
        self.count -= int(amount)

    def forgotten(self, now_us, numbers):
        """A window on the clock goes on, with another end, by which nothing returns that was reserved before."""
        is_kept = numbers.aligned and now_us + 1 < self.end_us <= now_us + numbers.window_us
        return FixedWindow(0, self.end_us - 1) if is_kept else FixedWindow()


@dataclass(frozen=True)
class Grid:
    """The window that runs, and what was counted in the one before."""

    start_us: int
    length_us: int
    current: int = 0
    previous: Fraction = Fraction(0)

    @property
    def end_us(self) -> int:
        return self.start_us + self.length_us


@dataclass
class SlidingWindowCounter(Model):
    """Counts in windows one after the other, of which the previous one fades out, but for one request of it."""

    grid: Grid | None = None
    uncounted: int = 1  # how much of the previous window does not count

    def at(self, now_us: int, numbers: Numbers) -> Grid:
        """The window of an instant. A new one is settled, with its length, only when something is spent."""
        if self.grid and now_us < self.grid.end_us:
            return self.grid
        if self.grid and now_us < self.grid.end_us + numbers.window_us:
            return Grid(self.grid.end_us, numbers.window_us, previous=Fraction(self.grid.current))
        return Grid(now_us, numbers.window_us)

    def used(self, now_us, numbers):
        return self.at(now_us, numbers).current + max(self._faded(now_us, numbers) - self.uncounted, Fraction(0))

    def refundable(self, now_us, numbers):
        return self.at(now_us, numbers).current + self._faded(now_us, numbers)

    def _faded(self, now_us: int, numbers: Numbers) -> Fraction:
        grid = self.at(now_us, numbers)
        return grid.previous * (grid.end_us - now_us) / grid.length_us

    def slack(self, now_us, numbers):
        grid = self.at(now_us, numbers)
        return min(HALF * grid.previous / grid.length_us, HALF)

    def reset_us(self, now_us, numbers):
        grid = self.at(now_us, numbers)
        return Fraction(grid.end_us - now_us if grid.current or grid.previous else 0)

    def add(self, now_us, numbers, amount):
        grid = self.at(now_us, numbers)
        self._store(replace(grid, current=grid.current + amount))

    def take_back(self, now_us, numbers, amount):
        """What is given back comes off the current window first."""
        grid = self.at(now_us, numbers)
        rest = max(amount - grid.current, Fraction(0))
        faded = Fraction(grid.end_us - now_us, grid.length_us)
        self._store(replace(grid, current=max(grid.current - int(amount), 0), previous=grid.previous - rest / faded))

    def _store(self, grid: Grid) -> None:
        self.grid, self.expires_us = grid, Fraction(grid.end_us + grid.length_us + SECOND_US)


@dataclass
class SlidingWindowLog(Model):
    """Keeps each request with its cost, until it is a window old."""

    entries: list[tuple[int, int]] = field(default_factory=list)  # time and cost

    def live(self, now_us: int, numbers: Numbers) -> list[tuple[int, int]]:
        return [(at_us, cost) for at_us, cost in self.entries if now_us < at_us + numbers.window_us]

    def used(self, now_us, numbers):
        return Fraction(sum(cost for _, cost in self.live(now_us, numbers)))

    def reset_us(self, now_us, numbers):
        live = self.live(now_us, numbers)
        return Fraction(live[0][0] + numbers.window_us - now_us if live else 0)

    def add(self, now_us, numbers, amount):
        self.entries = [*self.live(now_us, numbers), (now_us, amount)]
        self._keep(now_us, numbers)

    def take_back(self, now_us, numbers, amount):
        """What is given back comes off the newest entries."""
        while amount > 0:
            at_us, cost = self.entries.pop()
            if cost > amount:
                self.entries.append((at_us, cost - int(amount)))
            amount -= cost
        self._keep(now_us, numbers)

    def _keep(self, now_us: int, numbers: Numbers) -> None:
        self.expires_us = Fraction(now_us + numbers.window_us + SECOND_US)


@dataclass
class TokenBucket(Model):
    """Drains what is used at max_requests per window, from the last change on at the rate of today."""

    level: Fraction = Fraction(0)
    at_us: int = 0

    def used(self, now_us, numbers):
        drained = Fraction((now_us - self.at_us) * numbers.max_requests, numbers.window_us)
        return max(self.level - drained, Fraction(0))

    def slack(self, now_us, numbers):
        return min(HALF * numbers.max_requests / numbers.window_us, HALF)

    def reset_us(self, now_us, numbers):
        if not numbers.max_requests:
            return Fraction(0)
        return self.used(now_us, numbers) * numbers.window_us / numbers.max_requests

    def add(self, now_us, numbers, amount):
        self.level, self.at_us = self.used(now_us, numbers) + amount, now_us
        self._keep(now_us, numbers)

    def take_back(self, now_us, numbers, amount):
        self.level, self.at_us = self.used(now_us, numbers) - amount, now_us
        self._keep(now_us, numbers)

    def _keep(self, now_us: int, numbers: Numbers) -> None:
        """A bucket that does not drain, as nothing is allowed, is kept for a window."""
        drains_us = self.reset_us(now_us, numbers) if numbers.max_requests else numbers.window_us
        self.expires_us = Fraction(now_us + min(drains_us, CENTURY_US) + SECOND_US)


@dataclass
class Concurrency(Model):
    """Holds slots by id, each until it is released or a window has passed."""

    slots: dict[str, int] = field(default_factory=dict)  # when each is free again

    def holds(self, now_us: int, slot: str | None) -> bool:
        return self.slots.get(slot or "", now_us) > now_us

    def used(self, now_us, numbers):
        return Fraction(sum(end_us > now_us for end_us in self.slots.values()))

    def reset_us(self, now_us, numbers):
        waits = [end_us - now_us for end_us in self.slots.values() if end_us > now_us]
        return Fraction(min(*waits, numbers.window_us) if waits else 0)

    def wait_us(self, now_us, numbers, cost):
        later = copy.deepcopy(self)
        later.clamp(now_us, numbers)
        return super(Concurrency, later).wait_us(now_us, numbers, cost)

    def clamp(self, now_us: int, numbers: Numbers) -> None:
        """No slot ends further ahead than the window allows; only a shorter one, or a clock set back, makes a difference."""
        self.slots = {slot: min(end_us, now_us + numbers.window_us) for slot, end_us in self.slots.items()}

    def take(self, now_us: int, numbers: Numbers, slot: str) -> None:
        self.slots[slot] = now_us + numbers.window_us

    def free(self, slot: str) -> None:
        self.slots.pop(slot, None)


MODELS: dict[Algorithm, type[Model]] = {
    Algorithm.FIXED_WINDOW: FixedWindow,
    Algorithm.SLIDING_WINDOW_COUNTER: SlidingWindowCounter,
    Algorithm.SLIDING_WINDOW_LOG: SlidingWindowLog,
    Algorithm.TOKEN_BUCKET: TokenBucket,
    Algorithm.CONCURRENCY: Concurrency,
}


@dataclass(frozen=True)
class Answer:
    """What one limit says. What is used is exact; what fades in half a microsecond, the slack, counts as gone."""

    allowed: bool
    numbers: Numbers
    used: Fraction
    slack: Fraction
    retry_us: int | None  # None: never
    reset_us: Fraction


@dataclass(frozen=True)
class Request:
    """An operation, and what it is about: a cost for all limits, or one for each policy."""

    operation: str
    cost: int | tuple[int, ...] = 1
    slot: str | None = None


@dataclass(eq=False)
class Tier:
    """A limit of a policy and what the subject has used of it."""

    limit: Limit
    part: int  # which of the policies that are decided together it belongs to
    is_first: bool  # of its policy
    model: Model
    numbers: Numbers

    def cost_of(self, request: Request) -> int:
        """What a request asks of this limit: of slots always one."""
        if isinstance(self.model, Concurrency) and request.operation != "reset":
            return 1
        return request.cost if isinstance(request.cost, int) else request.cost[self.part]

    def judge(self, now_us: int, request: Request) -> tuple[bool, int | None]:
        """Whether the limit by itself admits a request, and the wait until it would."""
        numbers, model, cost = self.numbers, self.model, self.cost_of(request)
        if numbers.unlimited or request.operation in {"charge", "refund", "release"}:
            return True, 0
        if request.operation == "renew":
            return (True, 0) if not isinstance(model, Concurrency) or model.holds(now_us, request.slot) else (False, None)
        if isinstance(model, Concurrency) and model.holds(now_us, request.slot):
            return True, 0
        if numbers.capacity == 0 or cost > numbers.capacity:
            return False, None
        if cost == 0 or model.fits(now_us, numbers, cost):
            return True, 0
        return False, min(model.wait_us(now_us, numbers, cost), CENTURY_US)

    def spend(self, now_us: int, request: Request) -> None:
        model, numbers, cost = self.model, self.numbers, self.cost_of(request)
        if isinstance(model, Concurrency):
            self._move_slot(model, now_us, request)
        elif request.operation in {"check", "acquire", "charge"} and cost:
            model.add(now_us, numbers, cost)
        elif request.operation == "refund" and (amount := min(model.refundable(now_us, numbers), Fraction(cost))):
            model.take_back(now_us, numbers, amount)

    def _move_slot(self, model: Concurrency, now_us: int, request: Request) -> None:
        held = model.holds(now_us, request.slot)
        if request.slot and (request.operation == "renew" or (request.operation == "acquire" and not held)):
            model.take(now_us, self.numbers, request.slot)
        elif request.slot and request.operation == "release":
            model.free(request.slot)

    def answer(self, now_us: int, allowed: bool, retry_us: int | None) -> Answer:
        model, numbers = self.model, self.numbers
        if numbers.unlimited:
            return Answer(allowed, numbers, Fraction(0), Fraction(0), retry_us, Fraction(0))
        figures = (look(now_us, numbers) for look in (model.used, model.slack))
        return Answer(allowed, numbers, *figures, retry_us, min(model.reset_us(now_us, numbers), Fraction(CENTURY_US)))


class PolicyModel:
    """Decides requests by several limits, all or nothing: those of one policy, or of several that are decided together.

    With forgets, state is lost when its key has expired, as in a store whose keys expire by the clock of the test.
    """

    def __init__(self, policies: Sequence[Sequence[Limit]], *, forgets: bool = True) -> None:
        self.tiers = [
            Tier(limit, part, limit is limits[0], MODELS[limit.algorithm](), own_numbers(limit))
            for part, limits in enumerate(policies)
            for limit in limits
        ]
        self.forgets = forgets
        self.is_close_call = False  # the last answer hangs on a rounding error

    def decide(self, now_us: int, request: Request, overrides: Sequence[Mapping[str, str]]) -> list[Answer]:
        """Decide a request, with an override for each policy, and say what each limit answers."""
        self._prepare(now_us, request, overrides)
        verdicts = [tier.judge(now_us, request) for tier in self.tiers]
        lapsed = self._lapsed(now_us, request)
        if lapsed is not None:
            # The same request again has spent already; it needs its slot again where that was freed.
            verdicts = [verdict if tier in lapsed else (True, 0) for tier, verdict in zip(self.tiers, verdicts, strict=True)]
        if request.operation != "peek":
            self._commit(now_us, request, verdicts, self.tiers if lapsed is None else lapsed)
        return [tier.answer(now_us, *verdict) for tier, verdict in zip(self.tiers, verdicts, strict=True)]

    def _prepare(self, now_us: int, request: Request, overrides: Sequence[Mapping[str, str]]) -> None:
        self.is_close_call = False
        for tier in self.tiers:
            tier.numbers = numbers_for(tier.limit, overrides[tier.part], is_first=tier.is_first)
            expires_us = tier.model.expires_us if self.forgets else None
            # A key's time is rounded up to milliseconds.
            self.is_close_call |= expires_us is not None and 0 <= now_us - expires_us < MILLISECOND_US
            if expires_us is not None and expires_us <= now_us:
                tier.model = MODELS[tier.limit.algorithm]()
            if request.operation == "reset":
                tier.model = tier.model.forgotten(now_us, tier.numbers)
            self.is_close_call |= tier.model.is_close_call(now_us, tier.numbers, tier.cost_of(request))

    def _lapsed(self, now_us: int, request: Request) -> list[Tier] | None:
        """The limits that have freed a slot which an enforced limit still holds; None if none holds it."""
        counting = [tier for tier in self.tiers if isinstance(tier.model, Concurrency) and not tier.numbers.unlimited]
        lapsed = [tier for tier in counting if not tier.model.holds(now_us, request.slot)]
        held = any(tier not in lapsed and not tier.limit.shadow for tier in counting)
        return lapsed if held and request.operation == "acquire" else None

    def _commit(
        self, now_us: int, request: Request, verdicts: Sequence[tuple[bool, int | None]], spending: Sequence[Tier]
    ) -> None:
        decided = list(zip(self.tiers, verdicts, strict=True))
        admitted = all(allowed or tier.limit.shadow for tier, (allowed, _) in decided)
        for tier, (allowed, _) in decided:
            if tier not in spending or tier.numbers.unlimited:
                continue
            if isinstance(tier.model, Concurrency):
                tier.model.clamp(now_us, tier.numbers)
            if admitted and allowed:
                tier.spend(now_us, request)


def own_numbers(limit: Limit) -> Numbers:
    """A limit's numbers where there is no override."""
    return Numbers(limit.max_requests, limit.capacity, limit.window_us, limit.aligned)


def numbers_for(limit: Limit, override: Mapping[str, str], *, is_first: bool) -> Numbers:
    """A limit's numbers for a subject with an override; a field that makes no sense leaves the limit's own."""
    fields = {name: text for name, text in override.items() if is_first and "." not in name}
    prefix = f"{limit.name}."
    fields |= {name.removeprefix(prefix): text for name, text in override.items() if name.startswith(prefix)}
    most = _number(fields.get("max_requests"), r"\d+", 0)
    burst = _number(fields.get("burst"), r"\d+", 1)
    expiry = _number(fields.get("expiry"), r"\d+(\.\d*)?", Fraction(1, SECOND_US))
    unlimited = _number(fields.get("unlimited"), r"[01]", 0)
    max_requests = limit.max_requests if most is None else int(most)
    return Numbers(
        max_requests=max_requests,
        capacity=_capacity(limit, max_requests, burst),
        window_us=limit.window_us if expiry is None else round(expiry * SECOND_US),
        aligned=limit.aligned,
        overridden=any(value is not None for value in (most, burst, expiry, unlimited)),
        unlimited=unlimited == 1,
    )


def _capacity(limit: Limit, max_requests: int, burst: Fraction | None) -> int:
    """A burst is a token bucket's capacity; where nothing is allowed at all, it allows nothing."""
    if limit.algorithm is not Algorithm.TOKEN_BUCKET or max_requests == 0:
        return max_requests
    return int(burst) if burst is not None else limit.burst or max_requests


def _number(text: str | None, pattern: str, least: Fraction | int) -> Fraction | None:
    if text is None or not re.fullmatch(pattern, text, re.ASCII):
        return None
    return Fraction(text) if Fraction(text) >= least else None
