"""Redis is away: killed, restarted."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from typing import Any

import httpx2

from faults.crowd import Crowd, Work
from faults.drive import Driver, Maker, percentile, until
from faults.serving import serving
from faults.table import Figures
from ratekit import Limit, Policy
from ratekit.asgi import RateLimitMiddleware as AsgiMiddleware
from ratekit.wsgi import RateLimitMiddleware as WsgiMiddleware
from support.servers import free_port, stop_server

PLENTY = Policy("plenty", Limit(10**9, 3600))


def killed(maker: Maker) -> Figures:
    """Kill a server under 50 checks a second, and start it again on its port 2 s later."""
    with (
        serving() as server,
        maker.open(server.url, on_outage="local") as driver,
        driver.paced(PLENTY, per_second=50) as samples,
    ):
        time.sleep(0.5)
        stop_server(server)
        gone = time.monotonic()
        time.sleep(2)
        starting = time.monotonic()
        with serving(port=server.port):
            back = until(samples, lambda sample: sample.is_decided, time.monotonic(), 3)
            settled = time.monotonic()
            time.sleep(0.5)
            ended = time.monotonic()
    down = [sample.took for sample in samples if sample.at < starting and sample.at + sample.took > gone]
    return {
        "exceptions": sum(sample.is_error for sample in samples),
        "p99 ms": percentile(down, 99) * 1000,
        "back s": back,
        "degraded after": sum(not sample.is_decided for sample in samples if settled < sample.at < ended - 0.1),
    }


def statuses(colour: str, on_outage: str) -> Figures:
    """Send 40 requests to an application of 10 an hour, whose store was killed."""
    send = _asgi if colour == "async" else _wsgi
    with serving() as server:
        options = {"store": server.url, "default": "100/h", "rules": {"/x": "10/h"}, "on_outage": on_outage}
        counts = Counter(send(options, lambda: stop_server(server)))
    known = {f"status {status}": counts.pop(status, 0) for status in (200, 429, 503)}
    return known | {"others": counts.total()}


def _asgi(options: dict[str, Any], kill: Any) -> list[int]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> list[int]:
        transport = httpx2.ASGITransport(app=AsgiMiddleware(app, **options))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            await client.get("/warm")
            kill()
            return [(await client.get("/x")).status_code for _ in range(40)]

    return asyncio.run(run())


def _wsgi(options: dict[str, Any], kill: Any) -> list[int]:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b""]

    transport = httpx2.WSGITransport(app=WsgiMiddleware(app, **options))
    with httpx2.Client(transport=transport, base_url="http://test") as client:
        client.get("/warm")
        kill()
        return [client.get("/x").status_code for _ in range(40)]


def share(maker: Maker, crowd: Crowd) -> Figures:
    """Let 8 processes count an eighth each while nobody is there."""
    work = Work(maker, f"redis://127.0.0.1:{free_port()}", most=1000, subject="u", checks=300, width=10, instances=8)
    tally = crowd.run(work)
    return {"admitted": tally.admitted, "exceptions": tally.errors}


def restart(maker: Maker) -> Figures:
    """Restart a server ten times, and check once as soon as it answers."""
    port, samples = free_port(), []
    with maker.open(f"redis://127.0.0.1:{port}") as driver:
        with serving(port=port):
            _settle(driver)
        for _ in range(10):
            with serving(port=port):
                samples.append(driver.check(PLENTY))
                _settle(driver)
    return {
        "exceptions": sum(sample.is_error for sample in samples),
        "median ms": statistics.median(sample.took for sample in samples) * 1000,
        "decided": sum(sample.is_decided for sample in samples),
    }


def _settle(driver: Driver) -> None:
    """Check until the store decides again: every restart is met by a limiter that is well."""
    deadline = time.monotonic() + 5
    while not driver.check(PLENTY).is_decided and time.monotonic() < deadline:
        time.sleep(0.05)
