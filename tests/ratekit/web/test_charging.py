"""How a limiter charges: nonsense is an error at the start where it can be known, in every front alike."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from fastapi import Depends, FastAPI

from ratekit import Algorithm, Calendar, ConfigurationError, Limit, Policy, asgi, wsgi
from ratekit.flask import rate_limit
from ratekit.web.charging import Outcomes, ResponseHead
from ratekit_fastapi import PathRateLimiter, install

LLM = Policy("llm", ["60/min", Limit(1000, 60, unit="tokens")])
TWO = Policy("two", [Limit(9, 60, unit="tokens"), Limit(9, 60, unit="bytes")])
MONTHLY = Policy("quota", [Limit(9, Calendar("month"))])


async def awaited(_: object) -> bool:
    return True


def of_asgi(policy: Policy, options: dict[str, Any]) -> object:
    return asgi.RateLimitMiddleware(lambda *_: None, store="memory://", rules={"/x": {"limits": policy, **options}})


def of_wsgi(policy: Policy, options: dict[str, Any]) -> object:
    return wsgi.RateLimitMiddleware(lambda *_: [], store="memory://", rules={"/x": {"limits": policy, **options}})


DECLARED = {
    "asgi": of_asgi,
    "wsgi": of_wsgi,
    "fastapi": lambda policy, options: PathRateLimiter(policy=policy, **options),
    "flask": lambda policy, options: rate_limit(policy=policy, **options),
}
NONSENSE: list[tuple[Policy, dict[str, Any], str]] = [
    (LLM, {}, "cost 1 says no unit, and the limits count requests, tokens"),
    (LLM, {"cost": 5}, "cost 5 says no unit"),
    (LLM, {"cost": {"bytes": 5}}, "unit 'bytes' of cost"),
    (LLM, {"estimate": {"tokens": 1, "bytes": 5}}, "unit 'bytes' of"),
    (LLM, {"estimate": "many"}, "estimate 'many' is neither a whole number"),
    (LLM, {"estimate": -1}, "estimate -1 is neither a whole number"),
    (LLM, {"estimate": {"tokens": 1.5}}, "is neither a whole number"),
    (LLM, {"estimate": 1, "cost": {"tokens": 2}}, "both say what it costs"),
    (TWO, {"estimate": 800}, "estimate 800 says no unit, and the limits count tokens, bytes"),
    (
        TWO,
        {"estimate": {"tokens": 1, "bytes": 1}, "actual": "header:x-usage"},
        "actual names one header",
    ),
    (LLM, {"estimate": 1, "actual": "x-usage-tokens"}, "actual 'x-usage-tokens' is not the name of a header"),
    (LLM, {"estimate": 1, "hide": True}, "hide True has no meaning without actual"),
    (LLM, {"estimate": 1, "count": "4x"}, "count '4x' is neither a status"),
    (LLM, {"estimate": 1, "count": 600}, "count 600 is neither a status"),
    (LLM, {"estimate": 1, "count": ()}, "count () is neither a status"),
    (LLM, {"estimate": 1, "count": (401, True)}, "is neither a status"),
    (LLM, {"estimate": 1, "count": awaited}, "has to be awaited"),
    (LLM, {"estimate": 1, "reset_when": 2.5}, "reset_when 2.5 is neither a status"),
    (LLM, {"estimate": 1, "share": 1.5}, "share 1.5 is not a fraction"),
    (LLM, {"estimate": 1, "share": 0}, "share 0 is not a fraction"),
    (LLM, {"estimate": 1, "share": False}, "share False is not a fraction"),
    (LLM, {"estimate": False}, "estimate False is neither a whole number"),
    (LLM, {"estimate": 1, "count": False}, "count False is neither a status"),
    (MONTHLY, {"anchor": 0}, "anchor 0 is neither a day of 1 to 31"),
    (MONTHLY, {"anchor": 32}, "anchor 32 is neither a day of 1 to 31"),
    (MONTHLY, {"anchor": "monday"}, "anchor 'monday' is neither a day"),
]


@pytest.mark.parametrize("of", DECLARED)
@pytest.mark.parametrize(("policy", "options", "message"), NONSENSE)
def test_nonsense_is_an_error_at_the_start(of, policy, options, message):
    with pytest.raises(ConfigurationError) as raised:
        DECLARED[of](policy, options)
    assert message in str(raised.value)


@pytest.mark.parametrize("of", ["wsgi"])
@pytest.mark.parametrize("name", ["estimate", "share", "anchor"])
def test_what_has_to_be_awaited_is_refused_where_there_is_no_event_loop(of, name):
    with pytest.raises(ConfigurationError, match=f"{name} .* has to be awaited"):
        DECLARED[of](MONTHLY, {name: awaited})


def test_outcomes_are_statuses_classes_and_callables():
    assert [Outcomes("count", (401, "5xx")).matches(ResponseHead(status), on_fault=False) for status in (401, 403, 503)] == [
        True,
        False,
        True,
    ]
    assert Outcomes("count", "404").matches(ResponseHead(404), on_fault=False)
    assert Outcomes("count", lambda head: head.headers["x"] == "y").matches(ResponseHead(200, {"x": "y"}), on_fault=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimate": lambda _: {"bytes": 5}}, "unit 'bytes' of estimate"),
        ({"estimate": lambda _: "many"}, "estimate gave a value of the type str"),
        ({"cost": lambda _: {"bytes": 5}}, "unit 'bytes' of cost"),
        ({"cost": lambda _: 5}, "cost 5 says no unit"),
        ({"cost": lambda _: "many"}, "cost gave a value of the type str"),
        ({"estimate": 1, "share": lambda _: 7}, "share 7 is not a fraction"),
        ({"estimate": 1, "share": lambda _: "half"}, "share gave a value of the type str"),
        ({"estimate": 1, "anchor": lambda _: "monday"}, "anchor gave a value of the type str"),
    ],
)
@pytest.mark.parametrize("mode", ["on", "monitor"])
@pytest.mark.parametrize("of", ["asgi", "fastapi"])
def test_callable_that_answers_nonsense_is_a_logged_bug_and_never_passes_in_silence(of, options, message, mode, caplog):
    assert asked(of, options, mode) == (500 if mode == "on" else 200)
    assert message in caplog.text


def asked(of: str, options: dict[str, Any], mode: str = "on", **settings: Any) -> int:
    """The status of the answer to a request to an application that a limiter is declared in."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask() -> int:
        stated = {"limits": LLM, **options}
        if of == "asgi":
            limited: Any = asgi.RateLimitMiddleware(app, store="memory://", rules={"/x": stated}, mode=mode, **settings)
        else:
            limited = FastAPI()
            install(limited, store="memory://", **settings)
            limiter = PathRateLimiter(by="ip", mode=mode, **stated)
            limited.get("/x", dependencies=[Depends(limiter)])(lambda: 1)
        transport = httpx2.ASGITransport(limited, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
            return (await client.get("/x")).status_code

    return asyncio.run(ask())


@pytest.mark.parametrize("of", ["asgi", "fastapi"])
@pytest.mark.parametrize("name", ["cost", "estimate", "share", "anchor"])
def test_callable_that_raises_a_value_error_is_a_400_and_its_place_is_logged_once(of, name, caplog):
    found: dict[str, Any] = {}
    place = f"limits_of_{of}_{name}.py"  # each test has lines of its own: a line is told of once
    exec(compile("def raises(_):\n    raise ValueError('s3cret')", place, "exec"), found)
    raises = found["raises"]
    options = {name: raises} if name in ("cost", "estimate") else {"estimate": 1, name: raises}
    assert [asked(of, options) for _ in range(3)] == [400] * 3
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].endswith(f"cannot be told from a request, which is a 400: ValueError in {place}, line 2; said once")
    assert "s3cret" not in caplog.text


def test_anchor_says_nothing_to_a_plan_without_calendars():
    given = {"limits": "plan", "cost": 1, "anchor": lambda _: 15}
    plans = {"monthly": "5/month", "hourly": "5/h"}
    for of in ("asgi", "fastapi"):
        for plan in plans:
            assert asked(of, given, plans=plans, plan_of=lambda _, plan=plan: plan) == 200


@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize(
    "limiter",
    [PathRateLimiter(5, 60, count=401), PathRateLimiter(policy=Limit(1, 60, algorithm=Algorithm.CONCURRENCY))],
    ids=["count", "slots"],
)
def test_what_ends_with_the_response_needs_install_in_fastapi(limiter, is_installed):
    app = FastAPI()
    if is_installed:
        install(app, store="memory://")
    app.get("/x", dependencies=[Depends(limiter)])(lambda: 1)

    async def ask() -> list[int]:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://api") as client:
            return [(await client.get("/x")).status_code for _ in range(3)]

    if is_installed:
        assert asyncio.run(ask()) == [200] * 3
    else:
        with pytest.raises(ConfigurationError, match=r"ends with the response: call ratekit_fastapi.install\(app\) first"):
            asyncio.run(ask())
