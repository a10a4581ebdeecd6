"""The check service beside applications that do nothing: uvicorn, one worker, 64 connections by wrk, a real Redis.

A sample is the time of a request while wrk asks for as many as the worker can serve, or of one check where several are in a
request. The tail is that of the same worker: its 99th percentile over its median.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from benchmarks import server
from benchmarks.rounds import Case, Pair, Row, measure
from benchmarks.settings import Settings

_SECTION = "service"
_CONNECTIONS, _SECONDS = 64, 1
_MOST_ROUNDS = 9
_BATCH = 50
_TOKEN = "a-token-for-the-benchmark"
_CHECK = {"resource": "GET:/orders", "subject": "user:42"}


def compare_service(settings: Settings) -> list[Row]:
    """Measure /v1/check, with metrics and without log lines, beside applications that do nothing."""
    if shutil.which("wrk") is None:
        print("service: skipped, as the program wrk is not installed", file=sys.stderr)
        return []
    rounds = min(settings.rounds, _MOST_ROUNDS)
    with ExitStack() as stack:
        redis = stack.enter_context(server.running(settings.server)) + "?socket_timeout=2"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        quiet = stack.enter_context(_service(folder / "quiet.db", redis))
        loud = stack.enter_context(_service(folder / "loud.db", redis, RATEKIT_LOG_CHECKS="all", RATEKIT_TRACING="on"))
        crowded = stack.enter_context(_service(folder / "crowded.db", redis, keys=100_000, plans=1_000))
        few = stack.enter_context(_service(folder / "few.db", redis, keys=10, plans=10))
        others = [stack.enter_context(_service(folder / "quiet.db", redis, is_seeded=True)) for _ in range(2)]
        fastapi = stack.enter_context(_nothing("fastapi_nothing", folder))
        asgi = stack.enter_context(_nothing("asgi_nothing", folder))
        check, batch = quiet.case(_CHECK), quiet.case({"checks": [_CHECK] * _BATCH}, "/v1/check/batch", _BATCH)
        pairs = [
            Pair("/v1/check on Redis / FastAPI route that does nothing", check, fastapi, 1 / 2),
            Pair("/v1/check on Redis / ASGI application that does nothing", check, asgi, 1 / 0.45),
            Pair("99th percentile / median of /v1/check", quiet.tail, lambda: 1.0, 2.5),
            Pair(f"one check of a batch of {_BATCH} / one alone", batch, check, 1 / 8),
            Pair("with 100 000 keys and 1 000 plans / with ten of each", crowded.case(_CHECK), few.case(_CHECK), 1.1),
            Pair("with a log line and a span for each check / without", loud.case(_CHECK), check),
            Pair("a change reaches two other instances, in seconds", lambda: _change_seconds(quiet, others), lambda: 1.0, 1),
            Pair("start until ready, in seconds", lambda: _start_seconds(folder, redis), lambda: 1.0, 1.5),
        ]
        return measure(_SECTION, pairs, rounds)


class _Served:
    """A running service, and a key for it."""

    def __init__(self, url: str, key: str, folder: Path) -> None:
        self.url, self._key, self._folder = url, key, folder
        self._tail = 0.0

    def case(self, body: Any, path: str = "/v1/check", checks: int = 1) -> Case:
        """Return a case that sends a body as often as it can, and returns what one check took."""
        script = self._folder / f"{time.monotonic_ns()}.lua"
        headers = {"content-type": "application/json", "x-api-key": self._key}
        lines = [f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in headers.items()]
        script.write_text("\n".join(["wrk.method = 'POST'", *lines, f"wrk.body = {json.dumps(json.dumps(body))}"]))

        def sample() -> float:
            seconds, self._tail = _wrk(self.url + path, script)
            return seconds / checks

        return sample

    def tail(self) -> float:
        """Return the 99th percentile over the median, of a second of checks."""
        self.case(_CHECK)()
        return self._tail


@contextmanager
def _service(
    database: Path, store: str, *, keys: int = 1, plans: int = 1, is_seeded: bool = False, **variables: str
) -> Iterator[_Served]:
    url = f"sqlite:///{database}"
    key = "" if is_seeded else _seed(url, keys, plans)
    port = server.free_port()
    environment = {"RATEKIT_DATABASE_URL": url, "RATE_LIMIT_STORE_URL": store, "RATEKIT_ADMIN_TOKEN": _TOKEN}
    environment |= {"RATEKIT_LOG_CHECKS": "none", "RATEKIT_TRACING": "off"} | variables
    command = [sys.executable, "-m", "ratekit.cli", "serve", "--port", str(port)]
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with server.web_server(command, port, env=os.environ | environment, **output) as address:
        yield _Served(address, key, database.parent)


def _seed(url: str, keys: int, plans: int) -> str:
    """Make the tables with a tenant, plans and keys, and return one of the keys."""
    from sqlalchemy import insert

    from ratekit.database import engines, migrate, schema
    from ratekit_service.keys.secrets import make_key

    migrate.upgrade(url)
    made = [make_key("live") for _ in range(keys)]
    engine = engines.open_engine(url)
    limits = {"limits": [f"{10**9}/min"]}
    rows = [
        {"id": f"plan_{n}", "tenant_id": "ten_1", "name": f"p{n}", "definition": limits, "version": 2} for n in range(plans)
    ]
    kept = [
        {
            "id": key.id,
            "tenant_id": "ten_1",
            "name": "app",
            "kind": "live",
            "plan_id": f"plan_{n % plans}",
            "salt": key.salt,
            "key_hash": key.key_hash,
            "scopes": ["check", "read"],
            "version": 2,
        }
        for n, key in enumerate(made)
    ]
    with engine.begin() as connection:
        connection.execute(insert(schema.tenants).values(id="ten_1", name="acme", version=2))
        connection.execute(insert(schema.plans), rows)
        connection.execute(insert(schema.api_keys), kept)
    engine.dispose()
    return made[-1].text


@contextmanager
def _nothing(name: str, folder: Path) -> Iterator[Case]:
    """Run an application that does nothing with the very same requests."""
    port = server.free_port()
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.service_apps:{name}", "--port", str(port)]
    with server.web_server([*command, "--log-level", "warning", "--no-access-log"], port) as url:
        yield _Served(url, "", folder).case(_CHECK)


def _wrk(address: str, script: Path) -> tuple[float, float]:
    """Return the seconds of one request, and the 99th percentile over the median."""
    command = ["wrk", "-t1", f"-c{_CONNECTIONS}", f"-d{_SECONDS}s", "--latency", "-s", str(script), address]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    rate = re.search(r"Requests/sec:\s*([\d.]+)", output)
    if rate is None or "Non-2xx" in output:
        raise RuntimeError(f"wrk did not measure what it should: {output}")
    return 1 / float(rate[1]), _latency(output, "99%") / _latency(output, "50%")


def _latency(output: str, share: str) -> float:
    match = re.search(rf"{share}\s+([\d.]+)(us|ms|s)", output)
    assert match is not None
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]


def _start_seconds(folder: Path, store: str) -> float:
    """Return how long an instance takes until it is ready, on a database that is there."""
    url = f"sqlite:///{folder}/quiet.db"
    port = server.free_port()
    variables = {"RATEKIT_DATABASE_URL": url, "RATE_LIMIT_STORE_URL": store, "RATEKIT_ADMIN_TOKEN": _TOKEN}
    begun = time.monotonic()
    command = [sys.executable, "-m", "ratekit.cli", "serve", "--port", str(port)]
    output: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with server.web_server(command, port, env=os.environ | variables, **output) as address:
        return server.wait_until(_answering(f"{address}/v1/ready"), "it is not ready") - begun


def _change_seconds(writer: _Served, others: Sequence[_Served]) -> float:
    """Return how long a write takes from its answer until two other instances have it."""
    headers = {"authorization": f"Bearer {_TOKEN}", "content-type": "application/json"}
    name = json.dumps({"name": f"acme {time.monotonic_ns()}"}).encode()
    with urlopen(Request(f"{writer.url}/v1/admin/tenants/ten_1", name, headers, method="PATCH"), timeout=5) as answer:
        answer.read()
    begun, version = time.monotonic(), _version(writer)
    reached = [server.wait_until(lambda one=one: _version(one) >= version, "a change was not seen") for one in others]
    return max(reached) - begun


def _version(served: _Served) -> int:
    with urlopen(f"{served.url}/v1/ready", timeout=5) as answer:
        return int(json.load(answer)["config_version"])


def _answering(url: str) -> Callable[[], bool]:
    def answers() -> bool:
        with urlopen(Request(url), timeout=5) as answer:
            return bool(answer.status == 200)

    return answers
