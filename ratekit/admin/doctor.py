"""Checks of a store: whether it is fit for limits, and what to do if it is not."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ratekit.admin.commands import Batch, Flow, Nodes, as_text, as_texts, drive
from ratekit.core.errors import DocumentError, RateLimitUnavailable, SourceUnavailable
from ratekit.core.limits import Algorithm, Limit, Policy
from ratekit.limiter.limiters import RateLimiter
from ratekit.limiter.operations import new_slot
from ratekit.stores import script

# The commands that decisions need (those of lua/ratekit.lua and of a new connection), and those of administration.
SCRIPT_COMMANDS = (
    "time", "exists", "hgetall", "hmget", "hget", "hset", "hincrby", "pexpire", "del", "zadd", "zrange", "zrangebyscore",
    "zcount", "zcard", "zrank", "zscore", "zrem", "zremrangebyscore",
)  # fmt: skip
DECIDING = ("evalsha", "eval", "ping", *SCRIPT_COMMANDS)
ADMINISTRATION = ("hdel", "persist", "pttl", "scan", "zincrby", "publish")
RULES = ("subscribe",)  # for those who read their rules from Redis
CLUSTER = ("cluster|slots",)
_OLDEST = (6, 2)
_MOST_SKEW = 1.0  # seconds
_SLOTS = 16384
_PROBE = Policy(
    "ratekit-doctor",
    [Limit(5, 1, name=algorithm.replace("_", "-"), algorithm=algorithm) for algorithm in Algorithm],
)


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. On a cluster, `where` names the node."""

    what: str
    severity: Severity
    message: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """What one server says of itself, and how far its clock is ahead of ours, in seconds."""

    name: str
    info: Mapping[str, str]
    skew: float
    save: str | None = None  # its setting of that name; None: this user may not read it


def acl_rule(prefix: str, *, administration: bool = False, cluster: bool = False, rules: bool = False) -> str:
    """Return the smallest set of rights that a user of the server needs, as arguments of ACL SETUSER.

    rules: with those to read a document of rules from Redis. Administration writes it.
    """
    more = [(ADMINISTRATION, administration), (RULES, rules or administration), (CLUSTER, cluster)]
    commands = [*DECIDING, *(command for names, is_wanted in more if is_wanted for command in names)]
    keys = [f"~{prefix}:*", f"~{prefix}_override:*", f"~{prefix}_mode", *([f"~{prefix}_report*"] if administration else [])]
    if rules or administration:
        keys += [f"~{prefix}_rules:*", "resetchannels", f"&{prefix}_rules:*"]
    return " ".join(["-@all", *(f"+{command}" for command in commands), *keys])


def examine(limiter: RateLimiter) -> Iterator[Finding]:
    """Run one check of a store after the other. Raises RateLimitUnavailable if the store cannot be reached at all."""
    if limiter.store.is_local:
        yield from _examine_memory()
        return
    began = time.monotonic()
    nodes = drive(limiter, _names())
    drive(limiter, _ping(nodes[0]))
    yield _ok("reach", f"answers in {(time.monotonic() - began) * 1000:.1f} ms")
    is_cluster = nodes != [""]
    if _is_sentinel(limiter, nodes[0]):
        yield _problem("server", "this is a Sentinel: use redis+sentinel://", nodes[0])
        return
    yield from _examine_rights(limiter, is_cluster)
    for name in nodes:
        try:
            node = _described(limiter, name)
        except RateLimitUnavailable as error:
            yield _warning("server", f"is not looked at ({error.reason}): {_remedy(error.reason)}", name)
        else:
            yield from _examine_node(node, is_cluster)
    if is_cluster:
        yield _slots_finding(drive(limiter, _cluster_info(nodes[0])))


def examine_rules(where: str, service: str | None = None) -> Iterator[Finding]:
    """Read the rules of a source, as a process that starts would: which version, how many, from when."""
    from ratekit.rules.document import Document
    from ratekit.rules.reload import read_once

    try:
        loaded, origin = read_once(where, service)
        document = Document.parse(loaded.values)
    except SourceUnavailable as error:
        yield Finding("rules", Severity.PROBLEM, f"{error}; processes that run keep the rules in force")
        return
    except DocumentError as error:
        more = f" and {len(error.problems) - 1} more" if len(error.problems) > 1 else ""
        yield Finding("rules", Severity.PROBLEM, f"{where} is refused: {error.problems[0]}{more}")
        return
    counting = [rule for rule in document.rules if rule.enabled]
    since = f", of {document.last_updated.isoformat()}" if document.last_updated else ""
    severity = Severity.OK if counting else Severity.WARNING
    yield Finding("rules", severity, f"{len(counting)} in force from {origin}, version {loaded.version}{since}")


def _remedy(reason: str) -> str:
    """Return what to do where a server does not tell of itself: the right that it names, or to look why it is silent."""
    refused = re.search(r"'(\w+)(?:\|\w+)?' command", reason)
    return f"grant +{refused[1].lower()}" if refused else "it has to answer INFO and TIME"


def _is_sentinel(limiter: RateLimiter, name: str) -> bool:
    """Whether a server is a Sentinel. One that does not answer INFO, for want of rights, is taken for an ordinary server."""
    try:
        info: Mapping[str, str] = drive(limiter, _server_info(name))
    except RateLimitUnavailable:
        return False
    return info.get("redis_mode", info.get("server_mode")) == "sentinel"


def _described(limiter: RateLimiter, name: str) -> Node:
    node: Node = drive(limiter, _describe(name))
    try:
        return replace(node, save=drive(limiter, _save_setting(name)))
    except RateLimitUnavailable:  # this user may not read settings, as is usual on managed servers
        return node


def _examine_memory() -> Iterator[Finding]:
    yield _ok("reach", "memory:// is in this process; each process has its own counters")
    workers = os.environ.get("WEB_CONCURRENCY", "1")
    if workers.isdigit() and int(workers) > 1:
        message = (
            f"WEB_CONCURRENCY is {workers}: the workers admit {workers} times each limit together. Let them share a Redis"
        )
        yield _problem("workers", message)
    else:
        message = "fit for one process only: each worker admits the whole limit, and this command sees no counter of theirs"
        yield _warning("workers", message)


def _examine_rights(limiter: RateLimiter, is_cluster: bool) -> Iterator[Finding]:
    """Let the script decide by every algorithm. The server names a right that is missing."""
    subject, slot = f"probe:{os.getpid()}", new_slot()
    try:
        limiter.acquire(_PROBE, subject, slot)
        limiter.release(_PROBE, subject, slot)
        limiter.reset(_PROBE, subject)
    except RateLimitUnavailable as error:
        rights = acl_rule(limiter.prefix, cluster=is_cluster)
        yield _problem("script", f"does not run: {error.reason}. It needs these rights: {rights}")
    else:
        yield _ok("script", f"{script.digest()[:12]} decides by every algorithm with the rights of this user")


def _examine_node(node: Node, is_cluster: bool) -> Iterator[Finding]:
    info = node.info
    yield _version_finding(node)
    if info.get("role") == "slave":
        yield _problem("role", "this is a replica, which cannot count: use the address of its primary", node.name)
    if info.get("cluster_enabled") == "1" and not is_cluster:
        yield _problem("cluster", "this is a node of a cluster: use redis+cluster://", node.name)
    yield _skew_finding(node)
    yield _memory_finding(node)
    yield _persistence_finding(node)


def _version_finding(node: Node) -> Finding:
    kind = "valkey" if "valkey_version" in node.info else "redis"
    version = node.info.get(f"{kind}_version", "unknown")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST:
        return _problem("server", f"{kind} {version} is older than 6.2, which ratekit is tested on", node.name)
    return _ok("server", f"{kind} {version}", node.name)


def _skew_finding(node: Node) -> Finding:
    if abs(node.skew) > _MOST_SKEW:
        message = (
            f"its clock is {node.skew:+.1f} s off ours: decisions are right, but reset times in headers are off by as much"
        )
        return _warning("clock", message, node.name)
    return _ok("clock", f"differs from ours by {node.skew * 1000:+.0f} ms", node.name)


def _memory_finding(node: Node) -> Finding:
    policy, most = node.info.get("maxmemory_policy", "noeviction"), node.info.get("maxmemory_human", "0B")
    if policy != "noeviction":
        message = (
            f"maxmemory-policy is {policy}: when memory is full, it deletes counters. Use noeviction, or a separate Redis"
        )
        return _warning("eviction", message, node.name)
    bound = "no maxmemory" if node.info.get("maxmemory") == "0" else f"maxmemory {most}"
    return _ok("eviction", f"noeviction, {bound}", node.name)


def _persistence_finding(node: Node) -> Finding:
    """Report whether overrides and the fleet mode survive a restart of the server. Counters need not."""
    if node.info.get("aof_enabled") == "1":
        return _ok("persist", "appendonly is yes: overrides survive a restart", node.name)
    if node.save is None:
        message = "unknown, as CONFIG GET is not allowed: overrides survive a restart if save or appendonly is set"
        return _ok("persist", message, node.name)
    if node.save:
        message = f"save is {node.save!r}: a restart may lose the overrides that were set last"
        return _ok("persist", message, node.name)
    message = (
        "save and appendonly are off: a restart deletes overrides and the fleet mode. Set appendonly, "
        "or keep a copy by 'ratekit overrides export'"
    )
    return _warning("persist", message, node.name)


def _slots_finding(info: Mapping[str, str]) -> Finding:
    covered = info.get("cluster_slots_ok", "0")
    is_whole = info.get("cluster_state") == "ok" and covered == str(_SLOTS)
    return (_ok if is_whole else _problem)("cluster", f"{covered} of {_SLOTS} slots are served")


def _ok(what: str, message: str, where: str = "") -> Finding:
    return Finding(what, Severity.OK, message, where)


def _warning(what: str, message: str, where: str = "") -> Finding:
    return Finding(what, Severity.WARNING, message, where)


def _problem(what: str, message: str, where: str = "") -> Finding:
    return Finding(what, Severity.PROBLEM, message, where)


def _names() -> Flow[list[str]]:
    names: list[str] = yield Nodes()
    return names


def _ping(node: str) -> Flow[Any]:
    (reply,) = yield Batch((("PING",),), node)
    return reply


def _describe(name: str) -> Flow[Node]:
    before = time.time()
    (clock,) = yield Batch((("TIME",),), name)
    ours = (before + time.time()) / 2
    (info,) = yield Batch((("INFO",),), name)
    theirs = float(clock[0]) + float(clock[1]) / 1_000_000
    return Node(name, _info_fields(info), theirs - ours)


def _server_info(node: str) -> Flow[dict[str, str]]:
    (reply,) = yield Batch((("INFO", "server"),), node)
    return _info_fields(reply)


def _save_setting(node: str) -> Flow[str | None]:
    (reply,) = yield Batch((("CONFIG", "GET", "save"),), node)
    return as_texts(reply).get("save")


def _cluster_info(node: str) -> Flow[dict[str, str]]:
    (reply,) = yield Batch((("CLUSTER", "INFO"),), node)
    return _info_fields(reply)


def _info_fields(reply: Any) -> dict[str, str]:
    """Return the fields of an INFO reply. Some clients parse it, others return its text."""
    if isinstance(reply, Mapping):
        return as_texts(reply)
    return dict(line.split(":", 1) for line in as_text(reply).splitlines() if ":" in line)
