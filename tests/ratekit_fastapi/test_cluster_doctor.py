"""A cluster is looked at node by node."""

from __future__ import annotations

from redis.cluster import RedisCluster

from ratekit import RateLimiter
from ratekit.doctor import examine


def test_cluster_is_examined_node_by_node(cluster_port):
    with RedisCluster(host="127.0.0.1", port=cluster_port) as client, RateLimiter(client, on_outage="closed") as limiter:
        findings = list(examine(limiter))
    assert {str(finding.grade) for finding in findings} == {"ok"}
    assert len({finding.where for finding in findings if finding.what == "server"}) == 3
    assert findings[-1].message == "16384 of 16384 slots are served"


def test_node_of_a_cluster_by_a_plain_url_is_a_problem(cluster_port):
    with RateLimiter(f"redis://127.0.0.1:{cluster_port}", deadline=5, on_outage="closed") as limiter:
        findings = [finding for finding in examine(limiter) if finding.what == "cluster"]
    assert [str(finding.grade) for finding in findings] == ["problem"]
    assert "redis+cluster://" in findings[0].message
