"""Errors of a server, or of what is between, that no list knows: outages all the same, and never an exception."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from faults.proxy import Proxy
from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.admin.doctor import Severity, examine
from support.servers import free_port, start_server, stop_server, wheel_server
from support.topologies import start_watched

TEN = Policy("ten", Limit(10, 600))
UNKNOWN = ["ERR max daily request limit exceeded. Limit: 10000, Usage: 10000.", "no upstream host", "ERR"]


@pytest.fixture
def proxy(redis_server: Any) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as running:
        yield running


@pytest.fixture(params=["sync", "async", "sync client", "async client"])
def ask(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Ask a new limiter on a URL, of either colour, with connections of its own or a client that is brought."""
    colour, _, brings = request.param.partition(" ")
    with asyncio.Runner() as runner:

        def ask(url: str, operation: str, *args: Any, **options: Any) -> Any:
            async def asked() -> Any:
                library: Any = redis if colour == "sync" else redis.asyncio
                store = library.Redis.from_url(url) if brings else url
                limiter: Any = (RateLimiter if colour == "sync" else AsyncRateLimiter)(store, deadline=2, **options)
                try:
                    return await _waited(getattr(limiter, operation)(*args))
                finally:
                    await _waited(limiter.close() if colour == "sync" else limiter.aclose())
                    if brings:
                        await _waited(store.close() if colour == "sync" else store.aclose())

            return runner.run(asked())

        yield ask


async def _waited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


@pytest.mark.parametrize("error", UNKNOWN)
def test_error_that_nobody_knows_follows_on_outage(proxy, ask, error, caplog):
    proxy.behave(error=error, scripts_only=True)
    with caplog.at_level(logging.ERROR, "ratekit.limiter"):
        assert ask(proxy.url, "check", TEN, "u").degraded == "error"
    assert "the store cannot decide (error" in caplog.text
    assert ask(proxy.url, "check", TEN, "u", on_outage="local").request_count == 1
    with pytest.raises(RateLimitUnavailable, match="error"):
        ask(proxy.url, "check", TEN, "u", on_outage="closed")


def test_command_that_the_server_has_not_is_an_outage_and_names_no_subject(ask, caplog):
    server = start_server(wheel_server(), "--rename-command", "EVALSHA", "")
    try:
        assert ask(server.url, "check", TEN, "user:42").degraded == "error"
    finally:
        stop_server(server)
    assert "unknown command" in caplog.text
    assert "user:42" not in caplog.text


@pytest.fixture(scope="module")
def watched() -> Iterator[Any]:
    with start_watched(sentinels=1) as running:
        yield running


def test_sentinel_in_place_of_a_server_is_an_outage(watched, ask):
    assert ask(watched.sentinels[0].url, "check", TEN, "u").degraded == "error"


def test_doctor_names_a_sentinel_in_place_of_a_server(watched):
    with RateLimiter(watched.sentinels[0].url, deadline=5, on_outage="closed") as limiter:
        findings = [finding for finding in examine(limiter) if finding.severity is Severity.PROBLEM]
    assert [finding.message for finding in findings] == ["this is a Sentinel: use redis+sentinel://"]


@pytest.mark.parametrize(
    "scheme", ["redis://127.0.0.1:{}", "redis+sentinel://127.0.0.1:{}/limits", "redis+cluster://127.0.0.1:{}"]
)
def test_outage_is_said_in_a_sentence_without_objects_of_the_client(scheme):
    limiter = RateLimiter(scheme.format(free_port()), deadline=0.2, on_outage="closed")
    with limiter, pytest.raises(RateLimitUnavailable) as raised:
        limiter.check(TEN, "u")
    assert not {"<", ">", "(", "\n"} & set(raised.value.reason), raised.value.reason
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
