"""A mode in the store that every process follows, off the path of requests."""

from __future__ import annotations

import logging
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import redis

from ratekit import AsyncRateLimiter, ConfigurationError, RateLimiter, RateLimitUnavailable, get_rate_limit_mode
from ratekit.admin import fleet_mode
from ratekit.admin.fleet_mode import FleetMode, clear_fleet_mode, follow, get_fleet_mode, set_fleet_mode
from ratekit.asgi import RateLimitMiddleware as AsgiMiddleware
from ratekit.core.modes import mode_sources
from ratekit.stores.memory import MemoryStore
from ratekit.wsgi import RateLimitMiddleware as WsgiMiddleware
from support.servers import Server, free_port, start_server, stop_server, wait_until, wheel_server


def wait_for_mode(mode: str) -> None:
    wait_until(lambda: get_rate_limit_mode() == mode, f"the mode does not become {mode}")


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = start_server(wheel_server())
    yield server
    os.kill(server.process.pid, signal.SIGCONT)
    stop_server(server)


def test_fleet_mode_is_written_and_read_on_every_store(limiter, ratekit_clock):
    assert limiter.finish(get_fleet_mode(limiter.limiter)) is None
    limiter.finish(set_fleet_mode(limiter.limiter, "monitor", note="a trial", set_by="ada"))
    found = limiter.finish(get_fleet_mode(limiter.limiter))
    assert found == FleetMode("monitor", "a trial", "ada", ratekit_clock.now)
    limiter.finish(set_fleet_mode(limiter.limiter, "OFF"))
    assert limiter.finish(get_fleet_mode(limiter.limiter)) == FleetMode("off", set_at=ratekit_clock.now)
    assert limiter.finish(get_fleet_mode(limiter.limiter, prefix="shop")) is None
    assert limiter.finish(clear_fleet_mode(limiter.limiter)) is True
    assert limiter.finish(clear_fleet_mode(limiter.limiter)) is False


def test_unknown_mode_is_refused_and_nothing_written():
    store = MemoryStore()
    with pytest.raises(ConfigurationError, match="'audit'.*monitor"):
        set_fleet_mode(store, "audit")
    assert len(store) == 0


def test_store_that_is_away_is_told():
    with RateLimiter(f"redis://127.0.0.1:{free_port()}") as limiter, pytest.raises(RateLimitUnavailable, match="connection"):
        set_fleet_mode(limiter, "monitor")


FOLLOW = """
import sys, time
from ratekit import get_rate_limit_mode
from ratekit.admin import fleet_mode

fleet_mode.follow(sys.argv[1])
last = None
while True:
    mode = get_rate_limit_mode()
    if mode is not last:
        print(mode, time.monotonic(), flush=True)
        last = mode
    time.sleep(0.005)
"""


def test_every_process_follows_within_a_second(redis_server):
    command = [sys.executable, "-c", FOLLOW, redis_server.url]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    delays = []
    try:
        assert [process.stdout.readline().split()[0] for process in processes] == ["on"] * 3
        with redis_server.client() as client:
            for mode in ("monitor", "off", "on", "monitor", "on"):
                set_fleet_mode(client, mode)
                written_at = time.monotonic()
                for process in processes:
                    said, at = process.stdout.readline().split()
                    assert said == mode
                    delays.append(float(at) - written_at)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert statistics.median(delays) < 1


def test_mode_of_the_store_is_one_more_source_and_the_weakest_wins(monkeypatch, redis_server):
    with redis_server.client() as client:
        set_fleet_mode(client, "monitor")
        follower = follow(client)
        wait_for_mode("monitor")
        assert ("fleet mode", "monitor") in mode_sources()
        monkeypatch.setenv("RATE_LIMIT_MODE", "off")
        assert get_rate_limit_mode() == "off"
        monkeypatch.setenv("RATE_LIMIT_MODE", "on")
        assert get_rate_limit_mode() == "monitor"
        clear_fleet_mode(client)
        wait_for_mode("on")
        follower.close()
        assert [name for name, _ in mode_sources()] == ["RATE_LIMIT_MODE", "RATE_LIMIT_MODE_FILE"]


def test_reading_the_mode_is_no_round_trip(redis_server):
    with redis_server.client() as client:
        set_fleet_mode(client, "monitor")
        client.config_resetstat()
        began = time.monotonic()
        follow(redis_server.url)
        wait_for_mode("monitor")
        for _ in range(20_000):
            get_rate_limit_mode()
        most = (time.monotonic() - began) / fleet_mode._INTERVAL + 2
        assert 1 <= client.info("commandstats")["cmdstat_hgetall"]["calls"] <= most


def test_frozen_store_keeps_the_last_mode_and_holds_nobody_up(own_server, caplog):
    caplog.set_level(logging.INFO, "ratekit.fleet")
    with own_server.client() as client:
        set_fleet_mode(client, "monitor")
        follower = follow(own_server.url)
        wait_for_mode("monitor")
        os.kill(own_server.process.pid, signal.SIGSTOP)
        follower.refresh()
        follower.refresh()
        began = time.monotonic()
        assert {get_rate_limit_mode() for _ in range(1000)} == {"monitor"}
        assert time.monotonic() - began < 1000 * fleet_mode._DEADLINE / 10
        os.kill(own_server.process.pid, signal.SIGCONT)
        set_fleet_mode(client, "off")
        wait_for_mode("off")
    assert [record.levelname for record in caplog.records if record.name == "ratekit.fleet"] == ["WARNING", "INFO"]
    assert "it stays monitor" in caplog.text


def test_mode_that_makes_no_sense_is_told_once_and_the_last_one_stays(redis_server, caplog):
    with redis_server.client() as client:
        set_fleet_mode(client, "monitor")
        follower = follow(client)
        wait_for_mode("monitor")
        client.hset("ratelimit_mode", "mode", "audit")
        follower.refresh()
        follower.refresh()
        assert get_rate_limit_mode() == "monitor"
        assert caplog.text.count("'audit'") == 1
        follower.close()


FORKED = """
import os, sys, time, warnings
from ratekit import RateLimiter, get_rate_limit_mode
from ratekit.admin import fleet_mode
from ratekit.admin.fleet_mode import set_fleet_mode

warnings.simplefilter("ignore", DeprecationWarning)
limiter = RateLimiter(sys.argv[1], deadline=5)
set_fleet_mode(limiter, "monitor")
fleet_mode.follow(sys.argv[1])
while get_rate_limit_mode() != "monitor":
    time.sleep(0.01)
if os.fork():
    _, status = os.wait()
    sys.exit(os.waitstatus_to_exitcode(status))
assert get_rate_limit_mode() == "monitor", "what the parent knew is known"
set_fleet_mode(limiter, "off")
deadline = time.monotonic() + 20
while get_rate_limit_mode() != "off":
    assert time.monotonic() < deadline, "the child does not follow"
    time.sleep(0.01)
os._exit(7)
"""


def test_forked_child_follows_too(redis_server):
    command = [sys.executable, "-c", FORKED, redis_server.url]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 7, finished.stderr


def test_same_url_is_followed_once_until_the_last_has_closed(redis_server):
    first, second = follow(redis_server.url), follow(redis_server.url)
    assert first is second
    assert follow(redis_server.url, prefix="shop") is not first
    first.close()
    assert [name for name, _ in mode_sources()].count("fleet mode") == 2
    second.close()
    assert [name for name, _ in mode_sources()].count("fleet mode") == 1


async def test_asynchronous_client_is_refused_with_the_way_out(redis_server):
    client = redis.asyncio.Redis.from_url(redis_server.url)
    for store in (client, AsyncRateLimiter(client)):
        with pytest.raises(ConfigurationError, match=r"event loop.*ratekit\.admin\.fleet_mode\.follow"):
            follow(store)
    await client.aclose()


async def test_asynchronous_limiter_of_a_url_is_followed_by_another_connection(redis_server):
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        follower = follow(limiter)
        await set_fleet_mode(limiter, "off")
        wait_for_mode("off")
        follower.close()


@pytest.mark.parametrize("middleware", [AsgiMiddleware, WsgiMiddleware], ids=["asgi", "wsgi"])
def test_middleware_follows_where_it_is_asked_to(middleware, ratekit_store):
    set_fleet_mode(ratekit_store, "off")
    middleware(None)
    assert [name for name, _ in mode_sources()] == ["RATE_LIMIT_MODE", "RATE_LIMIT_MODE_FILE"]
    guarded = middleware(None, fleet_mode=True)
    wait_until(lambda: guarded.options.mode() == "off", "the middleware does not follow")
