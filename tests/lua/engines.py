"""Where the script runs in these tests: in the process, by either engine of Lua, and in Redis."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, settings
from lua.models import Request

from ratekit import Policy, RateLimiter, RateLimitResult
from ratekit.core.keys import override_key
from ratekit.core.protocol import Call, encode
from ratekit.stores.memory import MemoryStore
from ratekit.testing import VirtualClock

ENDPOINT = "search"
START = 1_800_000_000.25
FUZZ = int(os.environ.get("RATEKIT_FUZZ", "1"))


@dataclass(frozen=True)
class Bench:
    """A limiter, and one subject that nobody has used before."""

    limiter: RateLimiter
    command: Callable[..., Any]
    subject: str

    def send(self, policy: Policy, request: Request) -> RateLimitResult:
        ask = getattr(self.limiter, request.operation)
        if request.slot is not None:
            return ask(policy, self.subject, request.slot)
        cost = {} if request.operation == "reset" else {"cost": request.cost}
        return ask(policy, self.subject, **cost)

    def override(self, fields: dict[str, str]) -> None:
        key = override_key("ratelimit", ENDPOINT, self.subject)
        self.command("DEL", key)
        if fields:
            self.command("HSET", key, *(item for pair in fields.items() for item in pair))

    def keys(self, policy: Policy) -> list[str]:
        """The keys of its state that exist, in the policy's order."""
        names = [name.decode() for name in encode(policy, self.subject).state_keys]
        return [name for name in names if self.command("EXISTS", name)]

    def dump(self, policy: Policy) -> dict[str, Any]:
        return {key: self._dump(key) for key in self.keys(policy)}

    def _dump(self, key: str) -> Any:
        if not isinstance(self.limiter.store, MemoryStore):
            return self.command("DUMP", key)
        is_set = "@sliding_window_log" in key or "@concurrency" in key
        items = self.command("ZRANGE", key, 0, -1, "WITHSCORES") if is_set else self.command("HGETALL", key)
        return sorted(map(str, items)), self.command("PTTL", key)


@dataclass(frozen=True)
class Engine:
    """Where the script runs. In Redis keys expire by real time, so windows last longer than an example takes."""

    make: Callable[[], Bench]
    clock: VirtualClock
    is_local: bool

    def open(self) -> Bench:
        """Begin an example, always at the same time."""
        self.clock.set(START)
        return self.make()

    @property
    def windows(self) -> tuple[float, ...]:
        return (0.0005, 0.5, 1, 2.5, 10, 60, 900) if self.is_local else (2, 2.5, 10, 60, 900)

    def examples(self, count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """So many examples, fewer on a server; `make fuzz` tries a multiple."""
        return settings(
            max_examples=(count if self.is_local else max(count // 8, 10)) * FUZZ,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )


def memory_bench(engine: str | None = None) -> Bench:
    store = MemoryStore(engine)
    return Bench(RateLimiter(store, on_outage="closed"), store.execute, "user:1")


def redis_bench(client: Any) -> Bench:
    return Bench(RateLimiter(client, on_outage="closed"), client.execute_command, uuid.uuid4().hex)


def as_not_plain(call: Call) -> Call:
    """The same call of fixed windows, said to be by a policy that is not plain: then the general path decides it."""
    step = 4 if call.compiled.has_positions else 3  # items of a limit, of which the flags are the first
    items = [b"%d" % (int(item) + 8) if at % step == 0 else item for at, item in enumerate(call.compiled.items)]
    return call._replace(compiled=replace(call.compiled, items=tuple(items)))
