"""Several servers: a primary is lost and its replica promoted, a slot moves to another node."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from faults.drive import Maker, Sample, until
from faults.table import Figures
from ratekit import Limit, Policy
from support.servers import Server, wait_until
from support.topologies import Cluster, Watched

MOST = 250
PACE = 100  # checks a second
_LIMIT = Limit(MOST, 3600)


def promotion(maker: Maker, cluster: Cluster) -> Figures:
    """Kill the primary of the subject's slot under load."""
    port = _owner(cluster, "u")
    survivors = [node.port for node in cluster.nodes if node.port != port]
    policy = Policy(f"promotion-{maker.colour}", _LIMIT)

    def is_promoted() -> bool:
        states = (cluster.command(other, "CLUSTER", "INFO") for other in survivors)
        return all("cluster_state:ok" in state for state in states) and _owner(cluster, "u", survivors[0]) != port

    return _fail_over(maker, cluster.url, policy, cluster.node_of(port), is_promoted)


def sentinel(maker: Maker, watched: Watched) -> Figures:
    """Kill the primary that sentinels watch under load."""

    def is_promoted() -> bool:
        with watched.replica.client() as client:
            return client.role()[0] == b"master"

    return _fail_over(maker, watched.url, Policy("sentinel", _LIMIT), watched.primary, is_promoted)


def _fail_over(maker: Maker, url: str, policy: Policy, primary: Server, is_promoted: Callable[[], bool]) -> Figures:
    with maker.open(url, on_outage="closed") as driver, driver.paced(policy, per_second=PACE) as samples:
        until(samples, lambda sample: sample.is_decided, time.monotonic(), 5)
        time.sleep(1)
        primary.process.kill()
        primary.process.wait()
        killed = time.monotonic()
        promoted = wait_until(is_promoted, "nobody was promoted")
        until(samples, lambda sample: sample.is_decided, killed, 10)
        until(samples, lambda sample: sample.is_decided and not sample.allowed, killed, 5)
    return _tally(samples, killed, promoted)


def _tally(samples: list[Sample], killed: float, promoted: float) -> Figures:
    decided = [sample for sample in samples if sample.is_decided]
    before = [sample for sample in decided if sample.at + sample.took <= killed]
    after = [sample for sample in decided if sample.at > killed]
    assert before, f"the store decided nothing before it was killed: {samples[-1]}"
    assert after, f"the store decided nothing after the promotion: {samples[-1]}"
    lost = max(0, max(sample.count for sample in before) - (after[0].count - 1))
    over = sum(sample.allowed for sample in decided) - MOST
    return {
        "exceptions": sum(sample.is_error for sample in samples),
        "failover s": promoted - killed,
        "back after it s": max(0.0, after[0].at + after[0].took - promoted),
        "lost": lost,
        "over beyond lost": max(0, over - lost),
    }


def migration(maker: Maker, cluster: Cluster) -> Figures:
    """Move the subject's slot to another node under load."""
    subject = f"u-{maker.colour}"
    source = _owner(cluster, subject)
    target = next(port for port in _primaries(cluster) if port != source)
    policy = Policy("migration", _LIMIT)
    with maker.open(cluster.url, on_outage="closed") as driver:
        driver.check(policy, subject)
        with driver.paced(policy, per_second=PACE, subject=subject) as samples:
            time.sleep(0.7)
            _move_slot(cluster, subject, source, target)
            time.sleep(0.5)
            until(samples, lambda sample: sample.is_decided and not sample.allowed, 0, 5)
    assert any(sample.is_decided and not sample.allowed for sample in samples), "the limit was not reached"
    return {
        "exceptions": sum(sample.is_error for sample in samples),
        "over": max(0, 1 + sum(sample.allowed for sample in samples) - MOST),
        "not decided": sum(not sample.is_decided for sample in samples),
    }


def _move_slot(cluster: Cluster, subject: str, source: int, target: int) -> None:
    """What `redis-cli --cluster reshard` does, with time enough in between for checks to meet every stage."""
    slot = cluster.command(source, "CLUSTER", "KEYSLOT", subject)
    giver, taker = (cluster.command(port, "CLUSTER", "MYID") for port in (source, target))
    cluster.command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", giver)
    cluster.command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", taker)
    time.sleep(0.2)
    while keys := cluster.command(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
        cluster.command(source, "MIGRATE", "127.0.0.1", target, "", 0, 5000, "KEYS", *keys)
    time.sleep(0.2)
    for port in (target, source, *_primaries(cluster)):
        cluster.command(port, "CLUSTER", "SETSLOT", slot, "NODE", taker)


def _primaries(cluster: Cluster) -> list[int]:
    return [node.port for node in cluster.nodes if cluster.command(node.port, "ROLE")[0] == "master"]


def _owner(cluster: Cluster, subject: str, asked: int | None = None) -> int:
    """Return the port of the primary that has a subject's slot, as one node sees it."""
    asked = asked or cluster.nodes[0].port
    slot = cluster.command(asked, "CLUSTER", "KEYSLOT", subject)
    ranges: list[Any] = cluster.command(asked, "CLUSTER", "SLOTS")
    return next(nodes[0][1] for first, last, *nodes in ranges if first <= slot <= last)
