"""The fast front and the reference routes give the same answers, and bodies have bounds."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ratekit_service.checks.front import Front
from ratekit_service.keys.secrets import make_key
from support import databases
from tests.ratekit_service.conftest import Caller, Running, running

PATHS = [
    *("/v1/check", "/v1/check/batch", "/check", "/v1/peek", "/v1/charge", "/v1/refund", "/v1/release", "/v1/renew"),
    *("/v1/reserve", "/v1/commit"),
]
EXAMPLES = 400 * int(os.environ.get("RATEKIT_FUZZ", "1"))

odd = ["user:1", "GET:/orders", "*", "é", "a\x00b", "\ud800", "x" * 256, "x" * 257, ""]
texts = st.sampled_from(odd) | st.text(max_size=8)
numbers = st.one_of(
    st.sampled_from([0, 1, 2, 10**12, 10**12 + 1, -1, 2**63, 10**30, 1.0, 1.5, True, None, "1"]), st.integers(0, 5)
)
costs = numbers | st.dictionaries(st.sampled_from(["tokens", "requests", "bytes", ""]), numbers, max_size=3)
shares = st.sampled_from([0.5, 1, 1.0, 0, -1, 1.5, True, None, "1"])
anchors = st.sampled_from([1, 31, 32, 0, "2024-01-31", "2024-01-31T09:00:00Z", "soon", "", None, True])
holds = st.sampled_from([1, 0.5, 600, 0, -1, 10**9, None, "1"])
anything = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=4)


def mapping(**fields: Any) -> Any:
    """Objects with some of the fields, perhaps one too many, and values of all kinds."""
    optional = {name: st.one_of(value, value, value, anything) for name, value in fields.items()}
    return st.fixed_dictionaries({}, optional=optional | {"extra": anything}).map(
        lambda found: {name: value for name, value in found.items() if name != "extra" or value == 7}
    )


def bodies(plan_ids: list[str], slots: list[str]) -> Any:
    """Pairs of a path and a body: half of them fit."""
    plans = st.sampled_from([*plan_ids, "plan_x", None, ""])
    check = mapping(resource=texts, subject=texts, cost=costs, plan_id=plans, share=shares, anchor=anchors)
    named = st.sampled_from([*plan_ids, *plan_ids, "plan_x"])
    place = {"resource": st.just("r"), "subject": st.sampled_from("ab"), "plan_id": named}
    good = st.fixed_dictionaries(place, optional={"cost": costs, "share": shares, "anchor": anchors})
    ids = st.sampled_from(["one", "two", "one\n", "ä", *slots, "AAAA", ""])
    amounts = st.integers(0, 3) | st.fixed_dictionaries({"tokens": st.integers(0, 3)}) | costs
    reserve = st.fixed_dictionaries(
        {**place, "estimate": amounts},
        optional={"id": ids, "clamp": st.booleans(), "hold": holds, "share": shares, "anchor": anchors},
    )
    commit = st.fixed_dictionaries({**place, "id": ids, "actual": amounts}, optional={"known": amounts, "hold": holds})
    by_text = mapping(id=ids, actual=costs, known=costs, resource=texts, subject=texts, plan_id=plans, anchor=anchors)
    slot = mapping(slot=st.sampled_from([*slots, "AAAA", ""]) | texts)
    by_rule = st.fixed_dictionaries(
        {"client_key": st.sampled_from("ab"), "endpoint": st.just("/x"), "cost": st.integers(0, 3)}
    )
    batch = st.fixed_dictionaries({"checks": st.lists(good, min_size=1, max_size=3)})
    checks = ("/v1/check", "/v1/peek", "/v1/charge", "/v1/refund")
    fitting = dict.fromkeys(checks, good) | dict.fromkeys(("/v1/release", "/v1/renew"), slot)
    fitting |= {"/v1/check/batch": batch, "/check": by_rule, "/v1/reserve": reserve, "/v1/commit": commit | by_text}
    odd_ones = st.one_of(
        check, mapping(checks=st.lists(check | good, max_size=3)), mapping(client_key=texts, endpoint=texts, cost=costs),
        slot, reserve, by_text, anything,
    )  # fmt: skip
    return st.one_of(
        st.sampled_from(PATHS).flatmap(lambda path: st.tuples(st.just(path), fitting[path].map(encoded))),
        st.tuples(st.sampled_from(PATHS), odd_ones.map(encoded) | raw),
    )


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode("utf-8", "surrogatepass")


broken = [b"", b"{", b"null", b'{"resource":', b'{"cost":NaN}', b"[]", b"\xff\xfe"]
raw = st.binary(max_size=20) | st.sampled_from(broken)


class Twin:
    """One service behind both fronts, each with a store of its own, and one clock."""

    def __init__(self, fast: Running, plain: Running, caller: Caller) -> None:
        self.fast, self.plain, self.caller = fast, plain, caller

    async def both(self, path: str, body: bytes, headers: dict[str, Any]) -> tuple[Any, Any]:
        return await self._ask(self.fast, path, body, headers), await self._ask(self.plain, path, body, headers)

    async def _ask(self, side: Running, path: str, body: bytes, headers: dict[str, Any]) -> Any:
        answer = await side.client.post(path, content=body, headers=headers)
        shown = {name: value for name, value in answer.headers.items() if name != "content-length"}
        content = answer.json() if answer.content else None
        return answer.status_code, shown, without_random(content)


def without_random(content: Any) -> Any:
    """Return a body without the ids of slots and reservations, which are random."""
    if isinstance(content, dict):
        return {name: name if name in ("slot", "id") else without_random(value) for name, value in content.items()}
    return [without_random(item) for item in content] if isinstance(content, list) else content


@pytest.fixture
def twin(tmp_path, ratekit_clock):
    """The same tenant behind the front and without it: one database, two stores, one clock."""
    with asyncio.Runner() as runner:

        async def start() -> Any:
            url = databases.new_database("sqlite", tmp_path)
            first = running(url, "memory://twin-fast", failure_limit="")
            fast = await first.__aenter__()
            second = running(url, "memory://twin-plain", failure_limit="", front=False)
            plain = await second.__aenter__()
            caller = await fast.caller()
            await fast.plan(caller.tenant_id, "several", limits=["2/s", "5/min", "3/h shadow"])
            await fast.plan(caller.tenant_id, "slots", algorithm="concurrency", limit=2, stale_after_seconds=60)
            await fast.plan(caller.tenant_id, "bucket", algorithm="token_bucket", bucket_capacity=3, refill_rate_per_sec=0.5)
            await fast.plan(caller.tenant_id, "tokens", limits=["9/min", "9 tokens/min", "slots=3/min@concurrency"])
            await fast.plan(caller.tenant_id, "calendar", limits=["5/month Europe/Berlin", "day=4/day UTC"])
            rule = {"client_key": "a", "algorithm": "fixed_window", "max_requests": 2, "window_secs": 60}
            await fast.admin("POST", "/rules", {"tenant_id": caller.tenant_id, **rule})
            await plain.service.refresher.refresh()
            slot = (await caller.check(plan_id=(await plans_of(fast))[2])).json().get("slot", "AAAA")
            tokens = (await plans_of(fast))[4]
            held = {"resource": "r", "subject": "a", "estimate": {"tokens": 2}, "plan_id": tokens, "id": "held"}
            answers = [(await Caller(side, "", "", caller.key).post("/v1/reserve", held)).json() for side in (fast, plain)]
            assert answers[0] == answers[1]
            reservation = answers[0]["id"]
            return first, second, Twin(fast, plain, caller), await plans_of(fast), [slot, reservation]

        first, second, twin, plans, slots = runner.run(start())
        yield runner, twin, plans, slots
        runner.run(second.__aexit__(None, None, None))
        runner.run(first.__aexit__(None, None, None))


async def plans_of(side: Running) -> list[str]:
    names = ["pro", "several", "slots", "bucket", "tokens", "calendar"]
    found = {plan["name"]: plan["id"] for plan in (await side.admin("GET", "/plans"))["items"]}
    return [found[name] for name in names]


def test_front_and_reference_agree(twin, ratekit_clock):
    runner, both, plans, slots = twin
    content_types = st.sampled_from(
        ["application/json"] * 6 + ["application/json; charset=utf-8", "text/plain", "application/x+json"]
    )
    keys = st.sampled_from([both.caller.key] * 8 + [make_key("live").text, "nonsense"])
    request = st.tuples(bodies(plans, slots), keys, content_types)
    decided = []
    place = {"resource": "r", "subject": "b", "plan_id": plans[4]}
    fitting = {
        "/v1/check": {**place, "plan_id": plans[1]},
        "/v1/reserve": {**place, "id": "fits", "estimate": {"tokens": 2}},
        "/v1/commit": {**place, "id": "fits", "actual": {"tokens": 1}},
    }
    fits = [((path, encoded(body)), both.caller.key, "application/json") for path, body in fitting.items()]

    @example(fits, 0)
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.lists(request, min_size=1, max_size=4), st.integers(0, 3))
    def property_(requests, seconds):
        for (path, body), key, content_type in requests:
            fast, plain = runner.run(both.both(path, body, {"x-api-key": key, "content-type": content_type}))
            assert fast == plain, (path, body)
            assert fast[0] < 500
            decided.append((path, fast[0]))
        ratekit_clock.advance(seconds)

    property_()
    assert {200, 401, 404, 422, 429} <= {status for _, status in decided}
    assert {(path, 200) for path in fitting} <= set(decided)


@pytest.mark.parametrize("header", ["application/json", "text/plain"])
async def test_body_that_is_too_large_is_a_413(embedded, header):
    caller = await embedded.caller()
    body = b'{"resource": "' + b"x" * 70_000 + b'"}'
    headers = {"x-api-key": caller.key, "content-type": header}
    for path in ("/v1/check", "/v1/admin/tenants"):
        assert (await embedded.client.post(path, content=body, headers=headers)).status_code == 413

    async def chunks():
        for _ in range(70):
            yield b"x" * 1024

    answer = await embedded.client.post("/v1/check", content=chunks(), headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


async def test_body_that_takes_too_long_is_a_408(tmp_path):
    async with running(databases.new_database("sqlite", tmp_path), body_seconds=0.05) as slow:

        async def never():
            yield b"{"
            await asyncio.Event().wait()

        answer = await slow.client.post("/v1/check", content=never())
        assert answer.status_code == 408


async def test_client_that_goes_away_leaves_no_trace(embedded, caplog):
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/check", "headers": [], "client": ("127.0.0.1", 1)}
    await embedded.app(scope, receive, send)
    assert (sent, caplog.messages) == ([], [])


def test_front_is_an_async_callable():
    assert asyncio.iscoroutinefunction(Front.__call__)
    assert httpx2.__version__
