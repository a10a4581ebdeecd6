"""A cluster is looked at node by node."""

from __future__ import annotations

import json

from redis.cluster import RedisCluster

from ratekit import Limit, RateLimiter
from ratekit.admin.doctor import examine
from ratekit.cli.program import run


def test_cluster_is_examined_node_by_node(cluster_port):
    with RedisCluster(host="127.0.0.1", port=cluster_port) as client, RateLimiter(client, on_outage="closed") as limiter:
        findings = list(examine(limiter))
    assert {str(finding.severity) for finding in findings if finding.what != "persist"} == {"ok"}
    assert [str(finding.severity) for finding in findings if finding.what == "persist"] == ["warning"] * 3
    assert len({finding.where for finding in findings if finding.what == "server"}) == 3
    assert findings[-1].message == "16384 of 16384 slots are served"


def test_node_of_a_cluster_by_a_plain_url_is_a_problem(cluster_port):
    with RateLimiter(f"redis://127.0.0.1:{cluster_port}", deadline=5, on_outage="closed") as limiter:
        findings = [finding for finding in examine(limiter) if finding.what == "cluster"]
    assert [str(finding.severity) for finding in findings] == ["problem"]
    assert "redis+cluster://" in findings[0].message


def test_program_reaches_a_cluster_by_its_url(cluster_port, capsys):
    store = ["--store", f"redis+cluster://127.0.0.1:{cluster_port}"]
    for number in range(30):
        assert run(["overrides", "set", "/x", f"1:{number}", "--max-requests", "2", "--ttl", "60", *store]) == 0
    assert run(["check", "/x", "1:7", "--limit", "1/min", "--cost", "2", *store]) == 0
    capsys.readouterr()
    assert run(["overrides", "list", "--json", *store]) == 0
    assert len(json.loads(capsys.readouterr().out)["overrides"]) == 30
    assert run(["mode", "monitor", *store]) == run(["mode", "clear", *store]) == run(["reset", "/x", "1:7", *store]) == 0
    assert run(["overrides", "clear", "--yes", *store]) == 0
    capsys.readouterr()
    assert run(["doctor", *store]) == 0
    assert "16384 of 16384 slots are served" in capsys.readouterr().out


def test_node_of_a_cluster_by_a_plain_url_is_an_outage_and_no_crash(cluster_port):
    with RateLimiter(f"redis://127.0.0.1:{cluster_port}", deadline=5) as limiter:
        results = [limiter.check(Limit(9, 60), f"u{number}", endpoint="/x") for number in range(30)]
    assert all(result.allowed for result in results)
    assert {result.degraded for result in results} == {None, "moved"}
