"""Clients of redis-py and valkey-py: which kind one is, and commands past the script through it, in both colours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ratekit.core.errors import ConfigurationError
from ratekit.core.outages import StoreOutage
from ratekit.stores.contract import Command, Reply
from ratekit.stores.redis.client_errors import any_outage_of, connecting_outage, errors_of


def is_async(client: object) -> bool:
    """Whether the commands of a client are awaited."""
    return inspect.iscoroutinefunction(getattr(client, "execute_command", None))


def is_cluster(client: object) -> bool:
    """Whether a client is that of a Cluster, where all keys of one call must be in one slot."""
    return hasattr(client, "get_primaries")


def timeout_of(client: Any) -> float | None:
    """Return the timeout that a client was made with. The client of a Cluster has no pool, but the options of its nodes."""
    owner = getattr(client, "connection_pool", client)
    seconds = getattr(owner, "connection_kwargs", {}).get("socket_timeout")
    return float(seconds) if seconds else None


def check_client(client: object) -> None:
    """Raise ConfigurationError for a client whose own retries cannot be left out: a retried call counts twice."""
    errors_of(client)
    if not is_cluster(client) and not hasattr(client, "connection_pool"):
        kind = type(client).__name__
        message = (
            f"store of type {kind!r} has no connection_pool, so its retries would count twice: give the URL of its server"
        )
        raise ConfigurationError(message)


def send_once(client: Any, command: Command) -> Any:
    """Run a command of the script by a client that blocks: on its own pool, and without its retries.

    Raises an error of the client, or StoreOutage if there is no connection.
    """
    if is_cluster(client):
        return client.execute_command(*command, target_nodes=_node_of(client, command))
    pool = client.connection_pool
    try:
        connection = pool.get_connection(*_pool_arguments(pool))
    except errors_of(client).every as error:
        raise StoreOutage(connecting_outage(error, errors_of(client))) from error
    try:
        connection.send_command(*command)
        return connection.read_response()
    finally:
        pool.release(connection)


async def send_once_async(client: Any, command: Command) -> Any:
    """Run a command of the script by a client that is awaited: on its own pool, and without its retries.

    Raises an error of the client, or StoreOutage if there is no connection.
    """
    if is_cluster(client):
        await client.initialize()
        return await client.execute_command(*command, target_nodes=_node_of(client, command))
    pool = client.connection_pool
    try:
        connection = await pool.get_connection(*_pool_arguments(pool))
    except errors_of(client).every as error:
        raise StoreOutage(connecting_outage(error, errors_of(client))) from error
    try:
        await connection.send_command(*command)
        return await connection.read_response()
    finally:
        await pool.release(connection)


def _node_of(client: Any, command: Command) -> Any:
    """Return the node of a Cluster for a command. The client follows redirections, but retries nothing if it is told a node.

    The first key comes after the number of keys: EVALSHA digest 1 key.
    """
    key = command[3] if command[0] in ("EVALSHA", "EVAL") else command[1]
    return client.get_node_from_key(key)


def _pool_arguments(pool: Any) -> tuple[str, ...]:
    """Return the name of a command if a pool needs it: that of valkey-py does, and that of redis-py before 5.3."""
    return ("EVALSHA",) if _needs_command(type(pool).get_connection) else ()


@lru_cache(maxsize=64)
def _needs_command(get_connection: Callable[..., Any]) -> bool:
    return inspect.signature(get_connection).parameters["command_name"].default is inspect.Parameter.empty


def execute_many(client: Any, commands: Sequence[Command], node: str = "") -> list[Reply]:
    """Run commands by a client that blocks: what `Store.execute_many` promises."""
    try:
        return _replies(client, commands, _sent(client, commands, node))
    except errors_of(client).every as error:
        return _replies_instead(client, error)


async def execute_many_async(client: Any, commands: Sequence[Command], node: str = "") -> list[Reply]:
    """Run commands by a client that is awaited: what `AsyncStore.execute_many` promises."""
    try:
        await _know_nodes(client)
        return _replies(client, commands, await _sent(client, commands, node))
    except errors_of(client).every as error:
        return _replies_instead(client, error)


def nodes(client: Any) -> list[str]:
    """Return the sorted names of a Cluster's primaries, or [""]."""
    return sorted(node.name for node in client.get_primaries()) if is_cluster(client) else [""]


async def nodes_async(client: Any) -> list[str]:
    """Return the sorted names of a Cluster's primaries, or [""]. Raises StoreOutage."""
    try:
        await _know_nodes(client)
    except errors_of(client).every as error:
        raise _outage(client, error) from error
    return nodes(client)


async def _know_nodes(client: Any) -> None:
    if is_cluster(client):
        await client.initialize()  # an asynchronous client connects to its Cluster only now


def _sent(client: Any, commands: Sequence[Command], node: str) -> Any:
    """Send commands by a client of either colour: returns the reply, a list of several, or an awaitable of that."""
    if len(commands) == 1:
        target = {"target_nodes": client.get_node(node_name=node)} if node else {}
        return client.execute_command(*commands[0], **target)
    pipeline = client.pipeline() if is_cluster(client) else client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return pipeline.execute(raise_on_error=False)


def _replies(client: Any, commands: Sequence[Command], sent: Any) -> list[Reply]:
    if len(commands) == 1:
        return [sent]
    return [_outage(client, reply) if isinstance(reply, Exception) else reply for reply in sent]


def _replies_instead(client: Any, error: Exception) -> list[Reply]:
    """Return the outage of a single command that the server refused. Raises StoreOutage for any other error."""
    if isinstance(error, errors_of(client).response):
        return [_outage(client, error)]
    raise _outage(client, error) from error


def _outage(client: Any, error: Exception) -> StoreOutage:
    return StoreOutage(any_outage_of(error, errors_of(client)))
