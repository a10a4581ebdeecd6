"""What is particular to the store in the process: memory, threads, forks, engines."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings

import pytest

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter
from ratekit.stores.memory import MemoryStore, SeveralProcessesWarning, shared

MINUTE = Policy("minute", Limit(5, 60))
ALGORITHMS = ["fixed_window", "sliding_window_counter", "sliding_window_log", "token_bucket"]


def run_python(code: str, **environment: str) -> str:
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    return finished.stdout + finished.stderr


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_subjects_that_came_once_do_not_stay(ratekit_clock, algorithm):
    store = MemoryStore()
    limiter = RateLimiter(store)
    policy = Policy("p", Limit(5, 1, algorithm=algorithm))
    most = 0
    for number in range(60_000):
        limiter.check(policy, f"user:{number}", overrides=False)
        ratekit_clock.advance(0.001)
        most = max(most, len(store)) if number % 500 == 0 else most
    assert most < 8_000


def test_a_million_subjects_that_came_once_do_not_stay(ratekit_clock):
    store = MemoryStore()
    limiter = RateLimiter(store)
    policy = Policy("p", Limit(5, 60))
    for number in range(1_000_000):
        limiter.check(policy, f"user:{number}", overrides=False)
        if number % 100 == 0:
            ratekit_clock.advance(0.1)
    assert len(store) < 70_000
    ratekit_clock.advance(3600)
    for _ in range(10_000):
        limiter.check(policy, "user:again", overrides=False)
    assert len(store) < 5


@pytest.mark.parametrize("jump", [-86400, 5, 86400 * 400])
def test_keys_are_dropped_after_the_clock_has_jumped(ratekit_clock, jump):
    store = MemoryStore()
    limiter = RateLimiter(store)
    for number in range(2000):
        limiter.check(MINUTE, f"user:{number}")
    ratekit_clock.advance(jump)
    for number in range(2000):
        limiter.check(MINUTE, f"other:{number}")
    ratekit_clock.advance(200)
    for _ in range(1000):
        limiter.check(MINUTE, "last")
    assert len(store) <= (1 if jump > 0 else 2001)


def test_key_in_use_is_not_dropped(ratekit_clock):
    limiter = RateLimiter(MemoryStore())
    policy = Policy("p", Limit(10**6, 10, burst=10**6))
    for number in range(1, 2000):
        ratekit_clock.advance(0.00001)
        assert limiter.check(policy, "u", cost=1000).allowed == (number * 999 + 1 <= 10**6)
        limiter.check(MINUTE, f"other:{number}")


def test_threads_admit_exactly_the_maximum():
    limiter = RateLimiter(MemoryStore())
    policy = Policy("p", [Limit(1000, 3600, name="a"), Limit(2000, 7200, name="b", algorithm="sliding_window_log")])
    admitted = []

    def work() -> None:
        admitted.append(sum(limiter.check(policy, "u").allowed for _ in range(400)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 1000


async def test_async_checks_do_not_give_up_the_loop():
    limiter = AsyncRateLimiter(MemoryStore())
    switched = []
    asyncio.get_running_loop().call_soon(switched.append, True)
    for _ in range(50):
        await limiter.check(MINUTE, "u")
    assert switched == []


def test_same_url_is_the_same_state_and_another_name_another():
    shared("").clear()
    one, same, other = RateLimiter("memory://"), RateLimiter(), RateLimiter("memory://other")
    assert one.check(MINUTE, "same-url").request_count == 1
    assert same.check(MINUTE, "same-url").request_count == 2
    assert other.check(MINUTE, "same-url").request_count == 1


def test_default_store_is_the_one_the_environment_names(monkeypatch, redis_server):
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", redis_server.url)
    with RateLimiter(deadline=5) as limiter:
        assert limiter.check(MINUTE, "u").allowed
    with redis_server.client() as client:
        assert client.keys() == [b"ratelimit:minute:{u}:60s"]


def test_many_policies_made_on_the_fly_do_not_pile_up():
    store = MemoryStore()
    limiter = RateLimiter(store)
    for number in range(1, 3000):
        result = limiter.check(Policy("p", Limit(number, 60)), "u")
        assert result.max_requests == number
    assert len(store._prepared) <= 1024


def test_several_workers_are_warned_of_with_the_number(monkeypatch):
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    with pytest.warns(SeveralProcessesWarning, match="4 workers.*4 times each limit.*RATE_LIMIT_STORE_URL"):
        MemoryStore()


def test_forked_process_is_warned_counts_for_itself_and_does_not_hang():
    code = """
import os, warnings
from ratekit import Limit, Policy, RateLimiter
limiter, policy = RateLimiter("memory://"), Policy("p", Limit(5, 60))
limiter.check(policy, "u")
if os.fork() == 0:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        counts = [limiter.check(policy, "u").request_count for _ in range(2)]
    print(counts, len(caught), caught[0].category.__name__, flush=True)
    os._exit(0)
os.wait()
print(limiter.check(policy, "u").request_count)
"""
    assert run_python(code) == "[1, 2] 1 SeveralProcessesWarning\n2\n"


def test_engine_is_luajit_even_if_another_package_has_loaded_a_lua_for_all():
    """fakeredis loads Lua 5.1 with its symbols visible to every library that is loaded later."""
    code = """
import fakeredis
from ratekit.stores.memory import _runtime
for engine in ("luajit21", "lua54", "lua53", "lua51"):
    print(_runtime(engine).eval(b"_VERSION .. (jit and ' jit' or '')").decode())
"""
    assert run_python(code) == "Lua 5.1 jit\nLua 5.4\nLua 5.3\nLua 5.1\n"


NEW_ENGINES = [name for name in ("lua55",) if importlib.util.find_spec(f"lupa.{name}")]  # older versions of lupa have none


@pytest.mark.parametrize("engine", [*NEW_ENGINES, "luajit21", "luajit20", "lua54", "lua53", "lua52", "lua51"])
def test_every_engine_gives_the_same_answers(ratekit_clock, engine):
    def answers(store: MemoryStore) -> list[list[int]]:
        limiter = RateLimiter(store)
        policy = Policy("p", [Limit(7, 10, algorithm=name, name=name.replace("_", "-")) for name in ALGORITHMS])
        figures = []
        for step in range(40):
            figures.append(list(limiter.check(policy, "u", cost=step % 3).figures))
            ratekit_clock.advance(0.37)
        return figures

    start = ratekit_clock.now
    expected = answers(MemoryStore("luajit21"))
    ratekit_clock.set(start)
    assert answers(MemoryStore(engine)) == expected


def test_engine_that_is_not_there_is_refused():
    with pytest.raises(ConfigurationError, match="lupa with lua99"):
        MemoryStore("lua99")


def test_prepared_and_packed_calls_give_the_same_answers(ratekit_clock):
    from ratekit.core.protocol import encode

    store, other = MemoryStore(), MemoryStore()
    policy = Policy("p", [Limit(5, 60, name="a"), Limit(9, 90, name="b")])
    for _ in range(12):
        call = encode(policy, "u", cost=2)
        assert list(store.run(call)) == list(other.run_many([call])[0])


def test_no_warning_in_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RateLimiter(MemoryStore()).check(MINUTE, "u")


def test_slots_that_come_and_go_leave_nothing_behind():
    """Each time, the key is dropped and made anew: it must not be noted again for the day that it expires."""
    limiter = RateLimiter(store := MemoryStore())
    policy = Policy("p", Limit(1, 86400, algorithm="concurrency"))
    sizes = []
    for number in range(40_001):
        limiter.acquire(policy, "u", "a")
        limiter.release(policy, "u", "a")
        if number % 20_000 == 0:
            store._collect()
            sizes.append(store._collect())
    assert len(store) == 0
    assert sizes[2] - sizes[1] < 100


def test_key_of_another_type_is_an_outage_of_its_request():
    store = MemoryStore()
    store.execute("ZADD", "ratelimit:minute:{u}:60s", 1, "x")
    result = RateLimiter(store).check(MINUTE, "u")
    assert (result.allowed, result.degraded) == (True, "wrongtype")
    assert RateLimiter(store).peek(MINUTE, "u").degraded == "wrongtype"


def test_long_subjects_are_not_kept_in_memory():
    """Subjects of 20 MB in all, of which the store keeps a hash each."""
    limiter = RateLimiter(MemoryStore())
    limiter.check(MINUTE, "u")
    tracemalloc.start()
    try:
        for number in range(1000):
            limiter.check(MINUTE, f"{number:04}" * 5_000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000


def test_clock_set_back_on_a_long_log_does_not_freeze(ratekit_clock):
    limiter = RateLimiter(MemoryStore())
    policy = Policy("p", Limit(20_000, 3600, algorithm="sliding_window_log"))
    for _ in range(20_000):
        limiter.check(policy, "u", overrides=False)
        ratekit_clock.advance(0.0001)
    ratekit_clock.advance(-600)
    start = time.process_time()
    assert limiter.check(policy, "u").is_over_limit
    assert time.process_time() - start < 2


def test_batch_may_be_as_large_as_it_likes():
    from ratekit.core.protocol import encode

    store = MemoryStore()
    policy = Policy("p", [Limit(10**6, 60 * number, name=f"n{number}") for number in range(1, 20)])
    answers = store.run_many([encode(policy, "u") for _ in range(2000)])
    assert answers[-1][2] == 2000


def test_key_that_was_made_to_stay_is_not_swept(ratekit_clock):
    store = MemoryStore()
    store.execute("HSET", "k", "a", "1")
    store.execute("PEXPIRE", "k", 1000)
    store.execute("PERSIST", "k")
    ratekit_clock.advance(100)
    assert store.execute("EXISTS", "k") == 1
    ratekit_clock.advance(100)
    assert store.execute("EXISTS", "k") == 1


def flood(limiter: RateLimiter, policy: Policy, subjects: int) -> None:
    for number in range(subjects):
        limiter.check(policy, f"flood:{number}")


def test_counters_stay_within_the_bound_whoever_comes():
    limiter = RateLimiter(store := MemoryStore(max_counters=2000))
    for algorithm in ALGORITHMS:
        flood(limiter, Policy("p", [Limit(5, 3600, algorithm=algorithm), Limit(1, 60, name="once")]), 3000)
        assert 1900 <= len(store) <= 2000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("tiers", [1, 2, 9])
def test_exhausted_subject_stays_refused_when_others_flood_the_store(algorithm, tiers):
    """New subjects displace each other, however many there are, and not the counter of a subject that was refused."""
    limiter = RateLimiter(MemoryStore(max_counters=1000))
    policy = Policy("login", [Limit(3 * n, 3600 * n, name=f"n{n}", algorithm=algorithm) for n in range(1, tiers + 1)])
    assert [limiter.check(policy, "attacker").allowed for _ in range(4)] == [True] * 3 + [False]
    flood(limiter, MINUTE, 5000)
    flood(limiter, policy, 2000)
    assert not limiter.check(policy, "attacker").allowed


@pytest.mark.parametrize("operation", ["charge", "peek"])
def test_subject_that_another_operation_found_exhausted_stays_so_in_a_flood(operation):
    limiter = RateLimiter(MemoryStore(max_counters=1000))
    limiter.check(Policy("p", Limit(50, 3600)), "u", cost=10)
    getattr(limiter, operation)(Policy("p", Limit(10, 3600)), "u", cost=1)
    flood(limiter, MINUTE, 5000)
    assert limiter.peek(Policy("p", Limit(10, 3600)), "u").is_over_limit


def test_counter_that_has_used_more_outlives_those_that_have_used_less():
    limiter = RateLimiter(MemoryStore(max_counters=1000))
    policy = Policy("p", Limit(100, 3600))
    limiter.check(policy, "half", cost=50)
    flood(limiter, policy, 5000)
    assert limiter.peek(policy, "half").request_count == 50


def test_expired_counters_make_room_before_others(ratekit_clock):
    limiter = RateLimiter(MemoryStore(max_counters=1000))
    flood(limiter, Policy("short", Limit(1, 1)), 900)
    limiter.check(MINUTE, "known")
    ratekit_clock.advance(5)
    for number in range(890):
        limiter.check(Policy("short", Limit(1, 1)), f"later:{number}")
    assert limiter.peek(MINUTE, "known").request_count == 1


def test_bound_holds_when_every_counter_is_exhausted():
    limiter = RateLimiter(store := MemoryStore(max_counters=1000))
    flood(limiter, Policy("p", Limit(1, 3600)), 3000)
    assert len(store) <= 1000


def test_override_is_not_dropped_when_others_flood_the_store():
    limiter = RateLimiter(store := MemoryStore(max_counters=1000))
    store.execute("HSET", "ratelimit_override:minute:{u}", "max_requests", "1")
    store.execute("PEXPIRE", "ratelimit_override:minute:{u}", 3_600_000)
    flood(limiter, MINUTE, 5000)
    assert limiter.check(MINUTE, "u").max_requests == 1


def test_bound_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MEMORY_COUNTERS", "1500")
    limiter = RateLimiter(store := MemoryStore())
    flood(limiter, MINUTE, 3000)
    assert 1400 <= len(store) <= 1500


@pytest.mark.parametrize("value", ["many", "0", "-5", "1e6", "999", "٣٠٠٠"])
def test_bound_that_makes_no_sense_is_refused(monkeypatch, value):
    monkeypatch.setenv("RATE_LIMIT_MEMORY_COUNTERS", value)
    with pytest.raises(ConfigurationError, match=f"RATE_LIMIT_MEMORY_COUNTERS '{value}' is not a whole number between"):
        MemoryStore()
    with pytest.raises(ConfigurationError, match="max_counters 5 is not"):
        MemoryStore(max_counters=5)


def test_no_check_takes_long_up_to_the_bound_and_beyond():
    """Processor time of the slowest check while 280 000 subjects come: tables are never built anew in one go."""
    limiter, policy, slowest = RateLimiter(MemoryStore()), Policy("p", Limit(5, 3600)), 0.0
    gc.collect()
    gc.disable()
    try:
        for number in range(280_000):
            start = time.process_time()
            limiter.check(policy, f"user:{number}")
            slowest = max(slowest, time.process_time() - start)
    finally:
        gc.enable()
    assert slowest < 0.05
