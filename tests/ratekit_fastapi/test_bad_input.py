"""Nonsense is told at the start, in a sentence that names the field and the value; else it is a 4xx, never a 500."""

from __future__ import annotations

import pytest
import redis
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from ratekit import ConfigurationError, Policy
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, install


@pytest.mark.parametrize("kind", [PathRateLimiter, ProjectRateLimiter])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_requests", 0),
        ("max_requests", -1),
        ("max_requests", "5"),
        ("max_requests", 1.5),
        ("max_requests", True),
        ("max_requests", 10**13),
        ("expiry", 0),
        ("expiry", -1),
        ("expiry", "60"),
        ("expiry", float("nan")),
        ("expiry", float("inf")),
        ("expiry", 10**12),
        ("cost", -1),
        ("cost", "x"),
        ("cost", 1.5),
        ("cost", True),
        ("cost", None),
        ("cost", 10**13),
        ("endpoint", ""),
        ("endpoint", 5),
        ("mode", "audit"),
        ("mode", ""),
        ("mode", 5),
        ("on_outage", "explode"),
        ("on_outage", 5),
        ("by", "address"),
        ("by", ""),
        ("by", "header:"),
        ("by", 5),
    ],
)
def test_argument_that_makes_no_sense_is_told_at_the_start(kind, field, value):
    with pytest.raises(ConfigurationError) as error:
        kind(**({"max_requests": 5, "expiry": 60} | {field: value}))
    assert field in str(error.value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "max_requests"),
        ({"max_requests": 5}, "expiry"),
        ({"expiry": 60}, "max_requests"),
        ({"max_requests": 5, "expiry": 60, "limits": ["5/min"]}, "limits"),
        ({"limits": ["5/min"], "policy": Policy("p", "5/min")}, "policy"),
        ({"limits": "5/minx"}, "'5/minx'"),
        ({"limits": ["20/s", "1000 a min"]}, "'1000 a min'"),
        ({"limits": ["5/fortnight"]}, "5/fortnight"),
        ({"limits": [5]}, "5"),
        ({"limits": 5}, "5"),
        ({"limits": []}, "limits"),
        ({"limits": ["5/min", "9/min"]}, "'60s'"),
        ({"policy": "5/min"}, "'5/min'"),
        ({"policy": 5}, "5"),
    ],
    ids=str,
)
def test_limits_that_make_no_sense_are_told_at_the_start(options, named):
    with pytest.raises(ConfigurationError) as error:
        PathRateLimiter(**options)
    assert named in str(error.value)


@pytest.mark.parametrize("anonymous", ["block", "", 5])
def test_unknown_anonymous_is_told_at_the_start(anonymous):
    with pytest.raises(ConfigurationError) as error:
        ProjectRateLimiter(5, 60, anonymous=anonymous)
    assert f"anonymous {anonymous!r}" in str(error.value)


def test_unknown_argument_is_told_at_the_start():
    with pytest.raises(TypeError, match="max_request"):
        ProjectRateLimiter(max_request=5, expiry=60)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("identify", 5),
        ("identify", "user"),
        ("headers", "x-rate"),
        ("headers", ["ratelimit", "x-rate"]),
        ("headers", 5),
        ("body", "slow down"),
        ("body", {"error": "slow down"}),
        ("on_outage", "explode"),
        ("trusted_hops", -1),
        ("trusted_hops", 1.5),
        ("trusted_hops", True),
        ("trusted_hops", "proxy"),
        ("trusted_hops", ["10.0.0.0/99"]),
        ("trusted_header", "X-Client-IP"),
        ("trusted_header", 5),
        ("prefix", ""),
        ("prefix", "a b"),
        ("prefix", "a{b}"),
        ("prefix", 5),
    ],
)
def test_argument_of_install_that_makes_no_sense_is_told_at_the_start(field, value):
    with pytest.raises(ConfigurationError) as error:
        install(FastAPI(), **{field: value})
    wrong = value[-1] if isinstance(value, list) else value
    named = {"headers": "style"}.get(field, field)
    assert field in str(error.value) or named in str(error.value)
    assert repr(wrong) in str(error.value)


@pytest.mark.parametrize("store", ["ftp://nowhere", "nowhere", "", "memory://x?y=1", "redis://host:port", 5, redis.Redis()])
def test_store_that_makes_no_sense_is_told_at_the_start(store):
    with pytest.raises(ConfigurationError, match="store"):
        install(FastAPI(), store=store)


def test_secret_of_a_store_does_not_show_up_in_the_message():
    with pytest.raises(ConfigurationError) as error:
        install(FastAPI(), store="ftp://user:hunter2@host")
    assert "hunter2" not in str(error.value)


async def later(request):
    return "x"


@pytest.mark.parametrize("cost", [-1, 10**13])
@pytest.mark.parametrize("kind", [PathRateLimiter, ProjectRateLimiter])
def test_cost_that_cannot_be_spent_is_a_400(kind, cost, limited, keys, ratekit_clock):
    answer = limited(kind(5, 60, cost=lambda request: cost), identify=lambda request: "me").get("/x")
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == 400
    assert "cost" in answer.json()["detail"]
    assert keys() == []


@pytest.mark.parametrize(
    ("cost", "kind_of_answer"),
    [
        (lambda request: "hunter2", "str"),
        (lambda request: 1.5, "float"),
        (lambda request: None, "NoneType"),
        (lambda request: True, "bool"),
        (later, "str"),
    ],
    ids=["text", "fraction", "none", "bool", "async text"],
)
@pytest.mark.parametrize("kind", [PathRateLimiter, ProjectRateLimiter])
def test_cost_of_a_wrong_type_is_a_500_that_names_the_type_only(
    kind, cost, kind_of_answer, limited, keys, caplog, ratekit_clock
):
    answer = limited(kind(5, 60, cost=cost), identify=lambda request: "me").get("/x")
    assert answer.status_code == 500
    assert f"cost gave a value of the type {kind_of_answer}" in caplog.text
    assert "hunter2" not in answer.text + caplog.text
    assert keys() == []


def test_cost_of_a_wrong_type_passes_while_monitoring(limited, monkeypatch, ratekit_clock):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert limited(PathRateLimiter(5, 60, cost=lambda request: 1.5)).get("/x").status_code == 200


def test_cost_that_makes_no_sense_is_a_400_without_install(ratekit_clock):
    from fastapi import Depends
    from starlette.testclient import TestClient

    app = FastAPI()
    app.get("/x", dependencies=[Depends(PathRateLimiter(5, 60, cost=lambda request: -1))])(lambda: "x")
    answer = TestClient(app).get("/x")
    assert answer.status_code == 400
    assert "-1" in answer.json()["detail"]


def test_nonsense_of_the_second_limiter_is_told_too(limited, ratekit_clock):
    client = limited(PathRateLimiter(5, 60), PathRateLimiter(5, 3600, cost=lambda request: -1))
    assert client.get("/x").status_code == 400


@pytest.mark.parametrize("kind", [PathRateLimiter, ProjectRateLimiter])
def test_empty_subject_is_a_400_and_no_shared_bucket(kind, limited, keys, ratekit_clock):
    answer = limited(kind(5, 60, by=lambda request: "")).get("/x")
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert keys() == []


@pytest.mark.parametrize("kind", [PathRateLimiter, ProjectRateLimiter])
def test_integer_is_a_subject(kind, limited, keys, ratekit_clock):
    limited(kind(5, 60, by=lambda request: 42)).get("/x")
    assert keys() == ["ratelimit:/x:{42}:60s"]


@pytest.mark.parametrize("subject", [b"hunter2", ["hunter2"], {"password": "hunter2"}, True, 1.5], ids=repr)
@pytest.mark.parametrize("kind", [PathRateLimiter, ProjectRateLimiter])
def test_subject_of_a_wrong_type_is_a_500_that_names_the_type_only(kind, subject, limited, keys, caplog, ratekit_clock):
    answer = limited(kind(5, 60, by=lambda request: subject)).get("/x")
    assert answer.status_code == 500
    assert f"the key function gave a value of the type {type(subject).__name__}" in caplog.text
    assert "hunter2" not in answer.text + caplog.text
    assert keys() == []


@pytest.mark.parametrize("key", ["no tag: hunter2", 42, b"hunter2"])
def test_key_that_is_none_is_a_500_without_the_key(key, limited, caplog, ratekit_clock):
    class Own(PathRateLimiter):
        def make_key(self, request):
            return key

    answer = limited(Own(5, 60)).get("/x")
    assert answer.status_code == 500
    assert "make_key" in caplog.text
    assert "hunter2" not in answer.text + caplog.text


def test_words_of_an_error_of_the_application_do_not_reach_clients(limited, caplog, ratekit_clock):
    client = limited(PathRateLimiter(5, 60, by=lambda request: int("hunter2")))
    answer = client.get("/x")
    assert answer.status_code == 400
    assert "hunter2" not in answer.text + caplog.text


def nothing() -> dict[str, str]:
    return {}


def test_key_function_that_is_awaited_limits_by_what_it_answers():
    app = FastAPI()
    install(app)
    app.get("/x", dependencies=[Depends(PathRateLimiter(1, 60, by=later))])(nothing)
    with TestClient(app) as client:
        assert [client.get("/x").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    "lines",
    [
        {"X-Key": "\x7f{}%:*"},
        {"X-Key": "k" * 5000},
        {"X-Forwarded-For": "not-an-ip, , 999.9.9.9"},
        {"Cookie": "=;;;session=\x01"},
        {"X-Key": " "},
    ],
    ids=["odd", "long", "forwarded", "cookie", "blank"],
)
def test_odd_headers_are_no_500(lines, limited, ratekit_clock):
    from ratekit.web.identity import first_of

    by = first_of("header:X-Key", "cookie:session", "ip")
    assert limited(PathRateLimiter(5, 60, by=by), trusted_hops=1).get("/x", headers=lines).status_code == 200


def test_odd_query_is_no_500(limited, ratekit_clock):
    client = limited(PathRateLimiter(5, 60, by="query:user"))
    assert client.get("/x?" + "a=1&" * 2000 + "user=%ff").status_code in (200, 400)
