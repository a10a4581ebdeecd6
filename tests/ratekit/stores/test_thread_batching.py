"""Checks of many threads on a real server: each thread gets its own answer, and none pays for another's fate."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from ratekit import Limit, Policy, RateLimiter, RateLimitResult
from ratekit.core.protocol import encode
from support.servers import Server, start_server, stop_server, wheel_server
from support.topologies import Cluster, start_cluster

THREADS, CHECKS = 32, 50
MOST = 1000
CROWD = Policy("crowd", Limit(MOST, 3600))


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may freeze or kill."""
    server = start_server(wheel_server())
    yield server
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGCONT)
    stop_server(server)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start_cluster() as cluster:
        yield cluster


def in_threads(work: Callable[[int], list[RateLimitResult]], count: int = THREADS) -> list[RateLimitResult]:
    """Run a function in many threads that begin at the same time, and return all results."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> list[RateLimitResult]:
        barrier.wait(timeout=20)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [result for results in pool.map(begin, range(count)) for result in results]


def evalsha_calls(client: redis.Redis) -> int:
    return client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def test_threads_share_script_calls_and_admit_exactly_the_maximum(redis_server):
    with redis_server.client() as client, RateLimiter(redis_server.url, deadline=10) as limiter:
        limiter.peek(CROWD, "u")
        client.config_resetstat()
        results = in_threads(lambda _: [limiter.check(CROWD, "u") for _ in range(CHECKS)])
        assert Counter(result.degraded for result in results) == {None: THREADS * CHECKS}
        assert sum(result.allowed for result in results) == MOST
        assert limiter.peek(CROWD, "u").request_count == MOST
        assert evalsha_calls(client) < THREADS * CHECKS / 2


def test_each_thread_gets_its_own_answers_while_the_script_is_forgotten(redis_server):
    """Each thread has a subject, a limit and a cost of its own, by which its answers are known."""
    stop = threading.Event()

    def forget_script() -> None:
        with redis_server.client() as client:
            while not stop.wait(0.002):
                client.script_flush()

    def check(number: int) -> list[RateLimitResult]:
        policy, cost = Policy(f"own{number}", Limit(10**6 + number, 3600)), number + 1
        results = [limiter.check(policy, f"user:{number}", cost=cost) for _ in range(CHECKS)]
        assert [result.request_count for result in results] == [cost * turn for turn in range(1, CHECKS + 1)]
        assert {result.max_requests for result in results} == {10**6 + number}
        return results

    flushing = threading.Thread(target=forget_script)
    flushing.start()
    try:
        with RateLimiter(redis_server.url, deadline=10) as limiter:
            results = in_threads(check)
    finally:
        stop.set()
        flushing.join()
    assert {result.degraded for result in results} == {None}


def test_fault_of_one_check_is_not_its_neighbours(redis_server):
    with redis_server.client() as client, RateLimiter(redis_server.url, deadline=10) as limiter:
        client.set("ratelimit:crowd:{bad}:3600s", "text")
        results = in_threads(lambda number: [limiter.check(CROWD, "bad" if number % 4 == 0 else "good") for _ in range(5)])
        assert Counter(result.degraded for result in results) == {"wrongtype": THREADS // 4 * 5, None: THREADS * 3 // 4 * 5}
        assert limiter.peek(CROWD, "good").request_count == THREADS * 3 // 4 * 5


def test_client_that_was_brought_is_asked_for_each_check_by_itself(redis_server):
    with redis_server.client() as client, redis.Redis.from_url(redis_server.url) as brought:
        limiter = RateLimiter(brought)
        limiter.peek(CROWD, "u")
        client.config_resetstat()
        results = in_threads(lambda _: [limiter.check(CROWD, "u") for _ in range(CHECKS)])
        assert sum(result.allowed for result in results) == MOST
        assert evalsha_calls(client) == THREADS * CHECKS


def test_threads_admit_exactly_the_maximum_of_each_subject_on_a_cluster(cluster):
    policy, subjects = Policy("ten", Limit(10, 3600)), [f"threads:{number}" for number in range(40)]
    with RateLimiter(cluster.url, deadline=10) as limiter:
        results = in_threads(lambda _: [limiter.check(policy, subject) for subject in subjects])
        assert {result.degraded for result in results} == {None}
        assert sum(result.allowed for result in results) == 10 * len(subjects)
        assert {limiter.peek(policy, subject).request_count for subject in subjects} == {10}


def test_threads_of_one_slot_share_script_calls_on_a_cluster(cluster):
    with RateLimiter(cluster.url, deadline=10) as limiter:
        limiter.peek(CROWD, "one")
        for node in cluster.nodes:
            cluster.command(node.port, "CONFIG", "RESETSTAT")
        results = in_threads(lambda _: [limiter.check(CROWD, "one") for _ in range(CHECKS)])
        assert sum(result.allowed for result in results) == MOST
        infos = [cluster.command(node.port, "INFO", "commandstats") for node in cluster.nodes]
    assert sum(info.get("cmdstat_evalsha", {"calls": 0})["calls"] for info in infos) < THREADS * CHECKS / 2


def test_frozen_server_costs_every_thread_about_one_deadline(own_server):
    with RateLimiter(own_server.url, deadline=0.1) as limiter:
        limiter.check(CROWD, "u")
        own_server.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        results = in_threads(lambda _: [limiter.check(CROWD, "u")])
        assert time.monotonic() - began < 1
    assert Counter(result.degraded for result in results) == {"timeout": THREADS}


def test_no_check_is_charged_twice_while_the_server_stands_still_now_and_then(own_server):
    """What was sent to a frozen server may be charged when it goes on, though its thread was told of an outage."""
    stop = threading.Event()

    def freeze() -> None:
        while not stop.wait(0.1):
            own_server.process.send_signal(signal.SIGSTOP)
            time.sleep(0.12)
            own_server.process.send_signal(signal.SIGCONT)

    policy = Policy("frozen", Limit(10**6, 3600))
    freezing = threading.Thread(target=freeze)
    with RateLimiter(own_server.url, deadline=0.05) as limiter:
        limiter.check(policy, "u")
        freezing.start()
        try:
            results = in_threads(lambda _: [limiter.check(policy, "u") for _ in range(300)])
        finally:
            stop.set()
            freezing.join()
    admitted = sum(result.degraded is None for result in results) + 1
    with RateLimiter(own_server.url, deadline=5) as limiter:
        used = limiter.peek(policy, "u").request_count
    assert admitted <= used <= len(results) + 1


def test_killed_server_is_an_outage_for_all_threads_and_is_used_again_when_it_is_back(own_server):
    policy, killed = Policy("killed", Limit(10**6, 3600)), threading.Event()

    def check(number: int) -> list[RateLimitResult]:
        results = [limiter.check(policy, "u")]
        while not killed.is_set() or results[-1].degraded is None:
            results.append(limiter.check(policy, "u"))
        return results

    def kill() -> None:
        time.sleep(0.1)
        own_server.process.kill()
        own_server.process.wait()
        killed.set()

    killing = threading.Thread(target=kill)
    with RateLimiter(own_server.url, deadline=0.5) as limiter:
        killing.start()
        results = in_threads(check)
        killing.join()
        assert {result.degraded for result in results} <= {None, "connection", "timeout"}
        server = start_server(wheel_server(), port=own_server.port)
        try:
            wait_until(lambda: limiter.check(policy, "again").degraded is None)
            results = in_threads(lambda _: [limiter.check(policy, "new") for _ in range(10)])
            assert {result.degraded for result in results} == {None}
            assert limiter.peek(policy, "new").request_count == THREADS * 10
        finally:
            stop_server(server)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_process_that_is_forked_while_threads_check_goes_on_in_both(redis_server):
    """The child has neither the threads that wait nor the connections that are in use, and a lock that nobody holds."""
    policy, stop = Policy("forked", Limit(10**6, 3600)), threading.Event()
    limiter = RateLimiter(redis_server.url, deadline=10)

    def check(number: int) -> list[RateLimitResult]:
        if number == 0:
            codes = [child_code() for _ in range(10)]
            stop.set()
            assert codes == [0] * 10
            return []
        results = []
        while not stop.is_set():
            results.append(limiter.check(policy, f"parent:{number}"))
        assert [result.request_count for result in results] == list(range(1, len(results) + 1))
        return results

    def child_code() -> int:
        pid = os.fork()
        if pid == 0:
            result = limiter.check(policy, "children")
            os._exit(0 if result.degraded is None else 1)
        return os.waitpid(pid, 0)[1]

    results = in_threads(check, 9)
    assert {result.degraded for result in results} == {None}
    assert limiter.peek(policy, "children").request_count == 10
    limiter.close()


def test_server_that_has_no_more_connections_is_no_outage(own_server):
    """A second request in flight needs a second connection; where the server refuses it, one is enough."""
    slots = Policy("full", [Limit(10**6, 3600, name=f"l{number}") for number in range(40)])  # a call fills a request
    with own_server.client() as client, RateLimiter(own_server.url, deadline=10) as limiter:
        limiter.check(slots, "u")
        client.config_set("maxclients", len(client.client_list()))
        results = in_threads(lambda _: [limiter.check(slots, "u") for _ in range(20)])
        client.config_set("maxclients", 1000)
    assert Counter(result.degraded for result in results) == {None: THREADS * 20}
    assert max(result.request_count for result in results) == THREADS * 20 + 1


def test_calls_decided_together_are_decided_in_one_request(redis_server):
    with redis_server.client() as client, RateLimiter(redis_server.url, deadline=10) as limiter:
        limiter.peek(CROWD, "u")
        client.config_resetstat()
        answers = limiter.store.run_many([encode(CROWD, f"u{number}") for number in range(100)])
        assert [answer[2] for answer in answers] == [1] * 100
        assert evalsha_calls(client) == 1
