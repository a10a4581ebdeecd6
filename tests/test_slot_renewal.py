"""A slot is held for as long as its work lasts, whatever its window: in slot() and reserve_all() of both colours, and in the
middlewares.

The clock of the store stands still. Timers run on the machine's clock, and a test waits until it sees a renewal.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import anyio
import anyio.lowlevel
import pytest

from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter, RateLimitExceeded, asgi, wsgi
from ratekit.overrides import set_rate_limit_override
from ratekit.stores.memory import shared
from support.servers import start_server, stop_server, wheel_server

WINDOW = 0.06  # seconds: renewed every 20 ms
SLOTS = Policy("work", [Limit(1, WINDOW, algorithm="concurrency", name="slot")])
PATIENCE = 10.0  # seconds of the machine's clock


@pytest.fixture(params=["memory", "redis"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "memory":
        shared("renewal").clear()
        yield "memory://renewal"
    else:
        yield f"{request.getfixturevalue('redis_server').url}?socket_timeout=5&socket_connect_timeout=5"


def options(policy: Policy) -> dict[str, Any]:
    return {"default": None, "rules": {"/work": policy}, "by": lambda request: "ann"}


@contextmanager
def waiting_slot(url: str, policy: Policy) -> Iterator[None]:
    with RateLimiter(url, deadline=5) as limiter, limiter.slot(policy, "ann", endpoint="/work"):
        yield


@contextmanager
def on_a_loop(work: Callable[[asyncio.Event], Any]) -> Iterator[None]:
    """Run work on the event loop of a thread until the block ends; the work sets the event when it holds its slot."""
    held, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        async with asyncio.timeout(3 * PATIENCE):
            await work(held, ended)  # type: ignore[call-arg]

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert held.wait(PATIENCE)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(PATIENCE)
        loop.close()


@contextmanager
def awaited_slot(url: str, policy: Policy) -> Iterator[None]:
    async def work(held: threading.Event, ended: asyncio.Event) -> None:
        async with AsyncRateLimiter(url, deadline=5) as limiter, limiter.slot(policy, "ann", endpoint="/work"):
            held.set()
            await ended.wait()

    with on_a_loop(work):
        yield


def checks_of(policy: Policy) -> list[tuple[Policy, str]]:
    """Several identities, of which the last one holds the slot."""
    return [(Policy("everyone", "1000/s"), "*"), (Policy("/work", policy.limits), "ann")]


@contextmanager
def waiting_reservation(url: str, policy: Policy) -> Iterator[None]:
    with RateLimiter(url, deadline=5) as limiter, limiter.reserve_all(checks_of(policy)):
        yield


@contextmanager
def awaited_reservation(url: str, policy: Policy) -> Iterator[None]:
    async def work(held: threading.Event, ended: asyncio.Event) -> None:
        async with AsyncRateLimiter(url, deadline=5) as limiter, limiter.reserve_all(checks_of(policy)):
            held.set()
            await ended.wait()

    with on_a_loop(work):
        yield


def scope() -> dict[str, Any]:
    lines: list[Any] = []
    return {
        "type": "http",
        "method": "GET",
        "path": "/work",
        "headers": lines,
        "query_string": b"",
        "client": ("192.0.2.7", 1),
    }


async def nothing() -> dict[str, Any]:
    return {"type": "http.request"}


@contextmanager
def asgi_response(url: str, policy: Policy) -> Iterator[None]:
    async def work(held: threading.Event, ended: asyncio.Event) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            held.set()
            await ended.wait()
            await send({"type": "http.response.body", "body": b""})

        async def send(message: Any) -> None: ...

        async with AsyncRateLimiter(url, deadline=5) as limiter:
            await asgi.RateLimitMiddleware(app, limiter=limiter, **options(policy))(scope(), nothing, send)

    with on_a_loop(work):
        yield


@contextmanager
def wsgi_response(url: str, policy: Policy) -> Iterator[None]:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"a"
        yield b"b"

    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/work", "QUERY_STRING": "", "REMOTE_ADDR": "192.0.2.7"}
    with RateLimiter(url, deadline=5) as limiter:
        response: Any = wsgi.RateLimitMiddleware(app, limiter=limiter, **options(policy))(environ, lambda *_: None)
        assert next(iter(response)) == b"a"
        try:
            yield
        finally:
            response.close()


HOLDERS = [waiting_slot, awaited_slot, waiting_reservation, awaited_reservation, asgi_response, wsgi_response]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Watcher:
    """Looks at the slots of a policy past those who hold them."""

    def __init__(self, url: str, clock: Any, policy: Policy = SLOTS) -> None:
        self.limiter = RateLimiter(url, deadline=5)
        self.clock = clock
        self.policy = policy

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.limiter.close()

    def look(self) -> Any:
        return self.limiter.peek(self.policy, "ann", endpoint="/work")

    def age(self, times: int = 4, window: float = WINDOW) -> None:
        """Let most of a window pass some times, each time after the last renewal was seen."""
        for _ in range(times):
            self.clock.advance(window * 0.8)
            until(lambda: self.look().reset_after > window * 0.5)


@pytest.mark.parametrize("holder", HOLDERS)
def test_slot_is_held_for_longer_than_its_window(holder, url, ratekit_clock):
    with Watcher(url, ratekit_clock) as watcher:
        with holder(url, SLOTS):
            watcher.age()
            assert not watcher.look().allowed
        assert watcher.look().allowed


@pytest.mark.parametrize("holder", HOLDERS)
def test_slot_is_free_after_its_window_once_nobody_renews_it(holder, url, ratekit_clock):
    with Watcher(url, ratekit_clock) as watcher:
        with holder(url, SLOTS):
            watcher.age(1)
        ratekit_clock.advance(WINDOW * 2)
        with holder(url, SLOTS):
            assert watcher.look().request_count == 1


@pytest.mark.parametrize("holder", HOLDERS)
def test_slot_is_renewed_by_the_window_of_its_override(holder, url, ratekit_clock):
    policy = Policy("work", [Limit(1, 60, algorithm="concurrency", name="slot")])
    with Watcher(url, ratekit_clock, policy) as watcher:
        set_rate_limit_override(watcher.limiter, endpoint="/work", subject="ann", max_requests=1, expiry=WINDOW)
        with holder(url, policy):
            watcher.age()
            assert not watcher.look().allowed


@pytest.mark.parametrize("holder", HOLDERS)
def test_renewal_of_a_slot_spends_nothing_beside_it(holder, url, ratekit_clock):
    policy = Policy("work", [*SLOTS.limits, Limit(5, 3600, name="hour")])
    with Watcher(url, ratekit_clock, policy) as watcher, holder(url, policy):
        for _ in range(3):
            ratekit_clock.advance(WINDOW * 0.8)
            until(lambda: watcher.look().tiers[0].reset_after > WINDOW * 0.5)
        assert [tier.used for tier in watcher.look().tiers] == [1, 1]


@pytest.mark.parametrize("holder", HOLDERS)
def test_slot_that_the_store_has_lost_is_said_once(holder, url, ratekit_clock, caplog):
    with Watcher(url, ratekit_clock) as watcher, holder(url, SLOTS):
        watcher.limiter.reset(SLOTS, "ann", endpoint="/work")
        until(lambda: "is lost while its work goes on" in caplog.text)
        time.sleep(WINDOW)  # three renewals would be due
    assert caplog.text.count("is lost while its work goes on") == 1
    assert "slot of slot" in caplog.text


@pytest.mark.parametrize("holder", HOLDERS)
def test_slot_is_renewed_again_after_an_outage(holder, ratekit_clock):
    server = start_server(wheel_server())
    try:
        with Watcher(server.url, ratekit_clock) as watcher, holder(f"{server.url}?socket_timeout=0.05", SLOTS):
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(WINDOW * 2)
            server.process.send_signal(signal.SIGCONT)
            watcher.age(2)
    finally:
        stop_server(server)


def test_thread_ends_when_no_slot_is_held_and_starts_again(ratekit_clock):
    shared("renewal").clear()
    watcher = Watcher("memory://renewal", ratekit_clock)
    for _ in range(3):
        with waiting_slot("memory://renewal", SLOTS):
            watcher.age(1)
        until(lambda: "ratekit-renewals" not in [thread.name for thread in threading.enumerate()])


def test_many_slots_share_one_thread(ratekit_clock):
    shared("renewal").clear()
    policy = Policy("work", [Limit(100, WINDOW, algorithm="concurrency", name="slot")])
    watcher = Watcher("memory://renewal", ratekit_clock, policy)
    with watcher.limiter.slot(policy, "ann", endpoint="/work"):
        slots = [watcher.limiter.slot(policy, "ann", endpoint="/work") for _ in range(50)]
        for slot in slots:
            slot.__enter__()
        watcher.age(2)
        assert [thread.name for thread in threading.enumerate()].count("ratekit-renewals") == 1
        assert watcher.look().request_count == 51
        for slot in slots:
            slot.__exit__(None, None, None)
        assert watcher.look().request_count == 1


FORKED = """
import os, time, warnings
from ratekit import Limit, Policy, RateLimiter

SLOTS = Policy("work", [Limit(9, 1.5, algorithm="concurrency", name="slot")])
limiter = RateLimiter("memory://", deadline=5)

def holds_on():
    with limiter.slot(SLOTS, "ann"):
        time.sleep(2.5)
        return limiter.peek(SLOTS, "ann").request_count == 1

with limiter.slot(SLOTS, "parent"):
    child = os.fork()
    if not child:
        os._exit(0 if holds_on() else 1)
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_process_that_was_forked_renews_its_own_slots():
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKED)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


TWO = [Policy("work", [Limit(1, 600, algorithm="concurrency", name=name)]) for name in ("first", "second")]


def is_free(url: str, policy: Policy) -> bool:
    with RateLimiter(url, deadline=5) as limiter:
        return limiter.peek(policy, "ann", endpoint="/work").allowed


async def until_both_are_free(url: str) -> None:
    for _ in range(1000):
        await anyio.sleep(0.002)
        if all(is_free(url, policy) for policy in TWO):
            return
    raise AssertionError("a slot is still held")


def test_both_slots_of_a_request_are_free_when_anyio_cancels(url):
    async def run() -> None:
        started = anyio.Event()

        async def endless(scope: Any, receive: Any, send: Any) -> None:
            started.set()
            await anyio.sleep_forever()

        app: Any = endless
        async with AsyncRateLimiter(url, deadline=5) as limiter:
            for policy in TWO:
                app = asgi.RateLimitMiddleware(app, limiter=limiter, **options(policy))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(app, scope(), nothing, nothing)
                await started.wait()
                assert not any(is_free(url, policy) for policy in TWO)
                tasks.cancel_scope.cancel()
            await until_both_are_free(url)

    anyio.run(run)


def test_both_slots_of_a_block_are_free_when_anyio_cancels(url):
    async def run() -> None:
        async with AsyncRateLimiter(url, deadline=5) as limiter:
            with anyio.move_on_after(0.05):
                async with limiter.slot(TWO[0], "ann", endpoint="/work"), limiter.slot(TWO[1], "ann", endpoint="/work"):
                    with pytest.raises(RateLimitExceeded):
                        async with limiter.slot(TWO[0], "ann", endpoint="/work"):
                            pass
                    await anyio.sleep_forever()
            await until_both_are_free(url)

    anyio.run(run)
