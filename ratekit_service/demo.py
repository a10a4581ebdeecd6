"""The demo: a tenant with a plan of every algorithm and a key, in places of its own, and a word about what to try."""

from __future__ import annotations

import dataclasses
import secrets
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from ratekit import stores
from ratekit.database import schema, urls
from ratekit_service.administration import new_id
from ratekit_service.checks.front import App, Front, Receive, Scope, Send
from ratekit_service.database import Write
from ratekit_service.keys.secrets import NewKey, make_key
from ratekit_service.page.trials import TENANT, TENANT_LIMIT
from ratekit_service.service import Service
from ratekit_service.settings import Settings, variable_of

PLANS: dict[str, dict[str, Any]] = {
    "token_bucket": {"algorithm": "token_bucket", "bucket_capacity": 10, "refill_rate_per_sec": 2},
    "fixed_window": {"algorithm": "fixed_window", "limit": 10, "window_seconds": 10},
    "sliding_window": {"algorithm": "sliding_window", "limit": 10, "window_seconds": 10},
    "sliding_window_counter": {"algorithm": "sliding_window_counter", "limit": 10, "window_seconds": 10},
    "concurrency": {"algorithm": "concurrency", "limit": 3, "stale_after_seconds": 30},
}
_PRINTED = "demo_"  # how tokens begin that the demo has made; one that is configured is not printed
_TEXT = """
ratekit is listening on {url}

  page                {url}/
  API documentation   {url}/docs
  metrics             {url}/metrics
  admin token         {token}
  demo key            {key}
  kept                counters in this process, the rest in a temporary file: gone when it ends

Allowed ten times in ten seconds, then refused:
  for i in $(seq 12); do curl -s -o /dev/null -w '%{{http_code}} ' {url}/v1/check -H 'x-api-key: {key}' \\
    -H 'content-type: application/json' -d '{{"resource":"GET:/orders","subject":"user:42"}}'; done; echo

Ctrl-C ends it.
"""


def apart(settings: Settings, folder: Path) -> Settings:
    """Return settings with a store and a database that nobody else has, and a token. Says so if others are configured."""
    configured = {"store_url": stores.DEFAULT_URL, "database_url": urls.DEFAULT_URL}
    ignored = [variable_of(name) for name, default in configured.items() if getattr(settings, name) != default]
    if ignored:
        sys.stderr.write(f"The demo ignores {' and '.join(ignored)}: it has a store and a database of its own.\n")
    return dataclasses.replace(
        settings,
        store_url=stores.DEFAULT_URL,
        database_url=f"sqlite:///{folder}/ratekit.db",
        admin_token=settings.admin_token or _PRINTED + secrets.token_hex(16),
    )


def seeded(front: Front) -> App:
    """Return the application, which makes the demo's tenant when it has started."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await front(scope, receive, send)
            return

        async def watch(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                _tell(front.service, await seed(front.service))
            await send(message)

        await front(scope, receive, watch)

    return wrapped


async def seed(service: Service) -> str:
    """Make the demo's tenant, plans and key, in a database that has no tenant of that name. Returns the key."""
    made = await service.database.write(lambda write: _seed(write, service.settings.key_pepper), "demo")
    await service.refresher.refresh()
    service.demo_key = made.text
    return made.text


def _seed(write: Write, pepper: str) -> NewKey:
    settings = {"service_limit": TENANT_LIMIT}  # the page hands the key to whoever opens it
    tenant_id = write.insert(schema.tenants, "tenant", {"id": new_id("ten"), "name": TENANT, "settings": settings})
    plans = {}
    for name, definition in PLANS.items():
        values = {"id": new_id("plan"), "tenant_id": tenant_id, "name": name, "definition": definition}
        plans[name] = write.insert(schema.plans, "plan", values)
    write.update(schema.tenants, "tenant", tenant_id, {"default_plan_id": plans["fixed_window"]})
    rule = {"tenant_id": tenant_id, "client_key": "*", "endpoint": "*", "algorithm": "token_bucket"}
    write.insert(schema.rules, "rule", {**rule, "max_requests": 60, "window_secs": 60, "burst_size": 10})
    made = make_key("test", pepper)
    kept = {"id": made.id, "salt": made.salt, "key_hash": made.key_hash, "scopes": ["check", "read", "charge"]}
    write.insert(schema.api_keys, "key", {**kept, "tenant_id": tenant_id, "name": "demo", "kind": "test"})
    return made


def _tell(service: Service, key: str) -> None:
    settings = service.settings
    scheme = "https" if settings.tls_certificate else "http"
    url = f"{scheme}://{settings.host}:{settings.port}"
    token = settings.admin_token if settings.admin_token.startswith(_PRINTED) else f"that of {variable_of('admin_token')}"
    sys.stderr.write(_TEXT.format(url=url, token=token, key=key))
    sys.stderr.flush()
