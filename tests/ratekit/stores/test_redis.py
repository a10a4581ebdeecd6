"""What is particular to servers: the script's life, clients, event loops, forks, and what counts as an outage."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import redis

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.core.limits import Algorithm
from ratekit.core.outages import classify_reply
from ratekit.core.protocol import encode, pack
from ratekit.stores import script
from ratekit.stores.redis.driver import Driver
from ratekit.stores.redis.url import parse
from support.servers import Server, free_port, start_server, stop_server, wheel_server

TEN = Policy("ten", Limit(10, 600))


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may freeze or kill."""
    server = start_server(wheel_server())
    yield server
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGCONT)
    stop_server(server)


def connection_ids(client) -> set[str]:
    return {connection["id"] for connection in client.client_list()}


def wait_for_new_connections(client, before: set[str], expected: int) -> None:
    """A server notices a closed connection a moment later; those of tests before this one may end at any time."""
    deadline = time.monotonic() + 5
    while (new := len(connection_ids(client) - before)) != expected:
        assert time.monotonic() < deadline, f"{new} new connections, not {expected}"


def test_script_is_sent_again_when_the_server_has_forgotten_it(server):
    with server.client() as client, RateLimiter(server.url, deadline=5) as limiter:
        for expected in (1, 2, 3):
            client.script_flush()
            assert limiter.check(TEN, "u").request_count == expected
        client.config_resetstat()
        limiter.check(TEN, "u")
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
        assert "cmdstat_eval" not in client.info("commandstats")


async def test_script_is_sent_again_by_the_async_store_too(server):
    async with AsyncRateLimiter(server.url, deadline=5) as limiter:
        with server.client() as client:
            for expected in (1, 2, 3):
                client.script_flush()
                assert (await limiter.check(TEN, "u")).request_count == expected


def test_script_works_with_a_shebang_that_forbids_undeclared_keys(server):
    with server.client() as client:
        if int(client.info("server")["redis_version"].split(".")[0]) < 7:
            with pytest.raises(redis.ResponseError):
                client.eval("#!lua\nreturn 1", 0)
            return
        text = b"#!lua\n" + script.read("ratekit")
        algorithms = [algorithm for algorithm in Algorithm if algorithm is not Algorithm.CONCURRENCY]
        rich = Policy("rich", [Limit(5, 60, algorithm=algorithm, name=algorithm) for algorithm in algorithms])
        keys, items = pack([encode(policy, "shebang") for policy in (rich, TEN)])
        assert client.eval(text, len(keys), *keys, *items)[::6] == [1, 1, 1, 1, 1]


def test_server_decides_by_its_own_clock(server):
    with server.client() as client, RateLimiter(server.url, deadline=5) as limiter:
        result = limiter.check(Policy("aligned", Limit(5, 86400 * 365, aligned=True)), "u")
        seconds, micros = client.time()
        expected = 86400 * 365 - (seconds + micros / 1e6) % (86400 * 365)
        assert abs(result.reset_after - expected) < 5


def test_own_connection_has_a_short_timeout_and_no_retries(redis_server):
    connection = Driver(parse(redis_server.url), 0.05, asynchronous=False).connection()
    calls = []

    def fail() -> None:
        calls.append("called")
        raise redis.ConnectionError

    with pytest.raises(redis.ConnectionError):
        connection.retry.call_with_retry(fail, lambda error: None)
    assert (connection.socket_timeout, calls) == (0.05, ["called"])


@pytest.mark.parametrize(("options", "most"), [("", 4), ("?max_connections=2", 2)])
def test_threads_share_few_connections(redis_server, options, most):
    policy, seen = Policy("p", Limit(10**6, 600)), 0
    with redis_server.client() as client, RateLimiter(f"{redis_server.socket_url}{options}", deadline=5) as limiter:
        before = connection_ids(client)
        threads = [threading.Thread(target=lambda: [limiter.check(policy, "u") for _ in range(100)]) for _ in range(16)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            seen = max(seen, len(connection_ids(client) - before))
        assert 1 <= seen <= most
        assert limiter.peek(policy, "u").request_count == 1600


def test_client_that_was_brought_is_used_as_it_is_and_left_open(redis_server):
    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    with RateLimiter(client) as limiter:
        assert limiter.check(TEN, "u").allowed
        client.set("ratelimit:ten:{u}:600s", "text")
        assert limiter.check(TEN, "u").degraded == "wrongtype"
    assert client.ping()
    client.close()


async def test_async_client_that_was_brought_is_left_open(redis_server):
    client = redis.asyncio.Redis.from_url(redis_server.url)
    async with AsyncRateLimiter(client) as limiter:
        assert (await limiter.check(TEN, "u")).allowed
    assert await client.ping()
    await client.aclose()


@pytest.mark.parametrize(("seconds", "expected"), [(0.6, 0.6), (None, 0.1)])
async def test_timeout_of_a_client_that_was_brought_is_the_deadline(own_server, seconds, expected):
    client = redis.asyncio.Redis.from_url(own_server.url, socket_timeout=seconds)
    async with AsyncRateLimiter(client, deadline=0.1) as limiter:
        assert (await limiter.check(TEN, "u")).degraded is None
        own_server.process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        assert (await limiter.check(TEN, "u")).degraded == "timeout"
        assert expected * 0.9 < time.monotonic() - started < expected + 0.4
    await client.aclose()


def test_close_leaves_no_connection(redis_server):
    with redis_server.client() as client:
        before = connection_ids(client)
        limiter = RateLimiter(redis_server.url, deadline=5)
        limiter.check(TEN, "u")
        assert len(connection_ids(client) - before) == 1
        limiter.close()
        wait_for_new_connections(client, before, 0)
        assert limiter.check(TEN, "u").request_count == 2
        limiter.close()


def test_each_event_loop_has_a_client_of_its_own_that_ends_with_it(redis_server):
    with redis_server.client() as client:
        before = connection_ids(client)
        limiter = AsyncRateLimiter(redis_server.url, deadline=5)
        counts = [asyncio.run(limiter.check(TEN, "u")).request_count for _ in range(8)]
        assert counts == [1, 2, 3, 4, 5, 6, 7, 8]
        wait_for_new_connections(client, before, 0)


def test_loops_in_several_threads_do_not_share_a_client(redis_server):
    limiter = AsyncRateLimiter(redis_server.url, deadline=5)
    admitted = []

    async def some():
        return [(await limiter.check(Policy("p", Limit(30, 600)), "u")).allowed for _ in range(10)]

    threads = [threading.Thread(target=lambda: admitted.extend(asyncio.run(some()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(admitted) == [False] * 10 + [True] * 30


def test_event_loops_of_a_process_share_four_connections(redis_server):
    """Loops beyond the third share a connection, and wait for it in threads."""
    limiter, barrier, seen = AsyncRateLimiter(redis_server.url, deadline=5), threading.Barrier(8), []
    client = redis_server.client()
    before = connection_ids(client)

    async def some():
        barrier.wait(timeout=20)
        for _ in range(20):
            assert (await limiter.check(Policy("p", Limit(10**6, 600)), "u")).degraded is None
        if barrier.wait(timeout=20) == 0:
            seen.append(len(connection_ids(client) - before))
        barrier.wait(timeout=20)

    threads = [threading.Thread(target=lambda: asyncio.run(some())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert seen == [4]
    assert asyncio.run(limiter.peek(Policy("p", Limit(10**6, 600)), "u")).request_count == 160
    asyncio.run(limiter.aclose())


def test_connection_of_a_loop_that_was_closed_without_it_is_closed_when_the_next_loop_comes(redis_server):
    limiter = AsyncRateLimiter(redis_server.url, deadline=5)
    with redis_server.client() as client:
        before = connection_ids(client)
        for expected in (1, 2, 3):
            loop = asyncio.new_event_loop()
            assert loop.run_until_complete(limiter.check(TEN, "u")).request_count == expected
            loop.close()
            wait_for_new_connections(client, before, 1)
        assert asyncio.run(limiter.check(TEN, "u")).request_count == 4
        wait_for_new_connections(client, before, 0)
    del limiter, loop
    gc.collect()


def test_limiter_made_before_a_fork_works_in_parent_and_child(redis_server):
    limiter = RateLimiter(redis_server.url, deadline=5)
    assert limiter.check(TEN, "u").request_count == 1
    context = multiprocessing.get_context("fork")
    counts = context.Queue()

    def child():
        counts.put([limiter.check(TEN, "u").allowed for _ in range(3)])

    children = [context.Process(target=child) for _ in range(2)]
    for process in children:
        process.start()
    mine = [limiter.check(TEN, "u").allowed for _ in range(3)]
    answers = [counts.get(timeout=20) for _ in children]
    for process in children:
        process.join()
    assert mine == answers[0] == answers[1] == [True] * 3
    assert limiter.peek(TEN, "u").request_count == 10
    limiter.close()


def test_async_limiter_made_before_a_fork_works_in_the_child(redis_server):
    limiter = AsyncRateLimiter(redis_server.url, deadline=5)
    runner = asyncio.Runner()
    runner.run(limiter.check(TEN, "u"))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        count = asyncio.run(limiter.check(TEN, "u")).request_count
        os.write(writer, str(count).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"2"
    os.close(reader), os.close(writer)
    assert runner.run(limiter.check(TEN, "u")).request_count == 3
    runner.run(limiter.aclose())
    runner.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(("on_outage", "admitted"), [("open", 20), ("closed", 0), ("local", 5)])
def test_server_that_is_away_is_answered_for_by_on_outage(colour, on_outage, admitted):
    url = f"redis://127.0.0.1:{free_port()}"
    options = {"on_outage": on_outage, "instances": 2}
    loop = asyncio.new_event_loop()
    limiter = RateLimiter(url, **options) if colour == "sync" else AsyncRateLimiter(url, **options)
    answers = []
    for _ in range(20):
        try:
            answer = limiter.check(TEN, "u")
            answers.append(answer if colour == "sync" else loop.run_until_complete(answer))
        except RateLimitUnavailable as error:
            assert "connection" in error.reason
    loop.close()
    assert sum(answer.allowed for answer in answers) == admitted
    assert {answer.degraded for answer in answers} <= {"connection"}
    assert all(answer.to_headers() == {} for answer in answers)


def test_nobody_looks_for_a_server_that_no_limiter_uses_any_more():
    def probing() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "ratekit-probe"}

    before = probing()
    limiter = RateLimiter(f"redis://127.0.0.1:{free_port()}")
    for _ in range(5):
        limiter.check(TEN, "u")
    assert len(probing() - before) == 1
    del limiter
    gc.collect()
    deadline = time.monotonic() + 5
    while probing() - before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_frozen_server_is_an_outage_within_the_deadline(own_server):
    with RateLimiter(own_server.url, deadline=0.05) as limiter:
        limiter.check(TEN, "u")
        own_server.process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        assert limiter.check(TEN, "u").degraded == "timeout"
        assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    ("message", "reason", "is_fault"),
    [
        ("LOADING Redis is loading the dataset in memory", "loading", False),
        ("READONLY You can't write against a read only replica.", "readonly", False),
        ("Error running script (call to f_1): @user_script:1: -OOM command not allowed when used memory", "oom", False),
        ("BUSY Redis is busy running a script.", "busy", False),
        ("CLUSTERDOWN The cluster is down", "clusterdown", False),
        ("NOAUTH Authentication required.", "noauth", True),
        ("NOPERM this user has no permissions", "noperm", True),
        ("WRONGTYPE Operation against a key", "wrongtype", True),
        ("max number of clients reached", "max_clients", False),
    ],
)
def test_states_of_a_server_are_told_apart(message, reason, is_fault):
    outage = classify_reply(message)
    assert (outage.reason, outage.is_fault) == (reason, is_fault)


@pytest.mark.parametrize("message", ["ERR unknown command", "user_script:12: attempt to index a nil value", ""])
def test_error_without_a_known_word_is_no_state_of_a_server(message):
    assert classify_reply(message) is None


def test_bug_in_the_script_surfaces(redis_server, monkeypatch):
    broken = b"local nothing = nil\nreturn nothing.field"
    monkeypatch.setattr(script, "read", lambda name: broken)
    monkeypatch.setattr(script, "digest", lambda: "0" * 40)
    with RateLimiter(redis_server.url, deadline=5) as limiter, pytest.raises(redis.ResponseError, match="nil"):
        limiter.check(TEN, "u")


def test_minimal_rights_are_enough(server):
    """What docs/stores.md tells to grant."""
    rights = "on >secret -@all +evalsha +eval +time +exists +hgetall +hmget +hget +hset +hincrby +pexpire +del +zadd +zrange"
    more = "+zrangebyscore +zcount +zcard +zrank +zscore +zrem +zremrangebyscore ~ratelimit:* ~ratelimit_override:*"
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "limiter", "reset", *rights.split(), *more.split())
        url = server.url.replace("://", "://limiter:secret@")
        with RateLimiter(url, deadline=5) as limiter:
            for algorithm in ("fixed_window", "sliding_window_counter", "sliding_window_log", "token_bucket"):
                policy = Policy("p", Limit(3, 600, algorithm=algorithm))
                for _ in range(5):
                    assert limiter.check(policy, "u").degraded is None
                assert limiter.refund(policy, "u", cost=2).degraded is None
                assert limiter.reset(policy, "u").degraded is None
            with limiter.slot(Policy("q", Limit(1, 60, algorithm="concurrency")), "u") as result:
                assert result.degraded is None
        with RateLimiter(url.replace("secret", "wrong"), deadline=5) as limiter:
            assert limiter.check(TEN, "u").degraded == "noauth"
        client.execute_command("ACL", "DELUSER", "limiter")


def test_missing_driver_is_told_in_one_sentence(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ratekit\[redis\]'"):
        RateLimiter("redis://localhost")
