"""The template methods: a subclass says the keys, and shares the project's override."""

from __future__ import annotations

import httpx2
import pytest
import redis.asyncio
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from ratekit import AsyncRateLimiter, Limit
from ratekit.testing import assert_admits
from ratekit.web.identity import passes
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, install


class RegionLimiter(ProjectRateLimiter):
    """One counter per region, under the project's one override."""

    def make_key(self, request):
        return f"{super().make_key(request)}:{request.headers['x-region']}"


def project_of(request):
    return None if "x-anonymous" in request.headers else ("acme", request.headers.get("x-project", "p1"))


def regional(**options) -> FastAPI:
    app = FastAPI()
    install(app, identify=project_of, **options)

    @app.get("/x", dependencies=[Depends(RegionLimiter(2, 60))])
    async def x():
        return {}

    return app


def test_key_of_a_project_is_that_of_the_design(limited, ratekit_clock):
    seen = []

    class Watched(ProjectRateLimiter):
        def make_key(self, request):
            seen.append((super().make_key(request), self.make_override_key(request)))
            return seen[-1][0]

    limited(Watched(2, 60), identify=lambda request: ("acme", "p1")).get("/x")
    assert seen[0] == ("ratelimit:/x:{acme:p1}", "ratelimit_override:/x:{acme:p1}")


def test_subclass_by_region_has_one_counter_for_each_region(keys, ratekit_clock):
    client = TestClient(regional())
    for region in ("eu", "us"):
        assert_admits(lambda region=region: client.get("/x", headers={"X-Region": region}), exactly=2)
    assert keys() == ["ratelimit:/x:{acme:p1}:eu:60s", "ratelimit:/x:{acme:p1}:us:60s"]


def test_subclass_by_region_is_under_the_one_override_of_the_project(store, ratekit_clock):
    client = TestClient(regional())
    store.execute("HSET", "ratelimit_override:/x:{acme:p1}", "max_requests", "5")
    for region in ("eu", "us"):
        assert_admits(lambda region=region: client.get("/x", headers={"X-Region": region}), exactly=5)
    other = {"X-Region": "eu", "X-Project": "p2"}
    assert_admits(lambda: client.get("/x", headers=other), exactly=2)


def test_subclass_by_region_makes_no_shared_bucket_of_requests_without_a_project(store, ratekit_clock):
    """A subclass that appends to the None of its parent has a key without a subject: "None:eu"."""
    client = TestClient(regional(), raise_server_exceptions=False)
    client.get("/x", headers={"X-Region": "eu", "X-Anonymous": "1"})
    assert store.execute("KEYS", "None") == []


async def test_subclass_by_region_works_on_a_real_cluster(cluster_port):
    client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster_port, socket_timeout=5)
    try:
        for project in ("p1", "p2", "p3", "p4"):
            await client.hset(f"ratelimit_override:/x:{{acme:{project}}}", "max_requests", "3")
        transport = httpx2.ASGITransport(app=regional(store=client))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            answers = {}
            for project in ("p1", "p2", "p3", "p4"):
                for region in ("eu", "us"):
                    lines = {"X-Region": region, "X-Project": project}
                    answers[project, region] = [await http.get("/x", headers=lines) for _ in range(4)]
        for several in answers.values():
            assert [answer.status_code for answer in several] == [200, 200, 200, 429]
            assert [answer.headers["RateLimit-Limit"] for answer in several] == ["3"] * 4
        slots = {await client.cluster_keyslot(f"{{acme:{project}}}") // 5461 for project in ("p1", "p2", "p3", "p4")}
        assert len(slots) > 1, "all projects on one node: the test proves nothing"
    finally:
        await client.aclose()


async def test_two_limiters_are_decided_in_one_call_on_a_real_cluster(cluster_port):
    client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster_port, socket_timeout=5)
    app = FastAPI()
    install(app, store=client, identify=lambda request: ("acme", "p9"))

    @app.get("/both", dependencies=[Depends(ProjectRateLimiter(1000, 3600)), Depends(ProjectRateLimiter(2, 60))])
    async def both():
        return {}

    try:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            assert [(await http.get("/both")).status_code for _ in range(3)] == [200, 200, 429]
        hour = await AsyncRateLimiter(client).peek(Limit(1000, 3600), "acme:p9", endpoint="/both")
        assert hour.request_count == 2
    finally:
        await client.aclose()


def test_key_of_none_means_not_limited_here(limited, keys, ratekit_clock):
    class NotInternal(ProjectRateLimiter):
        def make_key(self, request):
            return None if request.headers.get("x-internal") else super().make_key(request)

    client = limited(NotInternal(1, 60), identify=lambda request: "me")
    answers = [client.get("/x", headers={"X-Internal": "1"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert not any("RateLimit-Limit" in answer.headers for answer in answers)
    assert keys() == []
    assert passes == {}, "not limiting a known project is a choice, not an accident"
    assert_admits(lambda: client.get("/x"), exactly=1)


def test_override_key_of_none_means_no_overrides(limited, store, ratekit_clock):
    class Fixed(ProjectRateLimiter):
        def make_override_key(self, request):
            return None

    store.execute("HSET", "ratelimit_override:/x:{me}", "max_requests", "5")
    client = limited(Fixed(1, 60), identify=lambda request: "me")
    assert_admits(lambda: client.get("/x"), exactly=1)


def test_override_key_can_be_that_of_the_organisation(limited, store, ratekit_clock):
    class ByOrganisation(ProjectRateLimiter):
        def make_override_key(self, request):
            return "ratelimit_override:all:{acme:p1}"

    store.execute("HSET", "ratelimit_override:all:{acme:p1}", "max_requests", "4")
    client = limited(ByOrganisation(1, 60), identify=lambda request: ("acme", "p1"))
    assert_admits(lambda: client.get("/x"), exactly=4)


@pytest.mark.parametrize("kind", [ProjectRateLimiter, PathRateLimiter])
def test_override_counts_at_once(kind, limited, store, ratekit_clock):
    client = limited(kind(1, 60), identify=lambda request: "me")
    assert_admits(lambda: client.get("/x"), exactly=1)
    subject = "me" if kind is ProjectRateLimiter else "*/x"
    store.execute("HSET", f"ratelimit_override:/x:{{{subject}}}", "max_requests", "3")
    assert_admits(lambda: client.get("/x"), exactly=2)


def test_subclass_of_the_path_limiter_can_say_its_keys(limited, keys, ratekit_clock):
    class ByMethod(PathRateLimiter):
        def make_key(self, request):
            return f"{super().make_key(request)}:{request.scope['method'].lower()}"

    limited(ByMethod(1, 60)).get("/x")
    assert keys() == ["ratelimit:/x:{*/x}:get:60s"]


def test_subclasses_that_differ_in_an_attribute_of_their_own_both_count(limited, keys, ratekit_clock):
    class Tier(ProjectRateLimiter):
        def __init__(self, tier, *args, **options):
            super().__init__(*args, **options)
            self.tier = tier

        def make_key(self, request):
            return f"{super().make_key(request)}:{self.tier}"

    limited(Tier("a", 5, 60), Tier("b", 5, 60), identify=lambda request: "me").get("/x")
    assert keys() == ["ratelimit:/x:{me}:a:60s", "ratelimit:/x:{me}:b:60s"]


def test_key_that_is_no_text_does_not_pass_in_silence(limited, ratekit_clock):
    """Such as the coroutine of an async make_key, whose name would be another key for each request."""

    class Later(ProjectRateLimiter):
        def make_key(self, request):
            return object()

    client = limited(Later(1, 60), identify=lambda request: "me")
    assert [client.get("/x").status_code for _ in range(3)] != [200, 200, 200]
