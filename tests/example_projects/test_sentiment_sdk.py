"""The example sentiment_sdk, started as its README says: with its files, and with a real MongoDB and a real Redis."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from typing import Any

import pymongo
import pytest

from benchmarks.server import start_server, stop_server, wheel_server
from support.examples import Example, example, run_example, shell
from support.mongo import mongo_server
from support.servers import wait_until

CORP = {"tenant_id": "client-corp", "language": "en", "text": "a good day"}


def post(running: Example, user: str = "", **options: Any) -> Any:
    headers = {"X-User-Id": user} if user else {}
    return running.client.post("/sentiment", headers=headers | options.pop("headers", {}), **options)


def remaining(running: Example, **options: Any) -> dict[str, int]:
    left: dict[str, int] = post(running, **options).json()["remaining"]
    return left


def limit_of(running: Example, user: str) -> str:
    limit: str = post(running, user).headers["RateLimit-Limit"]
    return limit


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    """Both services, by the files, counting in the process."""
    with example("sentiment_sdk", tmp_path_factory.mktemp("sdk")) as running:
        yield running


def test_what_it_says_to_try_answers_as_it_says(services):
    loop, tenant, premium, images, health = services.commands()
    assert shell(loop).split() == ["200"] * 5 + ["429"]
    assert '"rpm":7' in shell(tenant)
    assert '"rpm":4999' in shell(premium)
    assert [shell(images).split()[1] for _ in range(3)] == ["200", "200", "429"]
    assert "rules/sentiment.json" in shell(health)


def test_key_comes_from_header_body_query_or_address(services):
    assert remaining(services, json=CORP | {"language": "de"})["rpm"] == 4  # of all, as nothing is said of that language
    assert remaining(services, json=CORP | {"language": "de"})["rpm"] == 3
    assert remaining(services, user="ann")["rpm"] == 4
    assert remaining(services, json=CORP, headers={"X-API-Key": "premium-tier"})["rpm"] > 4990
    assert remaining(services)["rpm"] == 4  # the address
    small = services.client.get("/images", params={"model_version": "v2"}).json()
    assert small["remaining"] == {"rpm": 9}
    asked = services.client.post("/quota/tenant:client-corp:lang:fr").json()
    assert asked["remaining"] == {"rpm": 4, "rph": 999, "rpd": 9999}


def test_refusal_spends_from_no_window_and_says_when_to_come_back(services):
    answers = [post(services, "eve") for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert answers[-1].json()["remaining"] == {"rpm": 0, "rph": 995, "rpd": 9995}
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 60


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[1", 200),
        (b'{"tenant_id": {"a": 1}, "language": null}', 200),
        (b'"text"', 200),
        (b"[" * 60_000, 200),
        (b'"' + b"a" * 70_000 + b'"', 413),
    ],
    ids=["broken", "odd values", "no object", "deep", "long"],
)
def test_odd_body_is_limited_by_something_or_told_what_is_wrong(services, body, status):
    headers = {"Content-Type": "application/json", "X-User-Id": str(len(body))}
    answer = services.client.post("/sentiment", content=body, headers=headers)
    assert answer.status_code == status
    assert status == 200 or "more than 65536 bytes" in answer.json()["error"]


def test_file_that_is_changed_is_followed_and_a_wrong_one_refused_whole(services):
    file = services.folder / "rules" / "sentiment.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"general_rate_limit": {"rpm": 50}}))
    wait_until(lambda: limit_of(services, "bob") == "50", "the file is not followed", 10)
    file.write_text('{"general_rate_limit": {"rpm": "many"}}')
    wait_until(lambda: not health(services)["is_healthy"], "the trouble is not told", 10)
    assert "general_rate_limit.rpm" in health(services)["trouble"]
    assert limit_of(services, "bob") == "50"
    assert health(services, "images")["is_healthy"]


def health(services: Example, service: str = "sentiment") -> Any:
    return services.client.get("/health").json()[service]


def test_limits_in_mongodb_are_changed_while_it_runs_and_stay_while_it_is_away(tmp_path, redis_server):
    server = mongo_server()
    url = f"{server.new_database()}&interval=0.2&serverSelectionTimeoutMS=1000&connectTimeoutMS=500&socketTimeoutMS=2000"
    given = {"RULES_MONGODB": url, "RATE_LIMIT_STORE_URL": f"{redis_server.url}?socket_timeout=5"}
    with example("sentiment_sdk", tmp_path, **given) as running:
        assert limit_of(running, "ann") == "5"  # MongoDB has no document yet: the default of the file
        assert "has no document" in health(running)["trouble"]

        (push,) = running.commands("ratekit rules push")
        file = running.folder / "rules" / "sentiment.json"
        file.write_text(file.read_text().replace('"rpm": 5,', '"rpm": 60,'))
        told = run_example("sentiment_sdk", tmp_path, "-m", "ratekit.cli", *shlex.split(push)[1:], **given)
        assert told.returncode == 0, told.stderr
        wait_until(lambda: limit_of(running, "ann") == "60", "what was pushed is not followed", 20)

        with pymongo.MongoClient(url.partition("?")[0]) as client:
            change = {"general_rate_limit": {"rpm": 70}, "last_updated": datetime.now(UTC).isoformat()}
            client.get_default_database()["rate_limits"].update_one({"_id": "sentiment"}, {"$set": change})
        wait_until(lambda: limit_of(running, "ann") == "70", "the change is not followed", 20)
        assert "has no document" in health(running, "images")["trouble"]  # of another service nothing has changed

        server.stop()
        try:
            wait_until(lambda: not health(running)["is_healthy"], "nobody says that MongoDB is away", 30)
            assert limit_of(running, "ann") == "70"
        finally:
            server.start()
        wait_until(lambda: health(running)["is_healthy"], "MongoDB is not followed again", 30)


def test_requests_pass_while_redis_is_away_and_health_says_so(tmp_path):
    redis = start_server(wheel_server())
    try:
        with example("sentiment_sdk", tmp_path, RATE_LIMIT_STORE_URL=redis.url) as running:
            assert post(running, "ann").json()["remaining"]["rpm"] == 4
            stop_server(redis)
            assert [post(running, "ann").status_code for _ in range(8)] == [200] * 8
            wait_until(lambda: health(running)["store"]["state"] == "down", "nobody says that Redis is away", 10)
    finally:
        stop_server(redis)
