"""FastAPI: limits that callables and dependencies decide, results that endpoints read, and the middleware of its own."""

from __future__ import annotations

from itertools import count
from typing import Annotated, Any
from uuid import UUID

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Request, WebSocket
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient, WebSocketDenialResponse

from ratekit import ConfigurationError, Limit, RateLimitResult
from ratekit_fastapi import (
    PathRateLimiter,
    ProjectRateLimiter,
    RateLimitMiddleware,
    Reservation,
    ReserveLimiter,
    install,
)


def nothing() -> dict[str, str]:
    return {}


def served(app: FastAPI) -> TestClient:
    return TestClient(app, raise_server_exceptions=False)


def limited(*limiters: PathRateLimiter | ProjectRateLimiter, **installed: Any) -> TestClient:
    app = FastAPI()
    install(app, store="memory://", **installed)
    app.get("/x", dependencies=[Depends(limiter) for limiter in limiters])(nothing)
    return served(app)


def user_id(x_user: Annotated[str | None, Header()] = None) -> str | None:
    return x_user


async def integer_id() -> int:
    return 42


def uuid_id() -> UUID:
    return UUID(int=7)


CALLS = count(1)
ATTEMPTS = PathRateLimiter(2, 60, by="ip", block=False)
SPENT = ReserveLimiter(2, 60, by="ip", block=False)


def number_of_calls() -> int:
    return next(CALLS)


def statuses(client: TestClient, times: int, **headers: str) -> list[int]:
    return [client.get("/x", headers=headers).status_code for _ in range(times)]


def test_dependency_says_who_is_limited():
    client = limited(PathRateLimiter(1, 60, by=Depends(user_id)))
    assert statuses(client, 2, **{"X-User": "ann"}) == [200, 429]
    assert statuses(client, 2, **{"X-User": "bob"}) == [200, 429]
    assert statuses(client, 3) == [200, 200, 200]  # nobody


@pytest.mark.parametrize("dependency", [integer_id, uuid_id])
def test_dependency_may_answer_an_id(dependency):
    assert statuses(limited(PathRateLimiter(1, 60, by=Depends(dependency))), 2) == [200, 429]


def test_project_limiter_takes_a_dependency_too():
    assert statuses(limited(ProjectRateLimiter(1, 60, by=Depends(integer_id))), 2) == [200, 429]


def test_dependency_that_answers_an_object_is_a_500_without_the_value(caplog):
    def user() -> dict[str, str]:
        return {"password": "hunter2"}

    client = limited(PathRateLimiter(1, 60, by=Depends(user)))
    answer = client.get("/x")
    assert answer.status_code == 500
    assert "value of the type dict" in caplog.text
    assert "hunter2" not in answer.text


def test_dependency_is_asked_once_for_the_endpoint_and_the_limiter():
    app = FastAPI()
    install(app, store="memory://")

    @app.get("/x", dependencies=[Depends(PathRateLimiter(5, 60, by=Depends(number_of_calls)))])
    def endpoint(number: Annotated[int, Depends(number_of_calls)]) -> int:
        return number

    client = served(app)
    assert [client.get("/x").json() for _ in range(3)] == [1, 2, 3]


def test_dependency_that_by_names_is_part_of_the_operation_and_nothing_else_is():
    app = FastAPI()
    install(app, store="memory://")
    app.get("/x", dependencies=[Depends(PathRateLimiter(1, 60, by=Depends(user_id)))])(nothing)
    app.get("/y", dependencies=[Depends(PathRateLimiter(1, 60))])(nothing)
    paths = app.openapi()["paths"]
    assert [parameter["name"] for parameter in paths["/x"]["get"]["parameters"]] == ["x-user"]
    assert "parameters" not in paths["/y"]["get"]


def test_dependency_that_fails_refuses_before_anything_is_spent():
    from fastapi import HTTPException

    def user() -> str:
        raise HTTPException(401)

    client = limited(PathRateLimiter(1, 60, by=Depends(user)))
    assert statuses(client, 3) == [401, 401, 401]


def test_dependency_that_a_test_overrides_is_overridden():
    client = limited(PathRateLimiter(1, 60, by=Depends(user_id)))
    client.app.dependency_overrides[user_id] = lambda: "somebody"
    assert statuses(client, 2) == [200, 429]


def test_by_depends_on_nothing_is_an_error_at_the_start():
    with pytest.raises(ConfigurationError, match="names no dependency"):
        PathRateLimiter(1, 60, by=Depends())


def test_limiter_of_a_router_and_one_by_a_dependency_are_all_or_nothing(ratekit_store):
    app = FastAPI()
    install(app, store="memory://")
    router = APIRouter(dependencies=[Depends(PathRateLimiter(policy=Limit(100, 60, name="wide"), by="ip"))])
    narrow = PathRateLimiter(policy=Limit(1, 60, name="narrow"), by=Depends(user_id))
    router.get("/x", dependencies=[Depends(narrow)])(nothing)
    app.include_router(router)
    assert statuses(served(app), 3, **{"X-User": "ann"}) == [200, 429, 429]
    wide = next(key for key in ratekit_store.execute("KEYS", "ratelimit:") if key.endswith(b":wide"))
    assert ratekit_store.execute("HMGET", wide, "n") == [1]


def test_websocket_is_limited_by_what_a_dependency_says():
    app = FastAPI()
    install(app, store="memory://")

    @app.websocket("/ws", dependencies=[Depends(PathRateLimiter(1, 60, by=Depends(integer_id)))])
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    client = TestClient(app)
    with client.websocket_connect("/ws"):
        pass
    with pytest.raises(WebSocketDenialResponse), client.websocket_connect("/ws"):
        pass


def test_endpoint_reads_the_result_of_a_limiter_that_does_not_block():
    app = FastAPI()
    install(app, store="memory://")

    @app.get("/x", dependencies=[Depends(PathRateLimiter(100, 3600, by="ip"))])
    def endpoint(result: Annotated[RateLimitResult | None, Depends(ATTEMPTS)]) -> dict[str, Any]:
        return {"captcha": result is not None and result.is_over_limit, "most": result and result.max_requests}

    answers = [served(app).get("/x") for _ in range(4)]
    assert [answer.json()["captcha"] for answer in answers] == [False, False, True, True]
    assert {answer.json()["most"] for answer in answers} == {2}
    assert answers[-1].headers["ratelimit-remaining"] == "0"


def test_reservation_of_a_limiter_that_does_not_block_says_that_it_is_over_its_limit():
    app = FastAPI()
    install(app, store="memory://")

    @app.get("/x")
    def endpoint(usage: Annotated[Reservation, Depends(SPENT)]) -> list[bool]:
        usage.settle(1)
        return [usage.allowed, usage.is_over_limit, usage.result.is_over_limit]

    answers = [served(app).get("/x").json() for _ in range(3)]
    assert answers == [[True, False, False], [True, False, False], [False, True, True]]


def test_result_is_none_where_limits_are_off(monkeypatch):
    app = FastAPI()
    install(app, store="memory://")

    @app.get("/x")
    def endpoint(result: Annotated[RateLimitResult | None, Depends(ATTEMPTS)]) -> bool:
        return result is None

    assert served(app).get("/x").json() is False
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert served(app).get("/x").json() is True


def test_refused_request_has_spent_nothing_in_a_limiter_that_does_not_block():
    captcha = PathRateLimiter(policy=Limit(100, 60, name="captcha"), by="ip", block=False)
    client = limited(captcha, PathRateLimiter(policy=Limit(1, 60, name="hard"), by="ip"), headers="draft-11")
    answers = [client.get("/x") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert '"captcha";r=99' in answers[-1].headers["ratelimit"] or "captcha" not in answers[-1].headers["ratelimit"]


def test_limits_of_operations_of_one_path_are_counted_apart():
    app = FastAPI()
    install(app, store="memory://")
    limiter = PathRateLimiter(limits=lambda request: "1/min", by="ip")
    for method in ("GET", "POST"):
        app.add_api_route("/x", nothing, methods=[method], dependencies=[Depends(limiter)], name=method)
    client = served(app)
    assert [client.get("/x").status_code, client.post("/x").status_code, client.post("/x").status_code] == [200, 200, 429]


def test_slot_of_limits_that_are_asked_for_is_free_when_the_response_has_ended():
    concurrent = Limit(1, 60, algorithm="concurrency")
    assert statuses(limited(PathRateLimiter(limits=lambda request: concurrent)), 3) == [200] * 3


def test_plan_without_a_lookup_is_a_500_and_never_unlimited():
    assert statuses(limited(PathRateLimiter(limits="plan"), plans={"free": "1/s"}), 1) == [500]


def test_settings_have_the_plans_and_their_replacement_is_in_force():
    app = FastAPI()
    settings = install(app, store="memory://", plans={"free": "1/min"}, plan_of=lambda request: "free")
    app.get("/x", dependencies=[Depends(PathRateLimiter(limits="plan"))])(nothing)
    client = served(app)
    assert statuses(client, 2) == [200, 429]
    settings.plans.replace({"free": "2/min"})
    assert statuses(client, 2) == [200, 429]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plans": "free"}, "plans 'free' is not a mapping"),
        ({"plans": {"free": "often"}}, r"plans\['free'\]"),
        ({"plan_of": "free"}, "plan_of 'free' is not a callable"),
    ],
)
def test_plans_that_make_no_sense_are_an_error_of_install(options, message):
    with pytest.raises(ConfigurationError, match=message):
        install(FastAPI(), store="memory://", **options)


@pytest.mark.parametrize("block", [None, 1, "no"])
def test_block_is_true_or_false(block):
    with pytest.raises(ConfigurationError, match="block .* is neither True nor False"):
        PathRateLimiter(1, 60, block=block)


def application() -> FastAPI:
    app = FastAPI()
    router = APIRouter(prefix="/shops/{shop}")
    router.get("/items/{item}")(nothing)
    app.include_router(router)
    app.get("/items/{item}")(nothing)
    inner = FastAPI()
    inner.get("/deep/{name}")(nothing)
    app.mount("/mounted/{tenant}", inner)
    return app


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/items/1", "/items/2"),
        ("/shops/a/items/1", "/shops/b/items/2"),
        ("/mounted/a/deep/x", "/mounted/b/deep/y"),
        ("/no/where", "/else/where"),
    ],
)
def test_default_per_route_counts_each_template_for_itself(one, other):
    app = application()
    app.add_middleware(RateLimitMiddleware, store="memory://", default={"limits": "1/min", "per_route": True})
    client = served(app)
    assert client.get(one).status_code != 429
    assert client.get(other).status_code == 429
    assert client.get("/openapi.json").status_code == 200


def test_key_function_of_a_dependency_works_in_the_middleware_beside_it():
    seen: list[type] = []

    async def tenant(request: Request) -> str | None:
        seen.append(type(request))
        return request.headers.get("x-tenant")

    app = FastAPI()
    install(app, store="memory://")
    app.get("/x", dependencies=[Depends(PathRateLimiter(3, 60, by=tenant))])(nothing)
    app.add_middleware(RateLimitMiddleware, store="memory://", by=tenant, default="2/min")
    assert statuses(served(app), 3, **{"X-Tenant": "a"}) == [200, 200, 429]
    assert set(seen) == {Request}


def test_middleware_limits_sockets_by_their_connection():
    seen: list[type] = []

    def tenant(connection: HTTPConnection) -> str:
        seen.append(type(connection))
        return "a"

    app = FastAPI()

    @app.websocket("/ws")
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    app.add_middleware(RateLimitMiddleware, store="memory://", by=tenant)
    with TestClient(app).websocket_connect("/ws"):
        pass
    assert seen == [HTTPConnection]
