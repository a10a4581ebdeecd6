"""Whom a project limiter limits: the project that the request was authenticated for, and what happens without one."""

from __future__ import annotations

from uuid import UUID

import pytest
from fastapi import Depends, FastAPI, Request
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient

from ratekit.testing import assert_admits
from ratekit.web.identity import passes
from ratekit_fastapi import ProjectRateLimiter, install

USERS = {"token-a": ("acme", "p1"), "token-b": ("acme", "p2")}


class Secretive:
    """An object whose text has a secret in it."""

    def __repr__(self):
        return "hunter2"


def nothing():
    return {}


def identify(request):
    return USERS.get(request.headers.get("authorization"))


async def identify_later(request):
    return identify(request)


def text_of(request):
    return request.headers.get("authorization")


@pytest.mark.parametrize("function", [identify, identify_later, text_of])
def test_each_project_has_a_counter(function, limited, ratekit_clock):
    client = limited(ProjectRateLimiter(2, 60), identify=function)
    for token in USERS:
        assert_admits(lambda token=token: client.get("/x", headers={"Authorization": token}), exactly=2)


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        (("acme", "p1"), "ratelimit:/x:{acme:p1}:60s"),
        ((7, 42), "ratelimit:/x:{7:42}:60s"),
        ((0, 0), "ratelimit:/x:{0:0}:60s"),
        ((UUID(int=1), 2), "ratelimit:/x:{00000000-0000-0000-0000-000000000001:2}:60s"),
        ("user:42", "ratelimit:/x:{user:42}:60s"),
        (42, "ratelimit:/x:{42}:60s"),
        (UUID(int=1), "ratelimit:/x:{00000000-0000-0000-0000-000000000001}:60s"),
        ("a {b}", "ratelimit:/x:{a%20%7Bb%7D}:60s"),
    ],
)
def test_identity_becomes_the_subject(identity, key, limited, keys, ratekit_clock):
    assert limited(ProjectRateLimiter(2, 60), identify=lambda request: identity).get("/x").status_code == 200
    assert keys() == [key]


def test_identify_is_asked_once_when_several_limiters_want_to_know(limited, ratekit_clock):
    asked = []
    limiters = [ProjectRateLimiter(9, 60), ProjectRateLimiter(9, 1), ProjectRateLimiter(9, 3600, mode="monitor")]
    client = limited(*limiters, identify=lambda request: asked.append(request) or "me")
    client.get("/x")
    assert len(asked) == 1
    assert isinstance(asked[0], HTTPConnection)


def test_project_in_the_state_of_the_request_counts_without_identify(keys, ratekit_clock):
    app = FastAPI()
    install(app)

    async def authenticate(request: Request):
        request.state.org_id, request.state.project_id = 7, 42

    @app.get("/x", dependencies=[Depends(authenticate), Depends(ProjectRateLimiter(2, 60))])
    async def x():
        return {}

    client = TestClient(app)
    assert_admits(lambda: client.get("/x"), exactly=2)
    assert keys() == ["ratelimit:/x:{7:42}:60s"]


def test_project_set_by_a_middleware_counts(keys, ratekit_clock):
    app = FastAPI()
    install(app)

    @app.middleware("http")
    async def authenticate(request: Request, call_next):
        request.state.org_id, request.state.project_id = "acme", "p1"
        return await call_next(request)

    @app.get("/x", dependencies=[Depends(ProjectRateLimiter(2, 60))])
    async def x():
        return {}

    answer = TestClient(app).get("/x")
    assert answer.headers["RateLimit-Remaining"] == "1"
    assert keys() == ["ratelimit:/x:{acme:p1}:60s"]


def test_project_of_an_earlier_parameter_counts(keys, ratekit_clock):
    app = FastAPI()
    install(app)

    async def authenticate(request: Request):
        request.state.org_id, request.state.project_id = 7, 42

    @app.get("/x")
    async def x(_: None = Depends(authenticate), __: None = Depends(ProjectRateLimiter(2, 60))):
        return {}

    TestClient(app).get("/x")
    assert keys() == ["ratelimit:/x:{7:42}:60s"]


@pytest.mark.parametrize("header", ["X-Org-Id", "X-Project-Id", "X-Tenant-ID", "org_id", "project_id", "ratekit.identity"])
def test_header_that_the_client_chooses_names_no_project(header, limited, keys, ratekit_clock):
    client = limited(ProjectRateLimiter(1, 60))
    client.get("/x", headers={header: "victim"})
    assert keys() == ["ratelimit:/x:{ip:203.0.113.7}:60s"]


def test_anonymous_request_is_limited_by_address_and_warned_of_once(limited, keys, caplog, ratekit_clock):
    client = limited(ProjectRateLimiter(1, 60))
    assert [client.get("/x").status_code for _ in range(3)] == [200, 429, 429]
    assert keys() == ["ratelimit:/x:{ip:203.0.113.7}:60s"]
    warnings = [record for record in caplog.records if record.name == "ratekit.web"]
    assert len(warnings) == 1
    assert "/x is limited by its address: it has no project" in warnings[0].getMessage()
    assert passes == {}


def test_anonymous_request_passes_when_asked_and_is_counted_and_warned_of_once(limited, keys, caplog, ratekit_clock):
    client = limited(ProjectRateLimiter(1, 60, anonymous="pass"))
    answers = [client.get("/x") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert not any("RateLimit-Limit" in answer.headers for answer in answers)
    assert passes == {"/x": 3}
    warnings = [record for record in caplog.records if record.name == "ratekit.web"]
    assert len(warnings) == 1
    assert "/x" in warnings[0].getMessage()
    assert keys() == []


@pytest.mark.parametrize("anonymous", ["pass", None])
def test_anonymous_request_is_warned_of_for_each_endpoint(caplog, ratekit_clock, anonymous):
    app = FastAPI()
    install(app)
    for path in ("/a", "/b/{number}"):
        app.get(path, dependencies=[Depends(ProjectRateLimiter(1, 60, anonymous=anonymous))])(nothing)
    client = TestClient(app)
    for path in ("/a", "/a", "/b/1", "/b/2"):
        client.get(path)
    assert passes == ({"/a": 2, "/b/{number}": 2} if anonymous == "pass" else {})
    assert len([record for record in caplog.records if record.name == "ratekit.web"]) == 2


def test_limiter_that_runs_before_authentication_warns(caplog, ratekit_clock):
    app = FastAPI()
    install(app)

    async def authenticate(request: Request):
        request.state.org_id, request.state.project_id = 7, 42

    @app.get("/x", dependencies=[Depends(ProjectRateLimiter(1, 60))])
    async def x(_: None = Depends(authenticate)):
        return {}

    client = TestClient(app)
    assert [client.get("/x").status_code for _ in range(2)] == [200, 429]
    assert "runs before authentication" in caplog.text


def test_project_limiter_by_a_key_that_is_not_sent_limits_the_address(limited, keys, ratekit_clock):
    client = limited(ProjectRateLimiter(1, 60, by="header:X-API-Key"))
    assert [client.get("/x").status_code for _ in range(2)] == [200, 429]
    assert keys() == ["ratelimit:/x:{ip:203.0.113.7}:60s"]


def test_project_limiter_by_a_callable_that_names_nobody_limits_nobody_and_says_so(limited, caplog, ratekit_clock):
    client = limited(ProjectRateLimiter(1, 60, by=lambda request: None))
    assert [client.get("/x").status_code for _ in range(2)] == [200, 200]
    assert passes == {"/x": 2}
    assert "/x" in caplog.text


def test_anonymous_request_is_limited_by_address_without_a_word_when_asked(limited, keys, caplog, ratekit_clock):
    client = limited(ProjectRateLimiter(2, 60, anonymous="ip"), identify=identify)
    assert_admits(lambda: client.get("/x"), exactly=2)
    assert client.get("/x", headers={"Authorization": "token-a"}).status_code == 200
    assert keys() == ["ratelimit:/x:{acme:p1}:60s", "ratelimit:/x:{ip:203.0.113.7}:60s"]
    assert passes == {}
    assert caplog.records == []


def test_anonymous_request_is_refused_when_asked(limited, keys, ratekit_clock):
    client = limited(ProjectRateLimiter(2, 60, anonymous="refuse"), identify=identify)
    answer = client.get("/x")
    assert answer.status_code == 401
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == 401
    assert "project" in answer.json()["detail"]
    assert client.get("/x", headers={"Authorization": "token-a"}).status_code == 200
    assert keys() == ["ratelimit:/x:{acme:p1}:60s"]


def test_anonymous_request_is_not_refused_while_monitoring(limited, monkeypatch, ratekit_clock):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert limited(ProjectRateLimiter(2, 60, anonymous="refuse")).get("/x").status_code == 200


def test_error_of_identify_surfaces(limited):
    """Authentication that fails by an exception of its own is the application's answer."""
    from fastapi import HTTPException

    def refuse(request):
        raise HTTPException(403, "no")

    assert limited(ProjectRateLimiter(2, 60), identify=refuse).get("/x").status_code == 403


@pytest.mark.parametrize("identity", [(None, None), ("acme", None), (None, "p1")])
def test_half_a_project_is_no_project(identity, limited, keys, ratekit_clock):
    client = limited(ProjectRateLimiter(1, 60, anonymous="refuse"), identify=lambda request: identity)
    assert client.get("/x").status_code in (400, 401)
    assert keys() == []


@pytest.mark.parametrize("identity", ["", ("", "p1"), ("acme", "")])
def test_empty_identity_is_a_400_and_no_shared_bucket(identity, limited, keys, ratekit_clock):
    answer = limited(ProjectRateLimiter(1, 60), identify=lambda request: identity).get("/x")
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert keys() == []


@pytest.mark.parametrize(
    "identity", [True, 1.5, b"acme", ("acme",), ("a", "b", "c"), ["acme", "p1"], {}, ("acme", 1.5), ("acme", Secretive())]
)
def test_identity_of_a_wrong_type_is_a_500_that_names_the_type_only(identity, limited, keys, caplog, ratekit_clock):
    answer = limited(ProjectRateLimiter(1, 60), identify=lambda request: identity).get("/x")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text + caplog.text
    assert "identify gave a value of the type" in caplog.text
    assert keys() == []
