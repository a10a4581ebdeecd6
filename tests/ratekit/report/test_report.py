"""The report: who was refused or would be, who is near, and which limit would affect how many."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from itertools import accumulate

import pytest
import redis
import redis.asyncio

from benchmarks.server import wait_until
from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter, RateLimitMode, report
from ratekit.core.events import Decision
from ratekit.core.keys import override_key
from ratekit.core.protocol import encode, merge
from ratekit.report import Reporter, ReportSize
from ratekit.report import reporter as reporter_module
from ratekit.stores.memory import MemoryStore
from ratekit.telemetry import pseudonym
from support.servers import free_port
from support.topologies import start_cluster

THREE = Policy("search", [Limit(3, 60)])
HOUR = 3600


@pytest.fixture(params=["memory", "redis"])
def store(request, ratekit_clock):
    """A store of each kind, empty; time stands still."""
    if request.param == "memory":
        yield MemoryStore()
        return
    with request.getfixturevalue("redis_server").client() as client:
        yield client


@pytest.fixture(scope="module")
def cluster():
    with start_cluster() as cluster:
        yield cluster


@pytest.fixture
def limiter(store):
    return RateLimiter(store, deadline=5)


@pytest.fixture
def reporters(limiter, monkeypatch):
    """Make reporters that add up and write when they are told to; they end with the test."""
    monkeypatch.setattr(reporter_module, "ADDING_SECONDS", HOUR)
    made: list[Reporter] = []

    def make(target=limiter, **options) -> Reporter:
        made.append(Reporter(target, **{"interval": HOUR, "subjects": "plain"} | options))
        return made[-1]

    yield make
    for reporter in made:
        reporter.close()


def decided(reporter: Reporter, limiter: RateLimiter, policy: Policy, subject: str, times: int = 1, **options) -> list[bool]:
    """Decide some requests with a reporter listening to them."""
    reporter.start()
    mode = RateLimitMode(options.pop("mode", "on"))
    calls = [encode(policy, subject, **options) for _ in range(times)]
    allowed = [limiter.decide(call, mode).allowed for call in calls]
    reporter.stop()
    return allowed


def zipf(subjects: int, requests: int) -> list[str]:
    weights = list(accumulate(1 / rank for rank in range(1, subjects + 1)))
    return [f"user:{number}" for number in random.Random(7).choices(range(subjects), cum_weights=weights, k=requests)]


def test_report_has_the_prefix_of_the_limiter_unless_it_is_said(store, reporters):
    limiter, policy = RateLimiter(store, deadline=5, prefix="shop"), Policy("p", "5/min")
    for reporter in reporters(limiter), reporters(limiter, prefix="other"):
        decided(reporter, limiter, policy, "u", prefix="shop")
        reporter.flush()
    found = [len(report.read_report(limiter, prefix=prefix)) for prefix in (None, "shop", "other", "ratelimit")]
    assert found == [1, 1, 1, 0]


def test_each_unit_and_each_period_of_a_calendar_has_a_report_of_its_own(limiter, reporters, ratekit_clock):
    """Peaks are in the unit of the limit; what was refused by one limit was asked of the others, too."""
    ratekit_clock.set(datetime(2027, 1, 30, tzinfo=UTC).timestamp())
    limits = ["60/min", "1000 tokens/min", "3000 tokens/month Europe/Berlin"]
    llm, reporter = Policy("llm", limits), reporters()
    assert decided(reporter, limiter, llm, "org:7", 3, cost={"tokens": 400}) == [True, True, False]
    assert decided(reporter, limiter, llm, "org:8", 1, cost={"tokens": 10}) == [True]
    ratekit_clock.set(datetime(2027, 2, 2, tzinfo=UTC).timestamp())
    assert decided(reporter, limiter, llm, "org:7", 1, cost={"tokens": 4000}) == [False]
    reporter.flush()
    found = {one.limit: one for one in report.read_report(limiter, size=ReportSize(days=9))}
    about = {name: (one.unit, one.calendar, one.max_requests) for name, one in found.items()}
    assert about == {
        "60s": ("requests", "", 60),
        "tokens-60s": ("tokens", "", 1000),
        "tokens-month": ("tokens", "month Europe/Berlin", 3000),
    }
    assert {name: [(use.subject, use.refused, use.peak) for use in one.refused] for name, one in found.items()} == {
        "60s": [],
        "tokens-60s": [("org:7", 2, 4000)],
        "tokens-month": [("org:7", 1, 4000)],
    }
    highest = {name: {use.subject: use.peak for use in one.highest} for name, one in found.items()}
    assert (highest["60s"], highest["tokens-month"]) == ({"org:7": 2, "org:8": 1}, {"org:7": 4000, "org:8": 10})


def test_true_top_20_are_in_the_report_of_skewed_traffic_by_several_writers(store, limiter, reporters):
    size = ReportSize(capacity=400)
    writers = [reporters(size=size, most=10**6) for _ in range(3)]
    asked, refused = Counter(), Counter()
    for number, subject in enumerate(zipf(100_000, 60_000)):
        writer = writers[number % 3]
        result = limiter.check(THREE, subject)
        writer.enqueue(_decision(result, subject))
        asked[subject] += 1
        refused[subject] += not result.allowed
        if number % 7000 == 0:
            writer.flush()
    for writer in writers:
        writer.flush()
    (found,) = report.read_report(limiter, size=size)
    listed = {use.subject: use for use in found.refused}
    top = refused.most_common(20)
    assert {name for name, _ in top} <= set(listed)
    assert {name for name, _ in top} == {use.subject for use in found.refused[:20]}
    for name, count in top:
        assert listed[name].refused <= count <= listed[name].refused_at_most
        assert listed[name].peak == asked[name]
    assert (found.requests, found.denied) == (60_000, sum(refused.values()))
    assert abs(found.subjects - len(asked)) < 0.2 * len(asked)
    _expect_bounded(store, size)
    _expect_good_advice(found, asked)


def _decision(result, subject):
    return Decision(encode(THREE, subject), result, RateLimitMode.ON, 0.001, "ratelimit")


def _expect_bounded(store, size: ReportSize) -> None:
    if isinstance(store, MemoryStore):
        return
    names = store.keys("ratelimit_report*")
    assert all(0 < store.pttl(name) <= size.ttl_ms for name in names)
    sizes = [store.zcard(name) for name in names if store.type(name) == b"zset" and b":over:" not in name]
    assert max(sizes) <= size.capacity
    assert sum(store.memory_usage(name, samples=0) for name in names) < 2500 * size.capacity


def _expect_good_advice(found, asked: Counter) -> None:
    peaks = sorted(asked.values(), reverse=True)
    for share in (0.0, 0.001, 0.01):
        assert found.limit_for(share) == pytest.approx(peaks[int(share * len(peaks))], rel=0.15)
    assert found.limit_for(0.5) == 1
    for most in (3, 10, 100):
        assert found.affected_by(most).share == pytest.approx(sum(peak > most for peak in peaks) / len(peaks), abs=0.04)


def test_modes_and_shadows_tell_denials_from_what_would_be_denied(limiter, reporters):
    reporter = reporters()
    policy = Policy("search", [Limit(3, 60), Limit(1, 60, name="tight", shadow=True)])
    assert decided(reporter, limiter, policy, "user:1", 4) == [True] * 3 + [False]
    decided(reporter, limiter, THREE, "user:2", 5, mode="monitor", endpoint="/other")
    reporter.flush()
    found = {(one.endpoint, one.mode): one for one in report.read_report(limiter)}
    enforced, shadow, monitored = found["search", "on"], found["search", "shadow"], found["/other", "monitor"]
    assert (enforced.allowed, enforced.denied, enforced.would_deny) == (3, 1, 0)
    assert (shadow.limit, shadow.max_requests, shadow.denied) == ("tight@shadow", 1, 0)
    assert shadow.would_deny >= 2
    assert (monitored.allowed, monitored.denied, monitored.would_deny) == (3, 0, 2)
    assert [one.endpoint for one in report.read_report(limiter, "/other")] == ["/other"]


def test_how_far_over_is_added_up_over_processes_and_kept_by_window(limiter, reporters, ratekit_clock):
    one, other = reporters(), reporters()
    for reporter in (one, other):
        decided(reporter, limiter, THREE, "user:1", 5)
        reporter.flush()
    ratekit_clock.advance(61)
    decided(one, limiter, THREE, "user:1", 4)
    one.flush()
    (found,) = report.read_report(limiter)
    (use,) = found.refused
    assert (use.refused, use.peak) == (8, 10)
    assert found.affected_by().subjects == 1
    assert found.affected_by(10).subjects == 0
    assert found.limit_for(0) == 10


def test_who_is_near_is_told_with_first_and_last_seen(limiter, reporters, ratekit_clock):
    reporter = reporters()
    policy = Policy("search", [Limit(10, HOUR)])
    began = ratekit_clock.now
    decided(reporter, limiter, policy, "near", 7)
    decided(reporter, limiter, policy, "far", 3)
    reporter.flush()
    ratekit_clock.advance(30)
    decided(reporter, limiter, policy, "near", 2)
    decided(reporter, limiter, policy, "over", 12)
    reporter.flush()
    (found,) = report.read_report(limiter)
    assert [(use.subject, use.peak) for use in found.highest] == [("over", 12), ("near", 9), ("far", 3)]
    (near,) = found.near
    assert (near.subject, near.first, near.last) == ("near", began, began + 30)
    assert (found.first, found.last) == (began, began + 30)


def test_days_are_merged_and_old_ones_are_left_out(limiter, reporters, ratekit_clock):
    reporter, size = reporters(), ReportSize(days=2)
    for day, subject in enumerate(["user:1", "user:2", "user:1", "user:1"]):
        decided(reporter, limiter, THREE, subject, 5 + day)
        reporter.flush()
        ratekit_clock.advance(86_400)
    ratekit_clock.advance(-86_400)
    (found,) = report.read_report(limiter, size=size)
    assert found.would_deny + found.denied == 3 + 4 + 5
    assert [(use.subject, use.refused, use.peak) for use in found.refused] == [("user:1", 9, 8), ("user:2", 3, 6)]
    ratekit_clock.advance(30 * 86_400)
    assert report.read_report(limiter, size=size) == []


def test_subjects_are_hashed_unless_they_shall_be_plain(limiter, reporters):
    hashed = reporters(subjects="hashed")
    decided(hashed, limiter, THREE, "user:42", 4)
    hashed.flush()
    (found,) = report.read_report(limiter)
    assert [use.subject for use in found.refused] == [pseudonym("user:42")]


def test_subject_with_an_override_says_nothing_about_the_limit(store, limiter, reporters):
    key = override_key("ratelimit", "search", "special")
    execute = store.execute if isinstance(store, MemoryStore) else store.execute_command
    execute("HSET", key, "max_requests", "50")
    reporter = reporters()
    decided(reporter, limiter, THREE, "special", 52)
    decided(reporter, limiter, THREE, "plain", 2)
    reporter.flush()
    (found,) = report.read_report(limiter)
    assert [use.subject for use in found.highest] == ["plain"]
    assert [(use.subject, use.refused, use.peak) for use in found.refused] == [("special", 2, None)]


def test_report_of_an_endpoint_is_cleared(limiter, reporters):
    reporter = reporters()
    decided(reporter, limiter, THREE, "user:1", 4)
    decided(reporter, limiter, THREE, "user:1", 4, endpoint="/other {x}")
    reporter.flush()
    assert report.clear_report(limiter, "search") == 1
    assert [one.endpoint for one in report.read_report(limiter)] == ["/other {x}"]
    assert report.clear_report(limiter) == 1
    assert report.read_report(limiter) == []


def test_concurrency_and_bucket_are_reported(limiter, reporters):
    reporter = reporters().start()
    jobs, bucket = Policy("jobs", Limit(1, 60, algorithm="concurrency")), Policy("bucket", Limit(1, 60, burst=5))
    for slot in ("a", "b", "c"):
        limiter.acquire(jobs, "user:1", slot)
    for _ in range(7):
        limiter.check(bucket, "user:1")
    reporter.flush()
    found = {one.endpoint: one for one in report.read_report(limiter)}
    assert (found["jobs"].max_requests, found["jobs"].highest[0].peak) == (1, 2)
    assert (found["bucket"].max_requests, found["bucket"].highest[0].peak) == (5, 7)


def test_checks_of_one_request_are_reported_each_by_its_own_cost(limiter, reporters):
    reporter = reporters().start()
    requests, tokens = Policy("requests", Limit(1, 60)), Policy("tokens", Limit(1000, 60))
    for _ in range(3):
        limiter.decide(merge([encode(requests, "user:1"), encode(tokens, "user:1", cost=400)]))
    reporter.flush()
    found = {one.endpoint: one for one in report.read_report(limiter)}
    assert (found["requests"].highest[0].peak, found["tokens"].highest[0].peak) == (3, 400)
    assert (found["requests"].policy, found["tokens"].policy) == ("requests", "tokens")


def test_decisions_beyond_the_queue_are_dropped_and_counted(limiter, reporters):
    reporter = reporters(most=10)
    decided(reporter, limiter, THREE, "user:1", 25)
    assert reporter.dropped == 15
    reporter.flush()
    assert report.read_report(limiter)[0].requests == 10


def test_outage_drops_what_could_not_be_written_and_is_logged_once(reporters, ratekit_clock, caplog):
    away = RateLimiter(f"redis://127.0.0.1:{free_port()}")
    reporter, local = reporters(away), RateLimiter(MemoryStore())
    with caplog.at_level(logging.WARNING, "ratekit.report"):
        for _ in range(3):
            assert decided(reporter, local, THREE, "user:1", 2)
            reporter.flush()
    assert reporter.dropped == 6
    assert [record.name for record in caplog.records].count("ratekit.report") == 1


def test_degraded_decisions_are_counted_apart(limiter, reporters):
    reporter = reporters()
    with RateLimiter(f"redis://127.0.0.1:{free_port()}") as away:
        decided(reporter, away, THREE, "user:1", 2)
    decided(reporter, limiter, THREE, "user:1", 1)
    reporter.flush()
    (found,) = report.read_report(limiter)
    assert (found.degraded, found.allowed, found.subjects) == (2, 1, 1)


def test_key_that_holds_something_else_harms_nobody(redis_server, reporters):
    with redis_server.client() as client, RateLimiter(client) as limiter:
        client.set("ratelimit_report", "mine")
        reporter = reporters(limiter)
        assert decided(reporter, limiter, THREE, "user:1", 4) == [True] * 3 + [False]
        reporter.flush()
        assert reporter.dropped == 4


async def test_asynchronous_client_is_written_to_by_a_task(redis_server):
    async with redis.asyncio.Redis.from_url(redis_server.url) as client:
        limiter = AsyncRateLimiter(client)
        reporter = report.install(client, interval=0.01)
        task = asyncio.create_task(reporter.run())
        for _ in range(4):
            await limiter.check(THREE, "user:1")
        for _ in range(1000):
            found = await report.read_report(client)
            if found:
                break
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reporter.close()
        assert (await report.read_report(limiter))[0].denied == 1
        assert await report.clear_report(client) == 1


WORKER = """
import os, sys
from ratekit import Limit, Policy, RateLimiter, report
url, children = sys.argv[1], int(sys.argv[2])
limiter = RateLimiter(url, deadline=5)
reporter = report.install(url, interval=3600)
policy = Policy("search", [Limit(3, 60)])
limiter.check(policy, "user:1")
pids = [os.fork() for _ in range(children)]
if children and 0 in pids:
    for _ in range(5):
        limiter.check(policy, "user:1")
    reporter.flush()
    os._exit(0)
for pid in pids:
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(("children", "requests"), [(0, 1), (1, 6)])
def test_report_is_written_at_exit_and_by_forked_processes(redis_server, children, requests):
    command = [sys.executable, "-c", WORKER, redis_server.url, str(children)]
    subprocess.run(command, check=True, timeout=60, env=os.environ)
    with redis_server.client() as client:
        (found,) = report.read_report(client)
    assert found.requests == requests


def test_thread_writes_by_itself(redis_server):
    with redis_server.client() as client:
        limiter = RateLimiter(client)
        reporter = report.install(redis_server.url, interval=0.01)
        try:
            limiter.check(THREE, "user:1")
            wait_until(lambda: report.read_report(client), "nothing is written")
        finally:
            reporter.close()
        assert report.read_report(client)[0].requests == 1
        assert "ratekit-report" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"subjects": "secret"}, "subjects 'secret'"),
        ({"interval": 0}, "interval 0"),
        ({"most": 0}, "most 0"),
        ({"prefix": "a b"}, "prefix 'a b'"),
        ({"store": "nowhere://"}, "nowhere"),
    ],
    ids=repr,
)
def test_option_that_makes_no_sense_is_refused(options, named):
    with pytest.raises(ConfigurationError, match=named):
        Reporter(**{"store": "memory://"} | options)


@pytest.mark.parametrize("options", [{"capacity": 0}, {"capacity": "9"}, {"days": 0}, {"days": 1.5}], ids=repr)
def test_size_that_makes_no_sense_is_refused(options):
    (name,) = options
    with pytest.raises(ConfigurationError, match=name):
        ReportSize(**options)


@pytest.mark.parametrize("share", [-0.1, 1.1, "1", True, None], ids=repr)
def test_share_that_makes_no_sense_is_refused(limiter, reporters, share):
    reporter = reporters()
    decided(reporter, limiter, THREE, "user:1")
    reporter.flush()
    with pytest.raises(ConfigurationError, match="share"):
        report.read_report(limiter)[0].limit_for(share)


def test_all_keys_of_an_endpoint_share_a_slot(redis_server, reporters):
    with redis_server.client() as client, RateLimiter(client) as limiter:
        reporter = reporters(limiter)
        decided(reporter, limiter, THREE, "user:1", 9, endpoint="/a:{b}")
        reporter.flush()
        names = [name.decode() for name in client.keys("ratelimit_report:*")]
    assert len(names) >= 8
    assert {name.partition("{")[2].partition("}")[0] for name in names} == {"/a:%7Bb%7D"}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_report_is_kept_on_a_cluster(cluster, colour):
    async def keep_and_read() -> list[report.LimitReport]:
        async with AsyncRateLimiter(cluster.url, deadline=5) as limiter:
            reporter = report.install(limiter, interval=HOUR)
            for endpoint in ("/a", "/b", "/c{x}"):
                for _ in range(5):
                    await limiter.check(THREE, "user:1", endpoint=endpoint)
            await reporter.aflush()
            reporter.close()
            return await report.read_report(limiter)

    if colour == "async":
        found = asyncio.run(keep_and_read())
    else:
        with RateLimiter(cluster.url, deadline=5) as limiter:
            reporter = report.install(limiter, interval=HOUR)
            for endpoint in ("/a", "/b", "/c{x}"):
                for _ in range(5):
                    limiter.check(THREE, "user:2", endpoint=endpoint)
            reporter.close()
            found = report.read_report(limiter)
            assert report.clear_report(limiter) == 3
    assert [(one.endpoint, one.denied, one.refused[0].peak) for one in found] == [
        ("/a", 2, 5),
        ("/b", 2, 5),
        ("/c{x}", 2, 5),
    ]
