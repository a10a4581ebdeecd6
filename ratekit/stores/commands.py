"""Commands past the script, for administration: a flow is written once, and driven with or without await.

A flow is a generator: it yields a Batch or Nodes and is sent the replies. A command of a batch of several that failed has a
StoreOutage in its place; if the store cannot be asked at all, or a single command fails, the flow ends in
RateLimitUnavailable.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from ratekit import stores
from ratekit.errors import ConfigurationError, RateLimitUnavailable
from ratekit.keys import DEFAULT_PREFIX, check_prefix
from ratekit.limiter import AsyncRateLimiter, RateLimiter
from ratekit.outage import Outage, StoreOutage

Result = TypeVar("Result")
Command = tuple[Any, ...]
_ANY_DEADLINE = 1.0  # of stores that are open already


class Batch(NamedTuple):
    """Commands to run, in one round trip where that is possible. One that has no key needs a node of a cluster."""

    commands: tuple[Command, ...]
    node: str = ""


class Nodes(NamedTuple):
    """Asks for the names of a cluster's primaries, in order; what is no cluster is one node without a name."""


Step = Batch | Nodes
Flow = Generator[Step, Any, Result]


def drive(target: Any, flow: Flow[Any]) -> Any:
    """Drive a flow on a limiter, a store or a client; returns its result or, if that is asynchronous, one to be awaited."""
    if isinstance(target, str) or target is None:
        raise ConfigurationError(f"store {target!r} is neither a client nor a limiter: make one of it, RateLimiter(url)")
    store = target.store if isinstance(target, RateLimiter | AsyncRateLimiter) else target
    if getattr(store, "is_local", False):
        return _at_once(store, flow) if isinstance(target, AsyncRateLimiter) else _in_memory(store, flow)
    if is_async_store(store):
        return _awaiting(stores.open_async_store(store, _ANY_DEADLINE), flow)
    return _waiting(stores.open_store(store, _ANY_DEADLINE), flow)


def prefix_of(target: Any, prefix: str | None) -> str:
    """Return the prefix of keys that was given, else that of the limiter, else the default one."""
    if prefix is None:
        return target.prefix if isinstance(target, RateLimiter | AsyncRateLimiter) else DEFAULT_PREFIX
    return check_prefix(prefix)


def is_async_store(target: Any) -> bool:
    """Whether what is asked of a limiter, a store or a client has to be awaited."""
    from ratekit.stores.redis import is_async

    if isinstance(target, RateLimiter | AsyncRateLimiter):
        return isinstance(target, AsyncRateLimiter)
    return is_async(target) or (hasattr(target, "run") and hasattr(target, "aclose") and not target.is_local)


def _in_memory(store: Any, flow: Flow[Result]) -> Result:
    def answer(step: Step) -> list[Any]:
        if isinstance(step, Nodes):
            return [""]
        replies = [_caught(store, command) for command in step.commands]
        return replies if len(replies) > 1 else [answered(reply) for reply in replies]

    return _drive(flow, answer)


async def _at_once(store: Any, flow: Flow[Result]) -> Result:
    return _in_memory(store, flow)


def _waiting(store: Any, flow: Flow[Result]) -> Result:
    client = store.client

    def answer(step: Step) -> list[Any]:
        with _outages(client):
            return _replies(client, step, _send(client, step))

    return _drive(flow, answer)


async def _awaiting(store: Any, flow: Flow[Result]) -> Result:
    client = await store.client()
    step = next(flow)
    while True:
        with _outages(client):
            replies = _replies(client, step, await _sent(client, step))
        try:
            step = flow.send(replies)
        except StopIteration as end:
            result: Result = end.value
            return result


def _drive(flow: Flow[Result], answer: Any) -> Result:
    step = next(flow)
    while True:
        try:
            step = flow.send(answer(step))
        except StopIteration as end:
            result: Result = end.value
            return result


def _send(client: Any, step: Step) -> Any:
    """Send a step by a client of either colour: what it answers is the reply, or to be awaited."""
    if isinstance(step, Nodes):
        return _primaries(client)
    if len(step.commands) == 1:
        return client.execute_command(*step.commands[0], **_target(client, step.node))
    pipeline = client.pipeline(transaction=False) if not _is_cluster(client) else client.pipeline()
    for command in step.commands:
        pipeline.execute_command(*command)
    return pipeline.execute(raise_on_error=False)


async def _sent(client: Any, step: Step) -> Any:
    if _is_cluster(client):
        await client.initialize()  # before, it knows no node
    answer = _send(client, step)
    return answer if isinstance(step, Nodes) else await answer


def _replies(client: Any, step: Step, answer: Any) -> list[Any]:
    if isinstance(step, Batch) and len(step.commands) == 1:
        return [answer]
    return [_outage(client, item) if isinstance(item, Exception) else item for item in answer]


def _is_cluster(client: Any) -> bool:
    return hasattr(client, "get_primaries")


def _primaries(client: Any) -> list[str]:
    return sorted(node.name for node in client.get_primaries()) if _is_cluster(client) else [""]


def _target(client: Any, node: str) -> dict[str, Any]:
    return {"target_nodes": client.get_node(node_name=node)} if node else {}


@contextmanager
def _outages(client: Any) -> Iterator[None]:
    from ratekit.stores.asking import errors_of

    try:
        yield
    except (errors_of(client).every, OSError) as error:
        raise RateLimitUnavailable(str(_outage(client, error))) from error


def _outage(client: Any, error: Exception) -> StoreOutage:
    from ratekit.stores.asking import errors_of, outage_of

    return StoreOutage(outage_of(error, errors_of(client)) or Outage("error", str(error), is_fault=True))


def _caught(store: Any, command: Command) -> Any:
    try:
        return store.execute(*command)
    except StoreOutage as error:
        return error


def scan(pattern: str, size: int, cursor: str | None = None) -> Flow[tuple[list[str], str | None]]:
    """Look at about so many keys: those that match, and the cursor of the next ones, None at the end.

    Nodes of a cluster come one after the other; a cursor has the name of its node in it.
    """
    nodes = yield Nodes()
    node, _, position = (cursor or f"{nodes[0]}/0").rpartition("/")
    if not position.isdecimal():
        raise ConfigurationError(f"cursor {cursor!r} is not one that a page has given")
    if node not in nodes:  # it has left the cluster: go on with the one after it
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
    """Return a reply of a batch, or raise RateLimitUnavailable if its command failed."""
    if isinstance(reply, StoreOutage):
        raise RateLimitUnavailable(str(reply)) from reply
    return reply


def as_texts(fields: Any) -> dict[str, str]:
    """Return the fields of a hash as texts: a client answers with a mapping, the embedded store with a flat list."""
    pairs = fields.items() if isinstance(fields, Mapping) else zip(fields[::2], fields[1::2], strict=True)
    return {as_text(name): as_text(value) for name, value in pairs}


def as_text(value: Any) -> str:
    """Return a reply as a text; clients may decode by themselves."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
