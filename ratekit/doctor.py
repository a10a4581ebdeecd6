"""Whether a store is fit for limits: what can be found out by asking it, and what to do about it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ratekit.errors import RateLimitUnavailable
from ratekit.limiter import RateLimiter
from ratekit.limits import Algorithm, Limit, Policy
from ratekit.stores import script
from ratekit.stores.commands import Batch, Flow, Nodes, as_text, as_texts, drive

# What decisions need, by the commands of lua/ratekit.lua and how a connection is greeted; and what administration adds.
SCRIPT_COMMANDS = (
    "time", "exists", "hgetall", "hmget", "hget", "hset", "hincrby", "pexpire", "del", "zadd", "zrange", "zrangebyscore",
    "zcount", "zcard", "zrank", "zscore", "zrem", "zremrangebyscore",
)  # fmt: skip
DECIDING = ("evalsha", "eval", "ping", *SCRIPT_COMMANDS)
ADMINISTRATION = ("hdel", "persist", "pttl", "scan", "zincrby")
CLUSTER = ("cluster|slots",)
_OLDEST = (6, 2)
_MOST_SKEW = 1.0  # seconds
_SLOTS = 16384
_PROBE = Policy(
    "ratekit-doctor",
    [Limit(5, 1, name=algorithm.replace("_", "-"), algorithm=algorithm) for algorithm in Algorithm],
)


class Grade(StrEnum):
    """How a finding is meant."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. On a cluster, `where` names the node."""

    what: str
    grade: Grade
    message: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """What a server says of itself, and how its clock differs from ours, in seconds."""

    name: str
    info: Mapping[str, str]
    skew: float


def acl_rule(prefix: str, *, administration: bool = False, cluster: bool = False) -> str:
    """Return the smallest set of rights that a user of the server needs, as ACL SETUSER takes it."""
    commands = [*DECIDING, *(ADMINISTRATION if administration else ()), *(CLUSTER if cluster else ())]
    keys = [f"~{prefix}:*", f"~{prefix}_override:*", f"~{prefix}_mode", *([f"~{prefix}_report*"] if administration else [])]
    return " ".join(["-@all", *(f"+{command}" for command in commands), *keys])


def examine(limiter: RateLimiter) -> Iterator[Finding]:
    """Look at a store, one thing after the other. Raises RateLimitUnavailable if it cannot be reached at all."""
    if limiter.store.is_local:
        yield from _examine_memory()
        return
    began = time.monotonic()
    nodes = drive(limiter, _names())
    drive(limiter, _greet(nodes[0]))
    yield Finding("reach", Grade.OK, f"answers in {(time.monotonic() - began) * 1000:.1f} ms")
    is_cluster = nodes != [""]
    yield from _examine_rights(limiter, is_cluster)
    for name in nodes:
        try:
            node = drive(limiter, _describe(name))
        except RateLimitUnavailable as error:
            yield Finding("server", Grade.WARNING, f"does not tell about itself ({error.reason}): grant +info +time", name)
        else:
            yield from _examine_node(node, is_cluster)
    if is_cluster:
        yield _slots_finding(drive(limiter, _cluster_info(nodes[0])))


def _examine_memory() -> Iterator[Finding]:
    yield Finding("reach", Grade.OK, "memory:// is in this process, and each process has its own")
    workers = os.environ.get("WEB_CONCURRENCY", "1")
    if workers.isdigit() and int(workers) > 1:
        message = f"WEB_CONCURRENCY is {workers}: together they admit {workers} times each limit. Give them one Redis"
        yield Finding("workers", Grade.PROBLEM, message)
    else:
        message = "fit for one process; several workers each admit the whole limit, and this command sees none of theirs"
        yield Finding("workers", Grade.WARNING, message)


def _examine_rights(limiter: RateLimiter, is_cluster: bool) -> Iterator[Finding]:
    """Let the script decide by every algorithm; a right that is missing is named by the server."""
    subject, slot = f"probe:{os.getpid()}", limiter.new_slot()
    try:
        limiter.acquire(_PROBE, subject, slot)
        limiter.release(_PROBE, subject, slot)
        limiter.reset(_PROBE, subject)
    except RateLimitUnavailable as error:
        rights = acl_rule(limiter.prefix, cluster=is_cluster)
        yield Finding("script", Grade.PROBLEM, f"does not run: {error.reason}. The rights that it needs: {rights}")
    else:
        yield Finding("script", Grade.OK, f"{script.digest()[:12]} decides by every algorithm with the rights of this user")


def _examine_node(node: Node, is_cluster: bool) -> Iterator[Finding]:
    info = node.info
    yield _version_finding(node)
    if info.get("role") == "slave":
        yield Finding("role", Grade.PROBLEM, "it is a replica, which cannot count: give the primary's address", node.name)
    if info.get("cluster_enabled") == "1" and not is_cluster:
        yield Finding("cluster", Grade.PROBLEM, "it is a node of a cluster: use redis+cluster://", node.name)
    yield _skew_finding(node)
    yield _memory_finding(node)


def _version_finding(node: Node) -> Finding:
    kind = "valkey" if "valkey_version" in node.info else "redis"
    version = node.info.get(f"{kind}_version", "unknown")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST:
        return Finding("server", Grade.PROBLEM, f"{kind} {version} is older than 6.2, which ratekit is tested on", node.name)
    return Finding("server", Grade.OK, f"{kind} {version}", node.name)


def _skew_finding(node: Node) -> Finding:
    if abs(node.skew) > _MOST_SKEW:
        message = (
            f"its clock is {node.skew:+.1f} s off ours; it decides by its own, but reset times that we tell are off by that"
        )
        return Finding("clock", Grade.WARNING, message, node.name)
    return Finding("clock", Grade.OK, f"differs from ours by {node.skew * 1000:+.0f} ms", node.name)


def _memory_finding(node: Node) -> Finding:
    policy, most = node.info.get("maxmemory_policy", "noeviction"), node.info.get("maxmemory_human", "0B")
    if policy != "noeviction":
        message = (
            f"maxmemory-policy is {policy}: under pressure it forgets counters. Use noeviction, or a Redis of their own"
        )
        return Finding("eviction", Grade.WARNING, message, node.name)
    bound = "no maxmemory" if node.info.get("maxmemory") == "0" else f"maxmemory {most}"
    return Finding("eviction", Grade.OK, f"noeviction, {bound}", node.name)


def _slots_finding(info: Mapping[str, str]) -> Finding:
    covered = info.get("cluster_slots_ok", "0")
    is_whole = info.get("cluster_state") == "ok" and covered == str(_SLOTS)
    return Finding("cluster", Grade.OK if is_whole else Grade.PROBLEM, f"{covered} of {_SLOTS} slots are served")


def _names() -> Flow[list[str]]:
    names: list[str] = yield Nodes()
    return names


def _greet(node: str) -> Flow[Any]:
    (reply,) = yield Batch((("PING",),), node)
    return reply


def _describe(name: str) -> Flow[Node]:
    before = time.time()
    (clock,) = yield Batch((("TIME",),), name)
    ours = (before + time.time()) / 2
    (info,) = yield Batch((("INFO",),), name)
    theirs = float(clock[0]) + float(clock[1]) / 1_000_000
    return Node(name, as_texts(info) if isinstance(info, Mapping) else {}, theirs - ours)


def _cluster_info(node: str) -> Flow[dict[str, str]]:
    (reply,) = yield Batch((("CLUSTER", "INFO"),), node)
    if isinstance(reply, Mapping):
        return as_texts(reply)
    return dict(line.split(":", 1) for line in as_text(reply).split() if ":" in line)
