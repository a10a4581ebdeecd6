"""What is particular to the store in the process: memory, threads, forks, engines."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
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
for engine in ("luajit21", "lua54", "lua55", "lua51"):
    print(_runtime(engine).eval(b"_VERSION .. (jit and ' jit' or '')").decode())
"""
    assert run_python(code) == "Lua 5.1 jit\nLua 5.4\nLua 5.5\nLua 5.1\n"


@pytest.mark.parametrize("engine", ["luajit21", "luajit20", "lua55", "lua54", "lua53", "lua52", "lua51"])
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
    from ratekit.protocol import encode

    store, other = MemoryStore(), MemoryStore()
    policy = Policy("p", [Limit(5, 60, name="a"), Limit(9, 90, name="b")])
    for _ in range(12):
        call = encode(policy, "u", cost=2)
        assert list(store.run(call)) == list(other.run_many([call])[0])


def test_calls_that_come_again_do_not_fill_the_memory():
    from ratekit.protocol import encode

    store = MemoryStore()
    for start in range(0, 20_000, 100):
        store.run_each([encode(MINUTE, f"u{number}") for number in range(start, start + 100)])
    assert 0 < len(store._tickets) <= 16_384


def test_calls_of_large_policies_leave_no_more_than_is_alive(ratekit_clock):
    from ratekit.protocol import encode

    store = MemoryStore()
    policy = Policy("p", [Limit(10, 1 + number / 100, name=f"n{number}") for number in range(20)])
    for turn in range(30):
        store.run_each([encode(policy, f"{turn}:{number}") for number in range(25)])
        ratekit_clock.advance(10)
    assert len(store) <= 2 * 25 * 20


def test_large_policies_are_decided_in_one_go_too():
    from ratekit.protocol import encode

    store = MemoryStore()
    policy = Policy("p", [Limit(10**6, 60 * number, name=f"n{number}") for number in range(1, 51)])
    calls = [encode(policy, f"u{number % 3}") for number in range(90)]
    for count in (1, 2):
        answers = store.run_each(calls)
        assert [answer[2::6] for answer in answers[-3:]] == [(30 * count,) * 50] * 3


def test_key_of_another_type_fails_its_call_alone_among_many():
    from ratekit.outage import StoreOutage
    from ratekit.protocol import encode

    store = MemoryStore()
    tiers = Policy("tiers", [Limit(5, 60, name="a"), Limit(9, 90, name="b")])
    store.execute("ZADD", "ratelimit:minute:{u1}:60s", 1, "x")
    store.execute("ZADD", "ratelimit:tiers:{u2}:b", 1, "x")
    calls = [encode(policy, f"u{number}") for policy in (MINUTE, tiers) for number in range(4)]
    for count in (1, 2):
        answers = store.run_each(calls)
        assert [at for at, answer in enumerate(answers) if isinstance(answer, StoreOutage)] == [1, 6]
        assert {answer.outage.reason for answer in (answers[1], answers[6])} == {"wrongtype"}
        assert [answers[at][2::6] for at in (0, 2, 3)] == [(count,)] * 3
        assert [answers[at][2::6] for at in (4, 5, 7)] == [(count, count)] * 3


def test_forked_process_is_warned_where_many_are_decided_in_one_go():
    code = """
import os, warnings
from ratekit import Limit, Policy
from ratekit.protocol import encode
from ratekit.stores.memory import MemoryStore
store, policy = MemoryStore(), Policy("p", Limit(50, 60))
calls = [encode(policy, "u")] * 5
store.run_each(calls)
if os.fork() == 0:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        counts = [answer[2] for _ in range(2) for answer in store.run_each(calls)]
    print(counts, len(caught), caught[0].category.__name__, flush=True)
    os._exit(0)
os.wait()
print([answer[2] for answer in store.run_each(calls)])
"""
    assert run_python(code) == "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] 1 SeveralProcessesWarning\n[6, 7, 8, 9, 10]\n"


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
    from ratekit.protocol import _names

    before = _names.cache_info().currsize
    limiter = RateLimiter(MemoryStore())
    for number in range(20):
        limiter.check(MINUTE, f"{number}" * 10_000)
    assert _names.cache_info().currsize == before


def test_clock_set_back_on_a_long_log_does_not_freeze(ratekit_clock):
    limiter = RateLimiter(MemoryStore())
    policy = Policy("p", Limit(20_000, 3600, algorithm="sliding_window_log"))
    for _ in range(20_000):
        limiter.check(policy, "u", overrides=False)
        ratekit_clock.advance(0.0001)
    ratekit_clock.advance(-600)
    start = time.monotonic()
    assert limiter.check(policy, "u").is_over_limit
    assert time.monotonic() - start < 2


def test_batch_may_be_as_large_as_it_likes():
    from ratekit.protocol import encode

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
