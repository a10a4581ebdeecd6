"""What a limiter takes: numbers, rates, a policy, a cost, an endpoint, and whom it limits."""

from __future__ import annotations

import pytest
from fastapi import Depends, FastAPI, Request
from starlette.testclient import TestClient

from ratekit import Limit, Policy
from ratekit.testing import assert_admits
from ratekit.web.identity import cookie, first_of, header, query
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, install


def nothing():
    return {}


def as_project(_):
    return ("acme", "p1")


@pytest.mark.parametrize(
    "options",
    [
        {"max_requests": 3, "expiry": 60},
        {"limits": ["3/min"]},
        {"limits": "3/min"},
        {"limits": Limit(3, 60)},
        {"limits": Policy("three", Limit(3, 60))},
        {"policy": Policy("three", [Limit(3, 60), Limit(100, 3600)])},
        {"limits": ["3/s", "1000/min"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [ProjectRateLimiter, PathRateLimiter])
def test_limiter_admits_its_maximum_however_it_is_given(kind, options, limited, ratekit_clock):
    client = limited(kind(**options), identify=as_project)
    assert_admits(lambda: client.get("/x"), exactly=3)


def test_single_limit_is_taken_where_a_policy_is(limited, ratekit_clock):
    client = limited(PathRateLimiter(policy=Limit(3, 60)))
    assert_admits(lambda: client.get("/x"), exactly=3)


def test_limiter_admits_again_when_the_window_has_passed(limited, ratekit_clock):
    client = limited(PathRateLimiter(2, 60))
    assert_admits(lambda: client.get("/x"), exactly=2)
    ratekit_clock.advance(60)
    assert_admits(lambda: client.get("/x"), exactly=2)


def test_refusal_by_one_of_several_limits_spends_from_none(limited, ratekit_clock):
    client = limited(PathRateLimiter(limits=["2/s", "5/min"]))
    assert_admits(lambda: client.get("/x"), exactly=2, of=9)
    ratekit_clock.advance(1)
    assert_admits(lambda: client.get("/x"), exactly=2)
    ratekit_clock.advance(1)
    assert_admits(lambda: client.get("/x"), exactly=1)


def test_token_bucket_limits_a_route(limited, ratekit_clock):
    client = limited(PathRateLimiter(limits=["1/s burst 3"]))
    assert_admits(lambda: client.get("/x"), exactly=3)
    ratekit_clock.advance(2)
    assert_admits(lambda: client.get("/x"), exactly=2)


def test_path_limiter_counts_all_callers_together(ratekit_clock, limited):
    client = limited(PathRateLimiter(2, 60))
    others = TestClient(client.app, client=("198.51.100.1", 1))
    assert client.get("/x").status_code == 200
    assert others.get("/x").status_code == 200
    assert others.get("/x").status_code == 429


def test_path_limiter_by_ip_counts_each_caller(ratekit_clock, limited):
    client = limited(PathRateLimiter(2, 60, by="ip"))
    others = TestClient(client.app, client=("198.51.100.1", 1))
    assert_admits(lambda: client.get("/x"), exactly=2)
    assert_admits(lambda: others.get("/x"), exactly=2)


def test_addresses_of_one_ipv6_network_are_one_caller(ratekit_clock, limited):
    client = limited(PathRateLimiter(2, 60, by="ip"))
    hosts = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8::3"]
    answers = [TestClient(client.app, client=(host, 1)).get("/x").status_code for host in hosts]
    assert answers == [200, 200, 429]


def test_forwarded_header_is_not_believed_by_default(ratekit_clock, limited):
    client = limited(PathRateLimiter(2, 60, by="ip"))
    numbers = iter(range(9))
    assert_admits(lambda: client.get("/x", headers={"X-Forwarded-For": f"10.0.0.{next(numbers)}"}), exactly=2)


def test_forwarded_header_of_a_trusted_hop_names_the_caller(ratekit_clock, limited):
    client = limited(PathRateLimiter(1, 60, by="ip"), trusted_hops=1)
    spoofed = ["9.9.9.9, 10.0.0.1", "8.8.8.8, 10.0.0.1", "9.9.9.9, 10.0.0.2"]
    assert [client.get("/x", headers={"X-Forwarded-For": line}).status_code for line in spoofed] == [200, 429, 200]


@pytest.mark.parametrize("by", ["header:X-Key", header("X-Key"), lambda request: request.headers.get("x-key")])
@pytest.mark.parametrize("kind", [ProjectRateLimiter, PathRateLimiter])
def test_key_function_counts_each_of_its_subjects(kind, by, limited, ratekit_clock):
    client = limited(kind(2, 60, by=by))
    for key in ("a", "b"):
        assert_admits(lambda key=key: client.get("/x", headers={"X-Key": key}), exactly=2)


def test_callable_gets_the_request_of_the_framework(limited, ratekit_clock):
    seen = []
    limited(PathRateLimiter(2, 60, by=lambda request: seen.append(request) or "me")).get("/x?a=1")
    assert isinstance(seen[0], Request)
    assert seen[0].query_params["a"] == "1"


def test_chain_takes_the_first_that_the_request_says(limited, keys, ratekit_clock):
    client = limited(PathRateLimiter(9, 60, by=first_of(header("X-Key", plain=True), query("user", plain=True), "ip")))
    client.get("/x?user=u", headers={"X-Key": "k"})
    client.get("/x?user=u")
    client.get("/x")
    assert keys() == [
        "ratelimit:/x:{header:x-key:k}:60s",
        "ratelimit:/x:{ip:203.0.113.7}:60s",
        "ratelimit:/x:{query:user:u}:60s",
    ]


@pytest.mark.parametrize("by", [header("X-Key"), cookie("session"), query("token")], ids=lambda by: by.name)
def test_secret_does_not_show_up_in_the_names_of_keys(by, limited, keys, ratekit_clock):
    client = limited(PathRateLimiter(9, 60, by=by))
    client.cookies.set("session", "hunter2")
    client.get("/x?token=hunter2", headers={"X-Key": "hunter2"})
    assert len(keys()) == 1
    assert "hunter2" not in keys()[0]


@pytest.mark.parametrize("by", ["header:X-API-Key", "query:token", "cookie:session"])
def test_who_does_not_say_who_he_is_is_limited_by_his_address(by, limited, ratekit_clock):
    """As in ratekit.asgi: saying nothing must not pay."""
    client = limited(PathRateLimiter(2, 60, by=by))
    assert_admits(lambda: client.get("/x"), exactly=2)


def test_callable_that_answers_none_limits_nobody(limited, keys, ratekit_clock):
    client = limited(PathRateLimiter(1, 60, by=lambda request: None))
    assert [client.get("/x").status_code for _ in range(3)] == [200, 200, 200]
    assert keys() == []


def test_caller_at_a_unix_socket_does_not_pass_in_silence(limited, caplog, ratekit_clock):
    """There is no address then; ratekit.asgi lets such requests pass, and says so."""
    client = TestClient(limited(PathRateLimiter(1, 60, by="ip")).app, client=None)
    client.get("/x")
    assert client.get("/x").status_code == 429 or "address" in caplog.text


def test_limit_by_address_holds_under_a_test_client(limited, ratekit_clock):
    """Which says "testclient" in place of an address."""
    client = TestClient(limited(PathRateLimiter(1, 60, by="ip")).app)
    assert_admits(lambda: client.get("/x"), exactly=1)


async def cost_of_header_later(request):
    return int(request.headers["x-cost"])


@pytest.mark.parametrize(
    "cost", [5, lambda request: int(request.headers["x-cost"]), cost_of_header_later], ids=["number", "callable", "async"]
)
def test_request_costs_what_its_cost_says(cost, limited, ratekit_clock):
    client = limited(PathRateLimiter(10, 60, cost=cost))
    remaining = [client.get("/x", headers={"X-Cost": "5"}).headers["RateLimit-Remaining"] for _ in range(3)]
    assert remaining == ["5", "0", "0"]


def test_cost_of_zero_looks_and_spends_nothing(limited, ratekit_clock):
    client = limited(PathRateLimiter(2, 60, cost=0))
    assert [client.get("/x").headers["RateLimit-Remaining"] for _ in range(4)] == ["2", "2", "2", "2"]


def test_cost_that_can_never_fit_is_refused_without_retry_after(limited, ratekit_clock):
    answer = limited(PathRateLimiter(10, 60, cost=11)).get("/x")
    assert answer.status_code == 429
    assert "Retry-After" not in answer.headers


def test_endpoint_that_is_given_wins_over_the_template(keys, ratekit_clock):
    app = FastAPI()
    install(app)
    limiter = PathRateLimiter(2, 60, endpoint="reports")
    for path in ("/a", "/b"):
        app.get(path, dependencies=[Depends(limiter)])(nothing)
    client = TestClient(app)
    assert [client.get(path).status_code for path in ("/a", "/b", "/a", "/b")] == [200, 200, 429, 429]
    assert keys() == ["ratelimit:reports:{*reports}:60s"]


def test_keys_are_those_of_the_design(limited, keys, ratekit_clock):
    limited(ProjectRateLimiter(5, 60), PathRateLimiter(9, 1), identify=as_project).get("/x")
    assert keys() == ["ratelimit:/x:{*/x}:1s", "ratelimit:/x:{acme:p1}:60s"]


def test_prefix_of_keys_can_be_chosen(limited, store, ratekit_clock):
    limited(PathRateLimiter(5, 60), prefix="shop").get("/x")
    assert store.execute("KEYS", "shop:") == [b"shop:/x:{*/x}:60s"]


def test_template_without_convertors_is_the_endpoint(keys, ratekit_clock):
    app = FastAPI()
    install(app)
    limiter = PathRateLimiter(5, 60)
    app.get("/files/{name:path}", dependencies=[Depends(limiter)])(lambda name: {})
    app.get("/file", dependencies=[Depends(limiter)])(nothing)
    client = TestClient(app)
    client.get("/files/a/b")
    client.get("/file")
    assert keys() == ["ratelimit:/file:{*/file}:60s", "ratelimit:/files/%7Bname%7D:{*/files/%7Bname%7D}:60s"]


def test_limiters_of_the_same_numbers_are_equal():
    assert PathRateLimiter(5, 60) == PathRateLimiter(5, 60)
    assert hash(ProjectRateLimiter(limits=["5/min"])) == hash(ProjectRateLimiter(limits=["5/min"]))
    assert PathRateLimiter(5, 60) != ProjectRateLimiter(5, 60)
    assert PathRateLimiter(5, 60) != PathRateLimiter(6, 60)
    assert PathRateLimiter(5, 60) != PathRateLimiter(5, 60, mode="monitor")
    assert ProjectRateLimiter(5, 60) != ProjectRateLimiter(5, 60, anonymous="ip")


def test_limiter_in_a_parameter_limits_too(ratekit_clock):
    app = FastAPI()
    install(app)
    limiter = PathRateLimiter(2, 60)

    @app.get("/x")
    async def x(_: None = Depends(limiter)):
        return {}

    client = TestClient(app)
    assert_admits(lambda: client.get("/x"), exactly=2)


def test_limiter_of_a_nested_dependency_limits_too(ratekit_clock):
    app = FastAPI()
    install(app)

    def outer(_: None = Depends(PathRateLimiter(2, 60))):
        return 1

    @app.get("/x")
    async def x(_: int = Depends(outer)):
        return {}

    client = TestClient(app)
    assert_admits(lambda: client.get("/x"), exactly=2)


def test_limiter_of_the_whole_application_counts_each_route_apart(ratekit_clock):
    app = FastAPI(dependencies=[Depends(PathRateLimiter(2, 60))])
    install(app)
    app.get("/a")(nothing)
    app.get("/b")(nothing)
    client = TestClient(app)
    assert_admits(lambda: client.get("/a"), exactly=2)
    assert_admits(lambda: client.get("/b"), exactly=2)
