"""Overrides that an administrator sets while the application runs, on one server and on a cluster."""

from __future__ import annotations

import pytest
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster
from starlette.testclient import TestClient

from ratekit import AsyncRateLimiter, Limit, RateLimiter
from ratekit.overrides import (
    clear_rate_limit_overrides,
    delete_rate_limit_override,
    get_rate_limit_override,
    list_rate_limit_overrides,
    set_rate_limit_override,
)
from ratekit.testing import assert_admits
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter


def test_override_counts_from_the_next_request_on(limited, store, ratekit_clock):
    client: TestClient = limited(ProjectRateLimiter(1, 60), identify=lambda request: (1, 42))
    assert_admits(lambda: client.get("/x"), exactly=1)
    set_rate_limit_override(store, org_id=1, project_id=42, endpoint="/x", max_requests=3)
    assert_admits(lambda: client.get("/x"), exactly=2)
    assert client.get("/x").headers["RateLimit-Limit"] == "3"
    delete_rate_limit_override(store, org_id=1, project_id=42, endpoint="/x")
    assert client.get("/x").headers["RateLimit-Limit"] == "1"


def test_override_of_a_whole_endpoint_has_its_reserved_subject(limited, store, ratekit_clock):
    client: TestClient = limited(PathRateLimiter(1, 60))
    set_rate_limit_override(store, subject="*/x", endpoint="/x", max_requests=3)
    assert_admits(lambda: client.get("/x"), exactly=3)


SUBJECTS = [f"{org}:{project}" for org in (1, 2) for project in range(60)]  # on every node of three


@pytest.mark.parametrize("page_size", [None, 10])
def test_overrides_of_a_cluster_are_found_on_all_nodes(cluster_port, page_size):
    with RedisCluster(host="127.0.0.1", port=cluster_port) as client:
        client.flushall(target_nodes=RedisCluster.PRIMARIES)
        for subject in SUBJECTS:
            set_rate_limit_override(client, endpoint="/x", subject=subject, max_requests=5, override_ttl=600)
        found, cursor = set(), None
        while True:
            page = list_rate_limit_overrides(client, endpoint="/x", page_size=page_size, cursor=cursor)
            found |= {override.subject for override in page}
            cursor = page.cursor
            if cursor is None:
                break
        assert found == set(SUBJECTS)
        assert RateLimiter(client).check(Limit(1, 60), "1:7", endpoint="/x").max_requests == 5
        assert clear_rate_limit_overrides(client, org_id=1) == 60
        assert {override.org_id for override in list_rate_limit_overrides(client)} == {"2"}
        assert delete_rate_limit_override(client, endpoint="/x", org_id=2, project_id=3) is True
        assert get_rate_limit_override(client, endpoint="/x", org_id=2, project_id=3) is None


async def test_overrides_of_a_cluster_are_found_by_an_asynchronous_client(cluster_port):
    async with AsyncRedisCluster(host="127.0.0.1", port=cluster_port) as client:
        await clear_rate_limit_overrides(client)
        for subject in SUBJECTS[:20]:
            await set_rate_limit_override(client, endpoint="/x", subject=subject, max_requests=5, override_ttl=600)
        page = await list_rate_limit_overrides(client)
        assert sorted(override.subject for override in page) == sorted(SUBJECTS[:20])
        assert {override.max_requests for override in page} == {5}
        result = await AsyncRateLimiter(client).check(Limit(1, 60), "1:7", endpoint="/x")
        assert result.max_requests == 5
        assert await clear_rate_limit_overrides(client, endpoint="/x") == 20


def test_listing_goes_on_after_a_node_has_left(cluster_port):
    with RedisCluster(host="127.0.0.1", port=cluster_port) as client:
        nodes = sorted(node.name for node in client.get_primaries())
        assert list_rate_limit_overrides(client, cursor=f"{nodes[-1]}x/7").cursor is None
        clear_rate_limit_overrides(client)
        for subject in SUBJECTS:
            set_rate_limit_override(client, endpoint="/x", subject=subject, max_requests=5)
        later = list_rate_limit_overrides(client, cursor=f"{nodes[0]}x/7")
        assert 0 < len(later) < len(SUBJECTS)
        clear_rate_limit_overrides(client)
