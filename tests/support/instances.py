"""Instances of the check service, each a process of `ratekit serve` that leads a session of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from support.servers import end_group, free_port, wait_until

TOKEN = "a-token-for-administration"
ADMIN = {"authorization": f"Bearer {TOKEN}"}


@dataclass
class Instance:
    """One running instance."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> None:
        """Kill it, with its workers."""
        end_group(self.process)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        return httpx2.request(method, self.url + path, json=body, headers=headers, timeout=20)

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.ask(method, f"/v1/admin{path}", body, **ADMIN)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def check(self, key: str, **others: Any) -> httpx2.Response:
        return self.ask("POST", "/v1/check", {"resource": "r", "subject": "s", **others}, **{"x-api-key": key})

    @property
    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(self.log.read_text())
        try:
            return self.ask("GET", "/v1/ready").status_code == 200
        except httpx2.TransportError:
            return False


def start(folder: Path, database: str, store: str, *options: str, **environment: str) -> Instance:
    port = free_port()
    log = folder / f"{port}.log"
    variables = {"RATEKIT_ADMIN_TOKEN": TOKEN, "RATEKIT_DATABASE_URL": database, "RATE_LIMIT_STORE_URL": store}
    variables["RATEKIT_DEADLINE"] = "5"  # a busy machine is not an outage of the store
    command = [sys.executable, "-m", "ratekit.cli", "serve", "--port", str(port), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | variables | environment,
            cwd=folder,
            start_new_session=True,
        )
    return Instance(f"http://127.0.0.1:{port}", process, log)


@contextmanager
def instances(count: int, folder: Path, database: str, store: str, *options: str) -> Iterator[list[Instance]]:
    """Run so many instances at once, until all are ready."""
    with ExitStack() as stack:
        started = [start(folder, database, store, "--log-checks", "none", *options) for _ in range(count)]
        for one in started:
            stack.callback(one.end)
        for one in started:
            wait_until(lambda one=one: one.is_ready, f"{one.url} is not ready", 90)
        yield started


def tenant(instance: Instance, **definition: Any) -> tuple[str, str, str]:
    tenant_id = instance.admin("POST", "/tenants", {"name": "acme"})["id"]
    plan = {"tenant_id": tenant_id, "name": "pro", **(definition or {"limits": ["100/h"]})}
    plan_id = instance.admin("POST", "/plans", plan)["id"]
    key = instance.admin("POST", "/keys", {"tenant_id": tenant_id, "name": "app", "plan_id": plan_id})
    return tenant_id, plan_id, key["key"]


async def crowd(urls: list[str], key: str, count: int, workers: int = 16) -> list[int]:
    """Send so many checks through all instances at once, and return the statuses; an instance that is gone gives 0."""
    statuses: list[int] = []
    waiting = iter(range(count))

    async def worker(client: httpx2.AsyncClient) -> None:
        for number in waiting:
            try:
                answer = await client.post(
                    f"{urls[number % len(urls)]}/v1/check",
                    json={"resource": "r", "subject": "s"},
                    headers={"x-api-key": key},
                )
                statuses.append(answer.status_code)
            except httpx2.TransportError:
                statuses.append(0)

    async with httpx2.AsyncClient(timeout=20) as client:
        await asyncio.gather(*(worker(client) for _ in range(workers)))
    return statuses


def seconds_until(condition: Any) -> float:
    begun = time.monotonic()
    return wait_until(condition, "it was not seen") - begun
