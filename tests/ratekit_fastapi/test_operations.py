"""Operations of one path count apart, under one endpoint; and so do limiters of different costs."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response, WebSocket
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ratekit import Limit, Policy
from ratekit.overrides import set_rate_limit_override
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, apply_element_rate_limit, apply_rate_limit, install

ADDRESS = "ip:203.0.113.7"


def nothing():
    return {}


def client_of(app: Starlette) -> TestClient:
    install(app, identify=lambda request: "me")
    return TestClient(app, client=("203.0.113.7", 1))


def statuses(client: TestClient, method: str, times: int, path: str = "/x") -> list[int]:
    return [client.request(method, path).status_code for _ in range(times)]


def suffixes(keys) -> list[str]:
    """Return the names of the limits that have counters."""
    return sorted(key.rpartition(":")[2] for key in keys())


@pytest.fixture(params=["route", "router", "app", "parameter"])
def app(request):
    """An application whose GET, POST and DELETE of /x have 2/min each, declared in one of the ways there are."""
    depends = Depends(PathRateLimiter(2, 60, by="ip"))
    of_app, of_router, of_route = ([depends] if request.param == name else [] for name in ("app", "router", "route"))
    app = FastAPI(dependencies=of_app)
    router = APIRouter(dependencies=of_router)

    def limited(_: None = depends):
        return {}

    for method in ("get", "post", "delete"):
        endpoint = limited if request.param == "parameter" else nothing
        getattr(router, method)("/x", dependencies=of_route)(endpoint)
    app.include_router(router)
    return app


def test_operations_of_one_path_have_counters_of_their_own(app, keys, ratekit_clock):
    client = client_of(app)
    for method in ("GET", "POST", "DELETE"):
        assert statuses(client, method, 3) == [200, 200, 429]
    assert keys() == [f"ratelimit:/x:{{{ADDRESS}}}:{name}" for name in ("60s", "delete-60s", "post-60s")]


def test_override_of_the_path_applies_to_all_operations_and_one_of_a_limit_to_its_own(app, store, ratekit_clock):
    client = client_of(app)
    set_rate_limit_override(store, endpoint="/x", subject=ADDRESS, max_requests=1)
    assert statuses(client, "GET", 2) == statuses(client, "POST", 2) == [200, 429]
    set_rate_limit_override(store, endpoint="/x", subject=ADDRESS, limit="post-60s", max_requests=3)
    assert statuses(client, "POST", 3) == [200, 200, 429]
    assert statuses(client, "GET", 1) == [429]


def test_refusal_names_the_limit_of_the_operation(app, ratekit_clock):
    client = client_of(app)
    assert [client.post("/x") for _ in range(3)][2].json()["violated-policies"] == ["post minute"]


@pytest.mark.parametrize(
    ("methods", "name"),
    [(["GET"], "60s"), (["GET", "HEAD"], "60s"), (["POST", "GET"], "get-post-60s"), (["put", "PATCH"], "patch-put-60s")],
)
def test_operation_of_several_methods_has_one_counter(methods, name, keys, ratekit_clock):
    app = FastAPI()
    app.api_route("/x", methods=methods, dependencies=[Depends(PathRateLimiter(len(methods), 60))])(nothing)
    client = client_of(app)
    asked = [client.request(method, "/x").status_code for method in [*methods, *methods]]
    assert asked == [200] * len(methods) + [429] * len(methods)
    assert suffixes(keys) == [name]


def test_name_of_an_operation_does_not_depend_on_others(keys, ratekit_clock):
    app = FastAPI()
    app.post("/x", dependencies=[Depends(PathRateLimiter(1, 60))])(nothing)
    client_of(app).post("/x")
    assert suffixes(keys) == ["post-60s"]


def test_endpoint_that_is_given_counts_all_operations_together(keys, ratekit_clock):
    app = FastAPI(dependencies=[Depends(PathRateLimiter(2, 60, endpoint="all"))])
    app.get("/x")(nothing)
    app.post("/y")(nothing)
    client = client_of(app)
    assert [client.get("/x").status_code, client.post("/y").status_code, client.get("/x").status_code] == [200, 200, 429]
    assert suffixes(keys) == ["60s"]


def test_keys_of_a_subclass_have_the_operation_in_the_limit_s_name(keys, ratekit_clock):
    class Regional(ProjectRateLimiter):
        def make_key(self, request):
            return f"{super().make_key(request)}:eu"

    app = FastAPI(dependencies=[Depends(Regional(1, 60))])
    app.get("/x")(nothing)
    app.post("/x")(nothing)
    client = client_of(app)
    assert statuses(client, "GET", 2) == statuses(client, "POST", 2) == [200, 429]
    assert keys() == ["ratelimit:/x:{me}:eu:60s", "ratelimit:/x:{me}:eu:post-60s"]


@pytest.mark.parametrize("apply", [apply_rate_limit, apply_element_rate_limit])
def test_limits_that_an_endpoint_applies_belong_to_its_operation(apply, keys, ratekit_clock):
    app = FastAPI()

    async def endpoint(request: Request, response: Response):
        await apply(request, response, max_requests=1, expiry=60, increment_amount=1)

    app.get("/x")(endpoint)
    app.post("/x")(endpoint)
    client = client_of(app)
    assert statuses(client, "GET", 2) == statuses(client, "POST", 2) == [200, 429]
    assert suffixes(keys) == ["60s", "post-60s"]


def test_named_limits_and_policies_belong_to_the_operation_too(keys, ratekit_clock):
    policy = Policy("mine", [Limit(1, 60, name="minute"), Limit(5, 3600, burst=9)])
    app = FastAPI(dependencies=[Depends(PathRateLimiter(policy=policy))])
    app.get("/x")(nothing)
    app.post("/x")(nothing)
    client = client_of(app)
    assert statuses(client, "GET", 2) == statuses(client, "POST", 2) == [200, 429]
    assert suffixes(keys) == ["3600s@token_bucket", "minute", "post-3600s@token_bucket", "post-minute"]


def test_socket_counts_like_a_get(keys, ratekit_clock):
    app = FastAPI()

    @app.websocket("/x", dependencies=[Depends(PathRateLimiter(2, 60))])
    async def ws(websocket: WebSocket):
        await websocket.accept()
        await websocket.close()

    with client_of(app).websocket_connect("/x"):
        pass
    assert suffixes(keys) == ["60s"]


def test_route_that_declares_no_method_has_one_counter_and_one_for_options(keys, ratekit_clock):
    class Any(HTTPEndpoint):
        async def dispatch(self):
            response = PlainTextResponse("hello")
            request = Request(self.scope, self.receive)
            await apply_rate_limit(request, response, max_requests=2, expiry=60)
            await response(self.scope, self.receive, self.send)

    client = client_of(Starlette(routes=[Route("/x", Any)]))
    assert [client.request(method, "/x").status_code for method in ("FOO1", "FOO2", "FOO3")] == [200, 200, 429]
    assert [client.request(method, "/x").status_code for method in ("OPTIONS", "options", "OPTIONS")] == [200, 200, 429]
    assert suffixes(keys) == ["60s", "options-60s"]


def test_preflights_that_cors_answers_are_not_counted(keys, ratekit_clock):
    app = FastAPI()
    app.get("/x", dependencies=[Depends(PathRateLimiter(1, 60))])(nothing)
    client = client_of(app)
    app.add_middleware(CORSMiddleware, allow_origins=["*"], expose_headers=["RateLimit-Limit", "Retry-After"])
    asking = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
    assert [client.options("/x", headers=asking).status_code for _ in range(3)] == [200] * 3
    assert keys() == []
    answers = [client.get("/x", headers={"Origin": "https://a.example"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].headers["Access-Control-Allow-Origin"] == "*"
    assert "Retry-After" in answers[1].headers["Access-Control-Expose-Headers"]


def elements(request):
    return 50


@pytest.mark.parametrize(
    ("cost", "name"), [(50, "cost-50-60s"), (elements, "cost-elements-60s")], ids=["number", "callable"]
)
def test_limiter_with_a_cost_of_its_own_has_a_counter_of_its_own(cost, name, limited, keys, ratekit_clock):
    """One counter for both said "50 of 4 used"."""
    client = limited(PathRateLimiter(4, 60), PathRateLimiter(100, 60, cost=cost))
    answers = [client.get("/x") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["violated-policies"] == [name.replace("-60s", " minute")]
    assert suffixes(keys) == ["60s", name]


def test_limiters_of_different_costs_count_apart(limited, keys, ratekit_clock):
    costs = [2, 3, lambda request: 2, lambda request: 3, elements]
    client = limited(*(PathRateLimiter(100, 60, cost=cost) for cost in costs))
    assert [client.get("/x").status_code for _ in range(3)] == [200, 200, 429]
    assert len(keys()) == len(costs)


def test_limiters_of_different_costs_share_a_budget_by_the_name_of_its_limit(keys, ratekit_clock):
    app = FastAPI()
    for path, cost in (("/small", 1), ("/large", 9)):
        limiter = PathRateLimiter(limits="units=10/min", endpoint="llm", cost=cost)
        app.post(path, dependencies=[Depends(limiter)])(nothing)
    client = client_of(app)
    assert [client.post(path).status_code for path in ("/small", "/large", "/small")] == [200, 200, 429]
    assert suffixes(keys) == ["units"]


def test_limiter_that_only_looks_looks_at_the_counter_of_requests(limited, keys, ratekit_clock):
    client = limited(PathRateLimiter(2, 60), PathRateLimiter(1, 60, cost=0))
    assert client.get("/x").status_code == 200
    assert suffixes(keys) == ["60s"]
