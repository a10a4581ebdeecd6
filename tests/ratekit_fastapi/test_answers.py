"""What a refusal says: a problem, or a body of one's own; and headers in the style that was chosen."""

from __future__ import annotations

import http_sf
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.testclient import TestClient

from ratekit import Limit, Policy
from ratekit_fastapi import PathRateLimiter, RateLimitExceeded

TWO = Policy("two", [Limit(2, 60, name="minute"), Limit(9, 3600, name="hour")])


def refused(client: TestClient):
    for _ in range(2):
        assert client.get("/x").status_code == 200
    answer = client.get("/x")
    assert answer.status_code == 429
    return answer


def parsed(line: str) -> dict:
    """Read a list of names with parameters by a parser of structured fields."""
    return {str(name): dict(parameters) for name, parameters in http_sf.parse(line.encode(), tltype="list")}


def test_refusal_is_a_problem(limited, ratekit_clock):
    answer = refused(limited(PathRateLimiter(policy=TWO)))
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Cache-Control"] == "no-store"
    body = answer.json()
    assert body.pop("detail")
    assert body == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": ["minute"],
        "retry_after": 60,
    }
    assert int(answer.headers["Content-Length"]) == len(answer.content)


def test_problem_names_every_limit_that_refuses(limited, ratekit_clock):
    client = limited(PathRateLimiter(limits=[Limit(2, 60, name="minute"), Limit(2, 3600, name="hour")]))
    assert sorted(refused(client).json()["violated-policies"]) == ["hour", "minute"]


@pytest.mark.parametrize(
    ("body", "kind", "content"),
    [
        (
            lambda result: {"error": "slow down", "left": result.remaining},
            "application/json",
            b'{"error":"slow down","left":0}',
        ),
        (lambda result: ["slow", "down"], "application/json", b'["slow","down"]'),
        (lambda result: f"wait {result.ttl} s", "text/plain; charset=utf-8", b"wait 60 s"),
        (lambda result: b"wait", "text/plain; charset=utf-8", b"wait"),
    ],
    ids=["dict", "list", "text", "bytes"],
)
def test_body_of_a_refusal_can_be_ones_own(body, kind, content, limited, ratekit_clock):
    answer = refused(limited(PathRateLimiter(2, 60), body=body))
    assert (answer.headers["Content-Type"], answer.content) == (kind, content)
    assert answer.headers["Retry-After"] == "60"
    assert answer.headers["Cache-Control"] == "no-store"


def test_handler_of_the_application_wins(limited, ratekit_clock):
    client = limited(PathRateLimiter(2, 60))

    @client.app.exception_handler(RateLimitExceeded)
    async def mine(request, error):
        return PlainTextResponse(f"over {error.result.limit}", status_code=429)

    answer = refused(client)
    assert answer.text == "over 60s"
    assert answer.headers["RateLimit-Remaining"] == "0"
    assert answer.headers["Retry-After"] == "60"


def test_default_headers_are_whole_numbers(limited, ratekit_clock):
    answer = limited(PathRateLimiter(policy=TWO)).get("/x")
    assert answer.headers["RateLimit-Limit"] == "2"
    assert answer.headers["RateLimit-Remaining"] == "1"
    assert answer.headers["RateLimit-Reset"] == "60"
    for name in ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"):
        assert isinstance(http_sf.parse(answer.headers[name].encode(), tltype="item")[0], int)


def test_draft_is_parsed_as_structured_fields(limited, ratekit_clock):
    answer = limited(PathRateLimiter(policy=TWO), headers="draft-11").get("/x")
    assert parsed(answer.headers["RateLimit-Policy"]) == {"minute": {"q": 2, "w": 60}, "hour": {"q": 9, "w": 3600}}
    assert parsed(answer.headers["RateLimit"]) == {"minute": {"r": 1, "t": 60}}
    assert "RateLimit-Limit" not in answer.headers


def test_draft_of_a_refusal_does_not_promise_more_than_retry_after(limited, ratekit_clock):
    answer = refused(limited(PathRateLimiter(policy=TWO), headers="draft-11"))
    state = parsed(answer.headers["RateLimit"])["minute"]
    assert state == {"r": 0, "t": 60}
    assert int(answer.headers["Retry-After"]) >= state["t"]


def test_draft_names_the_limits_of_two_limiters(limited, ratekit_clock):
    client = limited(PathRateLimiter(1000, 3600), PathRateLimiter(10, 1), headers="draft-11")
    policy = parsed(client.get("/x").headers["RateLimit-Policy"])
    assert policy == {"hour": {"q": 1000, "w": 3600}, "second": {"q": 10, "w": 1}}


def test_epoch_is_in_the_old_headers(limited, ratekit_clock):
    answer = limited(PathRateLimiter(2, 60), headers="x-ratelimit").get("/x")
    lines = [answer.headers[f"X-RateLimit-{name}"] for name in ("Limit", "Remaining", "Reset")]
    assert lines == ["2", "1", str(int(ratekit_clock.now) + 60)]


def test_several_styles_can_be_sent_together(limited, ratekit_clock):
    answer = refused(limited(PathRateLimiter(2, 60), headers=["ratelimit", "draft-11", "x-ratelimit"]))
    for name in ("RateLimit-Limit", "RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "Retry-After"):
        assert len(answer.headers.get_list(name)) == 1


def test_style_none_sends_no_headers_but_retry_after_on_a_refusal(limited, ratekit_clock):
    client = limited(PathRateLimiter(2, 60), headers="none")
    answer = refused(client)
    assert not any("ratelimit" in name for name in answer.headers)
    assert answer.headers["Retry-After"] == "60"
    assert "Retry-After" not in TestClient(client.app).get("/openapi.json").headers


def test_headers_of_the_application_of_the_same_name_are_replaced(ratekit_clock):
    from fastapi import Depends

    from ratekit_fastapi import install

    app = FastAPI()
    install(app)

    @app.get("/x", dependencies=[Depends(PathRateLimiter(2, 60))])
    async def x():
        return PlainTextResponse("x", headers={"RateLimit-Limit": "999", "X-Own": "1"})

    answer = TestClient(app).get("/x")
    assert answer.headers.get_list("RateLimit-Limit") == ["2"]
    assert answer.headers["X-Own"] == "1"


def test_limit_that_an_override_lifts_has_no_headers(limited, store, ratekit_clock):
    store.execute("HSET", "ratelimit_override:/x:{*/x}", "unlimited", "1")
    client = limited(PathRateLimiter(1, 60))
    answers = [client.get("/x") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert "RateLimit-Limit" not in answers[0].headers
