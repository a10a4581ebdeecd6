"""Commands past the script, for administration. A flow of commands is written once, and driven with or without await.

A flow is a generator: it yields a Batch or Nodes, and is sent the replies. If a command of several failed, a StoreOutage
takes the place of its reply. If the store cannot be reached, or a single command fails, the flow ends in
RateLimitUnavailable.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeVar

from ratekit import stores
from ratekit.core.errors import ConfigurationError, RateLimitUnavailable
from ratekit.core.keys import DEFAULT_PREFIX, check_prefix
from ratekit.core.outages import StoreOutage
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.stores.contract import AsyncClient, AsyncStore, Command, Reply, Store, SyncClient

Result = TypeVar("Result")
Target = RateLimiter | AsyncRateLimiter | Store | AsyncStore | SyncClient | AsyncClient
_ANY_DEADLINE = 1.0  # of a store that is made for a client: commands use the client's own timeout


class Batch(NamedTuple):
    """Commands to run, in one round trip where that is possible. A command without a key needs a node of a Cluster."""

    commands: tuple[Command, ...]
    node: str = ""


class Nodes(NamedTuple):
    """A request for the sorted names of a Cluster's primaries, or [""] for any other store."""


Step = Batch | Nodes
Flow = Generator[Step, Any, Result]


def drive(target: Target, flow: Flow[Any]) -> Any:
    """Run a flow on a limiter, a store or a client. Returns its result, or an awaitable of it where that is asynchronous."""
    if isinstance(target, str) or target is None:
        raise ConfigurationError(f"store {target!r} is neither a client nor a limiter: make one of it, RateLimiter(url)")
    if isinstance(target, AsyncRateLimiter):
        return _run_async(target.store, flow)
    if isinstance(target, RateLimiter):
        return _run(target.store, flow)
    if is_async_store(target):
        return _run_async(stores.open_async_store(target, _ANY_DEADLINE), flow)  # type: ignore[arg-type]
    return _run(stores.open_store(target, _ANY_DEADLINE), flow)  # type: ignore[arg-type]


def prefix_of(target: Any, prefix: str | None) -> str:
    """Return the prefix of keys that is given, else that of the limiter, else the default."""
    if prefix is None:
        return target.prefix if isinstance(target, RateLimiter | AsyncRateLimiter) else DEFAULT_PREFIX
    return check_prefix(prefix)


def is_async_store(target: object) -> bool:
    """Whether a limiter, a store or a client is asynchronous."""
    if isinstance(target, RateLimiter | AsyncRateLimiter):
        return isinstance(target, AsyncRateLimiter)
    return stores.is_async(target)


def _run(store: Store, flow: Flow[Result]) -> Result:
    try:
        step = next(flow)
        while True:
            replies = store.nodes() if isinstance(step, Nodes) else _checked(store.execute_many(*step))
            step = flow.send(replies)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except StoreOutage as outage:
        raise RateLimitUnavailable(str(outage)) from outage


async def _run_async(store: AsyncStore, flow: Flow[Result]) -> Result:
    try:
        step = next(flow)
        while True:
            replies = await store.nodes() if isinstance(step, Nodes) else _checked(await store.execute_many(*step))
            step = flow.send(replies)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except StoreOutage as outage:
        raise RateLimitUnavailable(str(outage)) from outage


def _checked(replies: list[Reply]) -> list[Reply]:
    return replies if len(replies) > 1 else [answered(reply) for reply in replies]


def scan(pattern: str, size: int, cursor: str | None = None) -> Flow[tuple[list[str], str | None]]:
    """Scan about so many keys. Returns those that match, and the cursor of the next ones, or None at the end.

    The nodes of a Cluster are scanned one after the other; a cursor contains the name of its node.
    """
    nodes = yield Nodes()
    node, _, position = (cursor or f"{nodes[0]}/0").rpartition("/")
    if not position.isdecimal():
        raise ConfigurationError(f"cursor {cursor!r} is not one that a page has given")
    if node not in nodes:  # it has left the Cluster: go on with the next one
        node, position = min((name for name in nodes if name > node), default=""), "0"
        if not node:
            return [], None
    ((position, found),) = yield Batch((("SCAN", position, "MATCH", pattern, "COUNT", size),), node)
    return [as_text(key) for key in found], _next_cursor(nodes, node, position)


def _next_cursor(nodes: list[str], node: str, position: Any) -> str | None:
    position = next(iter(position.values())) if isinstance(position, Mapping) else position
    if int(position):
        return f"{node}/{int(position)}"
    after = [name for name in nodes if name > node]
    return f"{after[0]}/0" if after else None


def answered(reply: Any) -> Any:
    """Return a reply of a batch. Raises RateLimitUnavailable if its command failed."""
    if isinstance(reply, StoreOutage):
        raise RateLimitUnavailable(str(reply)) from reply
    return reply


def as_texts(fields: Any) -> dict[str, str]:
    """Return the fields of a hash as texts: a client replies with a mapping, the memory store with a flat list."""
    pairs = fields.items() if isinstance(fields, Mapping) else zip(fields[::2], fields[1::2], strict=True)
    return {as_text(name): as_text(value) for name, value in pairs}


def as_text(value: Any) -> str:
    """Return a reply as a text. Some clients decode replies themselves."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
