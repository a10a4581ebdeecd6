"""`ratekit serve` as a process, with a tenant, a plan and a key, for tests of proxies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from support.gateways import process
from support.servers import free_port

TOKEN = "a-token-for-administration"
LIMIT = 5


class GatewayService(NamedTuple):
    """A running service, and what proxies and administrators need of it."""

    port: int
    program: Any
    tenant_id: str
    plan_id: str
    key: str

    def admin(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """Ask as an administrator."""
        return _admin(self.port, method, path, body)


def _admin(port: int, method: str, path: str, body: dict[str, Any]) -> Any:
    url = f"http://127.0.0.1:{port}/v1/admin/{path}"
    answer = httpx2.request(method, url, json=body, headers={"authorization": f"Bearer {TOKEN}"}, timeout=20)
    assert answer.is_success, answer.text
    return answer.json()


@contextmanager
def serving(folder: Path, store: str, *options: str, **environment: str) -> Iterator[GatewayService]:
    """Run the service. Its plan has five requests a day, and a busy machine is no reason to let one pass undecided."""
    port = free_port()
    variables = {
        "RATEKIT_ADMIN_TOKEN": TOKEN, "RATEKIT_DATABASE_URL": f"sqlite:///{folder}/ratekit.db", "RATEKIT_DEADLINE": "10",
        "RATE_LIMIT_STORE_URL": store, "RATEKIT_LOG_CHECKS": "none",
    }  # fmt: skip
    command = [sys.executable, "-m", "ratekit.cli", "serve", "--port", str(port), *options]
    with process(command, port, folder, **(variables | environment)) as program:
        tenant = _admin(port, "POST", "tenants", {"name": "acme"})["id"]
        numbers = {"algorithm": "fixed_window", "limit": LIMIT, "window_seconds": 86_400}
        plan = _admin(port, "POST", "plans", {"tenant_id": tenant, "name": "pro"} | numbers)["id"]
        key = _admin(port, "POST", "keys", {"tenant_id": tenant, "name": "proxy", "plan_id": plan})["key"]
        yield GatewayService(port, program, tenant, plan, key)
