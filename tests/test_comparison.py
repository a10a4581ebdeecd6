"""docs/comparison.md: every plain cell is what the limiter does here; every other one leads to where it was read."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from fastapi import FastAPI, Request
from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from limits import RateLimitItemPerHour, parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from pyrate_limiter import Duration, InMemoryBucket, Limiter, Rate
from slowapi import Limiter as SlowLimiter
from slowapi.errors import RateLimitExceeded
from throttled import Throttled, per_hour
from throttled.exceptions import BaseThrottledError, StoreUnavailableError

from ratekit import Limit, Policy, RateLimiter
from ratekit.core.errors import ConfigurationError
from ratekit_fastapi import PathRateLimiter
from support import peers
from support.pages import ROOT
from support.peers import PEERS

PAGE = (ROOT / "docs/comparison.md").read_text()
LIBRARIES = {"limits", "throttled-py", "pyrate-limiter"}
NOT_ASKED = "\N{EN DASH}"
NOBODY = "redis://127.0.0.1:1"  # refuses connections
pytestmark = [
    pytest.mark.usefixtures("ratekit_store", "quiet"),
    pytest.mark.filterwarnings("ignore"),  # what other limiters warn of
]


@pytest.fixture
def quiet() -> Iterator[None]:
    """Peers log every refusal."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def table(text: str) -> dict[tuple[str, str], str]:
    """The cells of the tables between the marks, by row and limiter."""
    cells = {}
    for block in re.findall(r"<!-- comparison: begin -->\n(.*?)<!-- comparison: end -->", text, re.DOTALL):
        head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        cells |= {(row[0], peer): cell for row in rows for peer, cell in zip(head[1:], row[1:], strict=True)}
    return cells


CELLS = table(PAGE)
PLAIN = {place: cell for place, cell in CELLS.items() if not cell.startswith("[") and cell != NOT_ASKED}


def together(name: str) -> str:
    """Whether what one limit refuses has spent from the other, whichever of both stands first."""
    for limits in ([("user", 1), ("all", 3)], [("all", 3), ("user", 1)]):
        send = PEERS[name](limits)
        refused = [send("ann")[0] for _ in range(3)][1:]
        assert 200 not in refused
        if [send(user)[0] for user in ("bob", "cid")] != [200, 200]:
            return "windows of one caller" if name == "pyrate-limiter" and pyrate_windows_are_together() else "no"
    return "yes"


def pyrate_windows_are_together() -> bool:
    """Several rates of one bucket are tested before one is spent from."""
    bucket = InMemoryBucket([Rate(1, Duration.HOUR), Rate(3, Duration.DAY)])
    limiter = Limiter(bucket)
    assert [bool(limiter.try_acquire("ann", blocking=False)) for _ in range(3)] == [True, False, False]
    return bucket.count() == 1


def refused_cost(name: str) -> str:
    """Of three, two are spent, two more refused: is there still one?"""
    if name == "throttled-py" and not leaves_one(throttled_by("fixed_window")) and leaves_one(throttled_by("token_bucket")):
        return "not by `fixed_window`"
    return "yes" if leaves_one(SPENDING[name]()) else "no"


def leaves_one(spend: Callable[[int], bool]) -> bool:
    assert [spend(2), spend(2)] == [True, False]
    return spend(1)


def spending_slowapi() -> Callable[[int], bool]:
    app, limiter = FastAPI(), SlowLimiter(key_func=lambda: "ann")
    app.state.limiter = limiter

    @app.exception_handler(RateLimitExceeded)
    async def refuse(request: Request, error: Exception) -> Any:
        from starlette.responses import Response

        return Response(status_code=429)

    @app.get("/items/{item}")
    @limiter.limit("3/hour", cost=lambda request: int(request.headers["X-User"]))
    async def read(request: Request, item: int) -> dict[str, int]:
        return {"item": item}

    send = peers.asking_starlette(app)
    # its key is the path: one path for all costs
    return lambda cost: send(str(cost))[0] == 200


def spending_flask_limiter() -> Callable[[int], bool]:
    from flask import request

    app = Flask("peer")
    limiter = FlaskLimiter(lambda: "ann", app=app, storage_uri="memory://")

    @app.get("/items/<int:item>")
    @limiter.limit("3/hour", cost=lambda: int(request.headers["X-User"]))
    def read(item: int) -> str:
        return f"item {item}"

    send = peers.asking_flask(app)
    return lambda cost: send(str(cost))[0] == 200


def spending_ratekit() -> Callable[[int], bool]:
    limiter = RateLimiter("memory://")
    return lambda cost: limiter.check(Policy("cost", Limit(3, 3600)), "ann", cost=cost).allowed


def spending_limits() -> Callable[[int], bool]:
    limiter = FixedWindowRateLimiter(MemoryStorage())
    return lambda cost: limiter.hit(RateLimitItemPerHour(3), "ann", cost=cost)


def throttled_by(algorithm: str) -> Callable[[int], bool]:
    limiter = Throttled(key=algorithm, quota=per_hour(3), using=algorithm)
    return lambda cost: not limiter.limit(cost=cost).limited


def spending_pyrate() -> Callable[[int], bool]:
    limiter = Limiter(Rate(3, Duration.HOUR))
    return lambda cost: bool(limiter.try_acquire("ann", weight=cost, blocking=False))


SPENDING = {
    "ratekit": spending_ratekit,
    "slowapi": spending_slowapi,
    "Flask-Limiter": spending_flask_limiter,
    "limits": spending_limits,
    "throttled-py": lambda: throttled_by("token_bucket"),
    "pyrate-limiter": spending_pyrate,
}


def at_once(name: str, url: str) -> str:
    """Twenty requests of one caller, at once."""
    send, start = PEERS[name]([("user", 5)], store=url), threading.Barrier(20)

    def ask(_: int) -> int:
        start.wait()
        return send()[0]

    with ThreadPoolExecutor(20) as threads:
        statuses = list(threads.map(ask, range(20)))
    assert 200 in statuses
    assert set(statuses) <= {200, 403, 429}
    return "never more" if statuses.count(200) <= 5 else "more may pass"


def headers(name: str) -> str:
    def has_them(**options: Any) -> bool:
        status, lines = PEERS[name]([("user", 2)], **options)()
        assert status == 200
        return any("remaining" in line.lower() for line in lines)

    if has_them():
        return "every answer"
    return "by option" if name in ("slowapi", "Flask-Limiter") and has_them(headers_enabled=True) else "no"


def refusal(name: str) -> str:
    send = PEERS[name]([("user", 1)])
    send()
    status, lines = send()
    return f"{status}, Retry-After" if "Retry-After" in lines else str(status)


def forwarded(name: str) -> str:
    send = PEERS[name]([("ip", 1)])
    statuses = [send(forwarded=f"192.0.2.{number}")[0] for number in (1, 2)]
    return "believed" if statuses == [200, 200] else "ignored"


def paths(name: str) -> str:
    send = PEERS[name]([("ip", 1)])
    return "two limits" if [send(path=f"/items/{item}")[0] for item in (1, 2)] == [200, 200] else "one limit"


def away(name: str) -> str:
    try:
        status, _ = PEERS[name]([("user", 1)], store=NOBODY)()
    except (redis.ConnectionError, StoreUnavailableError):
        assert name in LIBRARIES
        return "raises"
    return "passes" if status == 200 else str(status)


def misspelt(name: str) -> str:
    """What becomes of a rate that makes no sense."""
    try:
        send = MISSPELT[name]("5/fortnight")
    except (ConfigurationError, ValueError, BaseThrottledError):
        return "error at start"
    statuses = {send()[0] for _ in range(8)}
    return {(200,): "no limit", (200, 403): "five a second", (500,): "500"}[tuple(sorted(statuses))]


def slowapi_with(rate: str) -> peers.Send:
    app, limiter = FastAPI(), SlowLimiter(key_func=lambda: "ann")
    app.state.limiter = limiter

    @app.get("/items/{item}")
    @limiter.limit(rate)
    async def read(request: Request, item: int) -> dict[str, int]:
        return {"item": item}

    return peers.asking_starlette(app)


def flask_limiter_with(rate: str) -> peers.Send:
    app = Flask("peer")
    limiter = FlaskLimiter(lambda: "ann", app=app, storage_uri="memory://")

    @app.get("/items/<int:item>")
    @limiter.limit(rate)
    def read(item: int) -> str:
        return f"item {item}"

    return peers.asking_flask(app)


MISSPELT: dict[str, Callable[[str], Any]] = {
    "ratekit": lambda rate: PathRateLimiter(limits=rate),
    "slowapi": slowapi_with,
    "Flask-Limiter": flask_limiter_with,
    "django-ratelimit": lambda rate: peers.django_ratelimit([("ip", 5)], rate=rate),
    "DRF": lambda rate: peers.rest_framework([("ip", 5)], rate=rate),
    "limits": parse,
    "throttled-py": lambda rate: Throttled(quota=rate),
}
PROOFS: dict[str, Callable[..., str]] = {
    "several limits of one request, all or nothing": together,
    "a refused cost spends nothing": refused_cost,
    "20 requests at once, limit of 5, on Redis": at_once,
    "headers with what remains": headers,
    "a refusal": refusal,
    "`X-Forwarded-For` that a client makes up": forwarded,
    "`/items/1` and `/items/2`, by address": paths,
    "Redis refuses connections, by default": away,
    "the rate `5/fortnight`": misspelt,
}


@pytest.mark.parametrize(("row", "peer"), [pytest.param(*place, id="-".join(place)) for place in PLAIN])
def test_cell_is_what_the_limiter_does(row, peer, redis_server):
    arguments = (redis_server.url,) if PROOFS[row] is at_once else ()
    assert PROOFS[row](peer, *arguments) == PLAIN[row, peer]


def test_every_limiter_and_every_proof_is_in_the_tables():
    assert {peer for _, peer in CELLS} == set(PEERS)
    assert {row for row, _ in PLAIN} == set(PROOFS)


def test_every_link_of_a_cell_leads_somewhere():
    references = dict(re.findall(r"^\[([\w-]+)\]: (https://\S+)$", PAGE, re.MULTILINE))
    used = set(re.findall(r"\]\[([\w-]+)\]", PAGE))
    assert used == set(references)
    linked = [cell for cell in CELLS.values() if cell.startswith("[")]
    assert [cell for cell in linked if not re.fullmatch(r"\[.+\](\[[\w-]+\]|\([\w#-]+\.md\))", cell)] == []


def test_readme_says_the_same_of_each_limiter():
    shown = table((ROOT / "README.md").read_text())
    assert len({row for row, _ in shown}) >= 5
    assert {place: cell for place, cell in shown.items() if CELLS.get(place) != cell} == {}
