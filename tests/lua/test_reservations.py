"""Reservations: whatever becomes of messages, the state is that of a twin that had spent the actual cost from the start.

A message may be lost, sent twice, or overtaken by another. A process may die before it settles. Where a bucket has run empty
in between, or a request has cost more than was reserved, the state may count more than the twin's, and never less.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua.engines import START, Bench, Engine, memory_bench

from ratekit import Algorithm, Limit, Policy
from ratekit.core.figures import REPEATED
from ratekit.core.protocol import Extra, Operation, encode
from ratekit.core.results import RateLimitResult

HOLD_MS = 10**9
EXACT = [Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG]
WINDOWED = [*EXACT, Algorithm.TOKEN_BUCKET]
# A cost beyond the estimate is charged late, and may open a window that the twin opens later: then both count what is spent
# from there on, and their windows end at different times.
OPENED = [Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_COUNTER]


@dataclass(frozen=True)
class Booking:
    """What one request estimates, and what it costs in the end."""

    estimate: int
    actual: int


@dataclass(frozen=True)
class Message:
    """A message about the booking of that number, so long after the one before. Without a number, others spend."""

    pause: float
    operation: str
    number: int = 0
    cost: int = 0
    is_lost: bool = False  # its answer


def send(bench: Bench, policy: Policy, operation: str, cost: int, number: int | None = None, **extra: object):
    costs = cost if policy.units == ("requests",) else {"requests": min(cost, 1), "tokens": cost}
    reservation = {} if number is None else {"slot": f"id{number}", "extra": Extra(hold_ms=HOLD_MS, **extra)}
    return bench.limiter.decide(encode(policy, bench.subject, operation=operation, cost=costs, **reservation))


def spend_at_once(bench: Bench, policy: Policy, cost: int) -> None:
    """Spend a cost. One of 0 opens a window nevertheless, as its reservation did."""
    send(bench, policy, Operation.CHARGE, cost or 1)
    if cost == 0:
        send(bench, policy, Operation.REFUND, 1)


class Pair:
    """A store that gets messages, and a twin that spends the actual cost when a request is admitted."""

    def __init__(self, engine: Engine, policy: Policy, bookings: list[Booking], messages: list[Message]) -> None:
        self.clock, self.policy = engine.clock, policy
        self.real, self.twin = engine.open(), engine.make()
        settled = {message.number for message in messages if message.operation == "settle"}
        self.bookings = [
            booking if number in settled else Booking(booking.estimate, booking.estimate)  # its process dies
            for number, booking in enumerate(bookings)
        ]
        self.known: dict[int, int] = {}
        self.spent: set[int] = set()  # by a reserve or, if it came first, by a settle
        self.done: set[int] = set()

    def deliver(self, message: Message) -> None:
        self.clock.advance(message.pause)
        getattr(self, message.operation)(message)

    def spend(self, message: Message) -> None:
        if send(self.real, self.policy, Operation.CHECK, message.cost).allowed:
            send(self.twin, self.policy, Operation.CHARGE, message.cost)

    def reserve(self, message: Message) -> None:
        number, booking = message.number, self.bookings[message.number]
        result = send(self.real, self.policy, Operation.RESERVE, booking.estimate, number)
        assert is_repeated(result) == (number in self.spent)
        if not message.is_lost and result.allowed and number not in self.done:
            self.known[number] = booking.estimate
        if result.allowed and number not in self.spent:
            self.spent.add(number)
            spend_at_once(self.twin, self.policy, booking.actual)

    def settle(self, message: Message) -> None:
        number, booking = message.number, self.bookings[message.number]
        known = self.known.get(number, 0)
        known_cost = known if self.policy.units == ("requests",) else (1 if known else 0, known)
        result = send(self.real, self.policy, Operation.SETTLE, booking.actual, number, known=known_cost)
        assert result.allowed
        assert is_repeated(result) == (number in self.done)
        self.done.add(number)
        if number not in self.spent:
            self.spent.add(number)
            send(self.twin, self.policy, Operation.CHARGE, booking.actual)

    @property
    def is_exact(self) -> bool:
        """Whether nothing was charged late: no actual cost is above its estimate."""
        return all(booking.actual <= booking.estimate for booking in self.bookings)

    def compare(self) -> None:
        for pause in (0, 0.7, 1.3, 5, 31, 3000):
            self.clock.advance(pause)
            real, twin = (send(bench, self.policy, Operation.PEEK, 0) for bench in (self.real, self.twin))
            for mine, other in zip(real.tiers, twin.tiers, strict=True):
                if self.is_exact or mine.limit.aligned or mine.limit.algorithm not in OPENED:
                    assert mine.used + (mine.limit.algorithm not in EXACT) >= other.used
                if self.is_exact and mine.limit.algorithm in EXACT:
                    assert (mine.used, mine.remaining, mine.reset_after) == (other.used, other.remaining, other.reset_after)


def is_repeated(result: RateLimitResult) -> bool:
    return bool(result.figures[0] & REPEATED)


BOOKINGS = st.lists(st.builds(Booking, st.integers(1, 9), st.integers(0, 12)), min_size=2, max_size=4)
PAUSES = st.sampled_from([0, 0, 0.25, 0.5, 1, 1.9, 2.5, 4])
OVERRIDES = st.sampled_from(
    [{}, {}, {"max_requests": "30"}, {"two.max_requests": "12", "one.expiry": "5"}, {"one.unlimited": "1"}, {"burst": "25"}]
)


def limits(algorithms: list[Algorithm], name: str) -> st.SearchStrategy[Limit]:
    """Limits of which something is left, whose windows end within a history."""

    def fields(algorithm: Algorithm) -> st.SearchStrategy[dict[str, object]]:
        aligned = st.booleans() if algorithm is Algorithm.FIXED_WINDOW else st.just(False)
        return st.fixed_dictionaries({"algorithm": st.just(algorithm), "aligned": aligned})

    options = st.sampled_from(algorithms).flatmap(fields)
    most, window = st.sampled_from([10, 15, 20, 40]), st.sampled_from([2, 3, 6])
    return st.builds(lambda most, window, options: Limit(most, window, name=name, **options), most, window, options)


def some_policies(algorithms: list[Algorithm], has_units: bool) -> st.SearchStrategy[Policy]:
    one, two = limits(algorithms, "one"), limits(algorithms, "two")
    tokens = two.map(lambda limit: replace(limit, unit="tokens")) if has_units else two
    tiers = st.tuples(one, tokens) if has_units else st.one_of(st.tuples(one), st.tuples(one, two))
    return tiers.map(lambda limits: Policy("search", limits))


def histories(most: int) -> st.SearchStrategy[list[Message]]:
    """Messages of which most settle what was reserved shortly before, and some come again, too early or never."""
    numbers = st.integers(0, most - 1)
    others = st.builds(Message, PAUSES, st.just("spend"), cost=st.integers(1, 6))
    about = st.builds(Message, PAUSES, st.sampled_from(["reserve", "settle"]), numbers, is_lost=st.booleans())
    begin = st.permutations([Message(0, "reserve", number) for number in range(most)])
    return st.tuples(begin, st.lists(st.one_of(others, about, about), min_size=3, max_size=12)).map(
        lambda parts: [*parts[0][:2], *parts[1]]
    )


@pytest.mark.parametrize("has_units", [False, True], ids=["cost", "units"])
@pytest.mark.parametrize("algorithms", [*([one] for one in WINDOWED), WINDOWED], ids=[*map(str, WINDOWED), "mixed"])
def test_state_is_that_of_a_twin_that_had_spent_the_actual_cost(engine: Engine, algorithms, has_units):
    @engine.examples(250)
    @given(some_policies(algorithms, has_units), OVERRIDES, BOOKINGS, histories(4))
    def check(policy, override, bookings, history):
        pair = Pair(engine, policy, bookings, history)
        pair.real.override(override)
        pair.twin.override(override)
        for message in history:
            if message.number < len(bookings):
                pair.deliver(message)
        pair.compare()

    check()


def test_every_short_history_of_two_reservations_spends_what_a_ledger_says(clock):
    """Every order of up to five messages about two reservations, of 3 and of 2 in a limit of 4, and of new windows."""
    policy = Policy("search", Limit(4, 60))
    costs = {1: (3, 1), 2: (2, 4)}
    steps = [("reserve", 1), ("settle", 1), ("reserve", 2), ("settle", 2), ("wait", 0)]
    bench = memory_bench()
    for length in range(1, 6):
        for history in itertools.product(steps, repeat=length):
            clock.set(START)
            bench.command("FLUSHALL")
            used, window, records, done = 0, 0, {}, set()
            for operation, number in history:
                if operation == "wait":
                    clock.advance(61)
                    used, window = 0, window + 1
                    continue
                estimate, actual = costs[number]
                if operation == "reserve":
                    result = send(bench, policy, Operation.RESERVE, estimate, number)
                    is_new = number not in records and number not in done
                    assert result.allowed == (not is_new or used + estimate <= 4)
                    if is_new and result.allowed:
                        records[number], used = window, used + estimate
                else:
                    result = send(bench, policy, Operation.SETTLE, actual, number)
                    if number not in done and number not in records:
                        used += actual
                    elif number not in done and (actual > estimate or records[number] == window):
                        used += actual - estimate
                    done.add(number)
                assert result.tiers[0].used == used, history


def test_record_of_a_reservation_has_a_time_to_live(bench: Bench):
    policy = Policy("search", [Limit(9, 60), Limit(9, 60, algorithm="token_bucket", name="bucket")])
    for number, operations in enumerate(itertools.permutations(["reserve", "settle"])):
        for operation in operations:
            send(bench, policy, operation, 3, number)
            ttl = bench.command("PTTL", f"ratelimit:search:{{{bench.subject}}}:~id{number}")
            assert 0 < ttl <= HOLD_MS


def test_refused_reserve_leaves_no_record_and_spends_nothing(bench: Bench):
    policy = Policy("search", [Limit(9, 60), Limit(2, 60, algorithm="sliding_window_log", name="log")])
    assert send(bench, policy, Operation.RESERVE, 3, 1).is_over_limit
    assert bench.command("EXISTS", f"ratelimit:search:{{{bench.subject}}}:~id1") == 0
    assert [tier.used for tier in send(bench, policy, Operation.PEEK, 0).tiers] == [0, 0]


def test_bucket_gives_back_no_more_than_another_return_has_left(bench: Bench, clock):
    """One reservation returns at once; the other must not return what drained meanwhile, nor what others have spent."""
    policy = Policy("search", Limit(10, 100, algorithm="token_bucket", burst=100))
    send(bench, policy, Operation.RESERVE, 10, 1)
    send(bench, policy, Operation.RESERVE, 10, 2)
    send(bench, policy, Operation.SETTLE, 0, 1, known=10)
    clock.advance(100)
    send(bench, policy, Operation.CHARGE, 5)
    assert send(bench, policy, Operation.SETTLE, 0, 2, known=10).tiers[0].used == 5


def test_log_gives_back_nothing_if_too_many_entries_have_come_after_it(bench: Bench, clock):
    policy = Policy("search", Limit(1000, 600, algorithm="sliding_window_log"))
    for number in (1, 2):
        send(bench, policy, Operation.RESERVE, 10, number)
        clock.advance(0.001)
    for _ in range(255):
        send(bench, policy, Operation.CHECK, 1)
        clock.advance(0.001)
    assert send(bench, policy, Operation.SETTLE, 4, 1, known=10).tiers[0].used == 275 - 6
    for _ in range(10):
        send(bench, policy, Operation.CHECK, 1)
        clock.advance(0.001)
    assert send(bench, policy, Operation.SETTLE, 4, 2, known=10).tiers[0].used == 275 - 6 + 10


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_settle_gives_nothing_back_after_the_clock_was_set_back(bench: Bench, clock, algorithm):
    policy = Policy("search", Limit(100, 60, algorithm=algorithm))
    send(bench, policy, Operation.RESERVE, 50, 1)
    clock.advance(-3600)
    used = send(bench, policy, Operation.CHECK, 20).tiers[0].used
    assert used == 70
    assert send(bench, policy, Operation.SETTLE, 0, 1, known=50).tiers[0].used >= 20


def test_reservation_holds_a_slot_until_it_is_settled(bench: Bench):
    policy = Policy("search", [Limit(9, 60), Limit(1, 60, algorithm="concurrency", name="slots")])
    assert send(bench, policy, Operation.RESERVE, 3, 1).allowed
    assert send(bench, policy, Operation.RESERVE, 3, 2).violated == ("slots",)
    assert [tier.used for tier in send(bench, policy, Operation.SETTLE, 2, 1, known=3).tiers] == [2, 0]
    assert send(bench, policy, Operation.RESERVE, 3, 2).allowed


ANY_LIMIT = [Limit(100, 60, algorithm=algorithm) for algorithm in WINDOWED]


@pytest.mark.parametrize("after", ANY_LIMIT, ids=lambda limit: str(limit.algorithm))
@pytest.mark.parametrize("before", ANY_LIMIT, ids=lambda limit: str(limit.algorithm))
def test_settle_by_another_algorithm_charges_the_excess_and_gives_nothing_back(bench: Bench, before: Limit, after: Limit):
    """The policy has changed since: what was reserved is counted where nobody looks any more."""
    for number in (1, 2):
        send(bench, Policy("search", before), Operation.RESERVE, 10, number)
    changed = Policy("search", after)
    is_same = before.algorithm is after.algorithm
    assert send(bench, changed, Operation.SETTLE, 4, 1, known=10).request_count == (14 if is_same else 0)
    assert send(bench, changed, Operation.SETTLE, 13, 2, known=10).request_count == (17 if is_same else 3)
    assert send(bench, changed, Operation.SETTLE, 13, 2, known=10).request_count == (17 if is_same else 3)


REQUESTS_LIMIT, TOKENS_LIMIT = Limit(60, 60), Limit(1000, 60, unit="tokens")


@pytest.mark.parametrize(
    ("limits", "used"),
    [
        ([REQUESTS_LIMIT, TOKENS_LIMIT, Limit(5000, 3600, unit="tokens")], [5, 804, 0]),
        ([TOKENS_LIMIT, REQUESTS_LIMIT], [804, 5]),
        ([replace(TOKENS_LIMIT, max_requests=2000), replace(REQUESTS_LIMIT, shadow=True)], [804, 0]),
    ],
    ids=["one-more", "in-another-order", "one-is-a-shadow"],
)
def test_settle_by_other_limits_gives_nothing_back_of_what_others_have_spent(bench: Bench, limits, used):
    send(bench, Policy("search", [REQUESTS_LIMIT, TOKENS_LIMIT]), Operation.RESERVE, 800, 1)
    for _ in range(4):
        send(bench, Policy("search", [REQUESTS_LIMIT, TOKENS_LIMIT]), Operation.CHECK, 1)
    changed = Policy("search", limits)
    known = (1, 800) if limits[0].unit == "requests" else (800, 1)
    assert [tier.used for tier in send(bench, changed, Operation.SETTLE, 300, 1, known=known).tiers] == used


def test_settle_by_limits_with_other_numbers_gives_back_as_before(bench: Bench):
    send(bench, Policy("search", [REQUESTS_LIMIT, TOKENS_LIMIT]), Operation.RESERVE, 800, 1)
    changed = Policy("search", [REQUESTS_LIMIT, replace(TOKENS_LIMIT, max_requests=2000)])
    assert [tier.used for tier in send(bench, changed, Operation.SETTLE, 300, 1, known=(1, 800)).tiers] == [1, 300]


def test_reserve_sent_again_by_other_limits_says_what_was_taken_of_each(bench: Bench):
    send(bench, Policy("search", Limit(100, 60)), Operation.RESERVE, 10, 1, clamps=True)
    changed = Policy("search", [REQUESTS_LIMIT, TOKENS_LIMIT])
    repeated = send(bench, changed, Operation.RESERVE, 20, 1, clamps=True)
    assert (is_repeated(repeated), repeated.taken) == (True, {"requests": 1, "tokens": 20})
