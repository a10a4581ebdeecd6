"""Several limiters on one route: each once, those of one subject together in one call, all or nothing."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Security
from starlette.testclient import TestClient

from ratekit import Limit, Policy
from ratekit.testing import assert_admits
from ratekit.web.identity import header
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, install


def nothing():
    return {}


def installed(**options) -> FastAPI:
    app = FastAPI()
    install(app, identify=lambda request: ("acme", "p1"), **options)
    return app


def routed(on_router, on_route, **options) -> FastAPI:
    """An application whose router and whose route have limiters."""
    app = installed(**options)
    router = APIRouter(dependencies=[Depends(limiter) for limiter in on_router])
    router.get("/x", dependencies=[Depends(limiter) for limiter in on_route])(nothing)
    app.include_router(router)
    return app


def used(client: TestClient) -> int:
    answer = client.get("/x")
    return int(answer.headers["RateLimit-Limit"]) - int(answer.headers["RateLimit-Remaining"])


def test_same_limiter_on_router_and_route_is_charged_once(ratekit_clock):
    limiter = PathRateLimiter(5, 60)
    client = TestClient(routed([limiter], [limiter]))
    assert [used(client) for _ in range(3)] == [1, 2, 3]


def test_same_limiter_everywhere_is_charged_once(ratekit_clock):
    limiter = ProjectRateLimiter(5, 60)
    app = FastAPI(dependencies=[Depends(limiter)])
    install(app, identify=lambda request: "me")
    router = APIRouter(dependencies=[Depends(limiter)])

    def nested(_: None = Depends(limiter)):
        return 1

    @router.get("/x", dependencies=[Depends(limiter), Depends(limiter, use_cache=False)])
    async def x(
        _: None = Depends(limiter),
        __: None = Depends(limiter, use_cache=False),
        ___: None = Security(limiter, scopes=["a"]),
        ____: int = Depends(nested),
    ):
        return {}

    app.include_router(router, dependencies=[Depends(limiter)])
    assert used(TestClient(app)) == 1


LIMITERS = {
    "path": lambda: PathRateLimiter(5, 60),
    "project": lambda: ProjectRateLimiter(5, 60),
    "rates": lambda: PathRateLimiter(limits=["5/min"]),
    "policy": lambda: PathRateLimiter(policy=Policy("p", Limit(5, 60))),
    "by text": lambda: PathRateLimiter(5, 60, by="header:X-Key"),
    "by key function": lambda: PathRateLimiter(5, 60, by=header("X-Key")),
    "by callable": lambda: PathRateLimiter(5, 60, by=lambda request: "me"),
    "cost callable": lambda: PathRateLimiter(5, 60, cost=lambda request: 1),
}


@pytest.mark.parametrize("make", LIMITERS.values(), ids=LIMITERS)
def test_equal_limiters_declared_twice_are_charged_once(make, ratekit_clock):
    client = TestClient(routed([make()], [make()]), headers={"X-Key": "k"})
    assert [used(client) for _ in range(3)] == [1, 2, 3]


def test_limiters_that_meet_in_one_counter_charge_it_once_and_the_strictest_decides(keys, ratekit_clock):
    client = TestClient(routed([PathRateLimiter(100, 60)], [PathRateLimiter(3, 60)]))
    assert_admits(lambda: client.get("/x"), exactly=3)
    assert len(keys()) == 1


@pytest.mark.parametrize("options", [{"mode": "monitor"}, {"on_outage": "closed"}], ids=str)
def test_limiters_that_meet_in_one_counter_charge_it_once_however_they_differ(options, ratekit_clock):
    """Such as a candidate that only monitors, beside the limit that is enforced."""
    client = TestClient(routed([PathRateLimiter(4, 60)], [PathRateLimiter(100, 60, **options)]))
    assert_admits(lambda: client.get("/x"), exactly=4)


def test_two_limiters_of_a_route_keep_two_counters(keys, ratekit_clock):
    client = TestClient(routed([PathRateLimiter(1000, 3600)], [PathRateLimiter(10, 1)]))
    assert_admits(lambda: client.get("/x"), exactly=10)
    assert keys() == ["ratelimit:/x:{*/x}:1s", "ratelimit:/x:{*/x}:3600s"]
    ratekit_clock.advance(1)
    assert_admits(lambda: client.get("/x"), exactly=10)


def test_refusal_by_one_of_two_limiters_spends_from_none(ratekit_clock):
    client = TestClient(routed([ProjectRateLimiter(25, 3600)], [ProjectRateLimiter(10, 1)]))
    assert_admits(lambda: client.get("/x"), exactly=10, of=30)
    ratekit_clock.advance(1)
    assert_admits(lambda: client.get("/x"), exactly=10, of=30)
    ratekit_clock.advance(1)
    assert_admits(lambda: client.get("/x"), exactly=5)


def evalshas(raw) -> int:
    return raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


@pytest.mark.parametrize(
    ("on_router", "on_route", "calls"),
    [
        ([PathRateLimiter(1000, 3600)], [PathRateLimiter(10, 600)], 1),
        ([ProjectRateLimiter(1000, 3600)], [ProjectRateLimiter(10, 600)], 1),
        ([ProjectRateLimiter(1000, 3600), ProjectRateLimiter(50, 60)], [ProjectRateLimiter(limits=["9/h", "99/d"])], 1),
        ([PathRateLimiter(1000, 3600)], [PathRateLimiter(1000, 3600)], 1),
        ([PathRateLimiter(1000, 3600)], [ProjectRateLimiter(10, 600, cost=3)], 1),
        ([PathRateLimiter(1000, 3600)], [], 1),
    ],
)
def test_limiters_of_a_route_are_decided_in_one_call(on_router, on_route, calls, redis_server, redis_store):
    app = routed(on_router, on_route, store=redis_store)
    with TestClient(app) as client, redis_server.client() as raw:
        client.get("/x")
        raw.config_resetstat()
        assert client.get("/x").status_code == 200
        assert evalshas(raw) == calls
        assert "cmdstat_eval" not in raw.info("commandstats")


def test_refusal_by_one_of_two_limiters_spends_from_none_on_redis(redis_server, redis_store):
    app = routed([PathRateLimiter(1000, 3600)], [PathRateLimiter(3, 600)], store=redis_store)
    with TestClient(app) as client:
        assert_admits(lambda: client.get("/x"), exactly=3, of=9)
        hour = client.portal.call(lambda: app.state.ratekit.limiter().peek(Limit(1000, 3600), "*/x", endpoint="/x"))
    assert hour.request_count == 3


def test_headers_are_those_of_the_most_restrictive_limiter(ratekit_clock):
    client = TestClient(routed([PathRateLimiter(1000, 3600)], [PathRateLimiter(2, 60)]))
    answers = [client.get("/x") for _ in range(3)]
    assert [answer.headers["RateLimit-Limit"] for answer in answers] == ["2", "2", "2"]
    assert answers[2].headers["Retry-After"] == "60"
    assert answers[2].json()["violated-policies"] == ["minute"]
    assert all(len(answer.headers.get_list("RateLimit-Limit")) == 1 for answer in answers)


def test_headers_are_those_of_the_most_restrictive_of_different_subjects(ratekit_clock):
    client = TestClient(routed([PathRateLimiter(2, 60)], [ProjectRateLimiter(9, 3600)]))
    assert client.get("/x").headers["RateLimit-Limit"] == "2"


def test_limiter_that_is_overridden_does_not_count(keys, ratekit_clock):
    limiter = PathRateLimiter(1, 60)
    app = routed([], [limiter])
    app.dependency_overrides[limiter] = nothing
    client = TestClient(app)
    assert [client.get("/x").status_code for _ in range(3)] == [200, 200, 200]
    assert keys() == []
    app.dependency_overrides.clear()
    assert_admits(lambda: client.get("/x"), exactly=1)


def test_limiter_that_is_overridden_is_not_decided_by_another(keys, ratekit_clock):
    tight, wide = PathRateLimiter(1, 60), PathRateLimiter(1000, 3600)
    app = routed([wide], [tight])
    app.dependency_overrides[tight] = nothing
    client = TestClient(app)
    assert [client.get("/x").status_code for _ in range(3)] == [200, 200, 200]
    assert keys() == ["ratelimit:/x:{*/x}:3600s"]


def test_limiter_that_overrides_another_counts(ratekit_clock):
    wide = PathRateLimiter(1000, 3600)
    app = routed([], [wide])
    app.dependency_overrides[wide] = PathRateLimiter(1, 60)
    client = TestClient(app)
    assert_admits(lambda: client.get("/x"), exactly=1)


def test_limiters_of_different_modes_stand_side_by_side(keys, ratekit_clock):
    client = TestClient(routed([PathRateLimiter(1, 60, mode="monitor")], [PathRateLimiter(3, 3600)]))
    assert_admits(lambda: client.get("/x"), exactly=3)
    assert len(keys()) == 2


def test_limiters_of_different_costs_stand_side_by_side(ratekit_clock):
    client = TestClient(routed([PathRateLimiter(100, 60)], [PathRateLimiter(100, 3600, cost=50)]))
    assert_admits(lambda: client.get("/x"), exactly=2)


def test_refused_request_does_not_reach_the_endpoint(ratekit_clock):
    app = installed()
    reached = []

    @app.get("/x", dependencies=[Depends(PathRateLimiter(2, 60))])
    async def x():
        reached.append(1)
        return {}

    client = TestClient(app)
    assert_admits(lambda: client.get("/x"), exactly=2, of=5)
    assert reached == [1, 1]


def test_limiter_after_authentication_waits_for_the_project(keys, ratekit_clock):
    """Not decided early, by the address, together with a limiter that runs before the project is known."""
    app = FastAPI()
    install(app)

    async def authenticate(request: Request):
        request.state.org_id, request.state.project_id = "acme", request.headers["x-project"]

    by_address, by_project = PathRateLimiter(100, 60, by="ip"), ProjectRateLimiter(2, 3600, anonymous="ip")
    app.get("/x", dependencies=[Depends(by_address), Depends(authenticate), Depends(by_project)])(nothing)
    client = TestClient(app, client=("203.0.113.7", 1))
    for project in ("p1", "p2"):
        assert_admits(lambda project=project: client.get("/x", headers={"X-Project": project}), exactly=2)


def test_cost_may_read_what_a_dependency_before_its_limiter_has_found(ratekit_clock):
    app = installed()

    async def measure(request: Request):
        request.state.size = 50

    by_size = PathRateLimiter(100, 3600, cost=lambda request: request.state.size)
    app.get("/x", dependencies=[Depends(PathRateLimiter(100, 60)), Depends(measure), Depends(by_size)])(nothing)
    client = TestClient(app, raise_server_exceptions=False)
    assert [client.get("/x").status_code for _ in range(3)] == [200, 200, 429]


def test_key_may_read_what_a_dependency_before_its_limiter_has_found(keys, ratekit_clock):
    app = installed()

    class ByRegion(ProjectRateLimiter):
        def make_key(self, request):
            return f"{super().make_key(request)}:{request.state.region}"

    async def locate(request: Request):
        request.state.region = "eu"

    limiters = [Depends(ProjectRateLimiter(100, 60)), Depends(locate), Depends(ByRegion(100, 3600))]
    app.get("/x", dependencies=limiters)(nothing)
    assert TestClient(app, raise_server_exceptions=False).get("/x").status_code == 200
    assert keys() == ["ratelimit:/x:{acme:p1}:60s", "ratelimit:/x:{acme:p1}:eu:3600s"]


def test_limiter_behind_a_dependency_that_refuses_is_not_charged(keys, ratekit_clock):
    """A request that authorisation refuses has not reached the limiter that stands behind it."""
    from fastapi import HTTPException

    app = installed()

    async def forbid():
        raise HTTPException(403)

    app.get("/x", dependencies=[Depends(PathRateLimiter(100, 60)), Depends(forbid), Depends(PathRateLimiter(5, 3600))])(
        nothing
    )
    client = TestClient(app)
    assert [client.get("/x").status_code for _ in range(3)] == [403, 403, 403]
    assert keys() == ["ratelimit:/x:{*/x}:60s"]


def test_stricter_of_two_limiters_on_one_counter_refuses_also_where_the_other_only_monitors(keys, ratekit_clock):
    client = TestClient(routed([PathRateLimiter(100, 60, mode="monitor")], [PathRateLimiter(3, 60)]))
    assert_admits(lambda: client.get("/x"), exactly=3, of=6)
    assert len(keys()) == 1


def test_counter_that_a_monitored_limiter_could_not_charge_is_not_given_back(ratekit_clock):
    client = TestClient(routed([PathRateLimiter(2, 60, mode="monitor")], [PathRateLimiter(4, 60)]))
    assert_admits(lambda: client.get("/x"), exactly=4, of=7)
