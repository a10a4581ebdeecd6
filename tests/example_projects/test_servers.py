"""The example projects, started as their READMEs say and used over HTTP, on a real Redis where they have one."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx2
import pytest

from support.examples import example, run_example
from support.servers import wait_until


@pytest.fixture
def store(redis_server) -> str:
    return f"{redis_server.url}?socket_timeout=5&socket_connect_timeout=5"


def ratekit(store: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "ratekit.cli", *arguments]
    subprocess.run(command, env=os.environ | {"RATE_LIMIT_STORE_URL": store}, check=True, capture_output=True)


def searches(client: httpx2.Client, key: str, times: int) -> list[int]:
    return [client.get("/search", headers={"X-API-Key": key}).status_code for _ in range(times)]


def test_search_limits_projects_and_an_operator_overrides_them_while_it_runs(store, tmp_path):
    with example("fastapi_search", tmp_path, RATE_LIMIT_STORE_URL=store) as running:
        client = running.client
        assert searches(client, "key-of-42", 6) == [200] * 5 + [429]
        assert searches(client, "key-of-43", 1) == [200]  # another project
        operator = {"X-API-Key": "operator"}
        assert client.put("/admin/projects/1/42?max_requests=500").status_code == 403
        assert client.put("/admin/projects/1/42?max_requests=500", headers=operator).json() == {"max_requests": 500}
        assert searches(client, "key-of-42", 3) == [200] * 3
        found = client.get("/admin/projects", headers=operator).json()
        assert found == [{"project": "42", "max_requests": 500, "set_by": "operator"}]
        assert client.delete("/admin/projects/1/42", headers=operator).json() == {"deleted": True}
        assert searches(client, "key-of-42", 1) == [429]


def test_search_counts_elements_and_monitors(store, tmp_path):
    with example("fastapi_search", tmp_path, RATE_LIMIT_STORE_URL=store) as running:
        client = running.client
        rows, project = [[1.0] * 5] * 10, {"X-API-Key": "key-of-42"}
        assert [client.post("/matrix", json=rows, headers=project).status_code for _ in range(3)] == [200, 200, 429]
        suggestions = [client.get("/suggest") for _ in range(4)]
        assert {answer.status_code for answer in suggestions} == {200}
        assert [answer.headers["RateLimit-Remaining"] for answer in suggestions] == ["1", "0", "0", "0"]


def test_search_refuses_nobody_while_the_fleet_is_in_monitor_mode(store, tmp_path):
    with example("fastapi_search", tmp_path, RATE_LIMIT_STORE_URL=store) as running:
        client = running.client
        assert searches(client, "key-of-42", 6)[-1] == 429
        ratekit(store, "mode", "monitor")
        wait_until(lambda: searches(client, "key-of-42", 1) == [200], "the fleet mode is not followed", 10)
        ratekit(store, "mode", "clear")


def test_shop_limits_its_views_and_shows_a_page_of_its_own(store, tmp_path):
    with example("flask_shop", tmp_path, RATE_LIMIT_STORE_URL=store) as running:
        client = running.client
        assert [client.get("/search").status_code for _ in range(6)] == [200] * 5 + [429]
        page, problem = client.get("/search", headers={"Accept": "text/html"}), client.get("/search")
        assert "One moment, please" in page.text
        assert page.headers["Retry-After"] == str(problem.json()["retry_after"])
        assert client.get("/health").json() == {"well": True}
        assert [client.post("/cart", json=["book"] * 50).status_code for _ in range(3)] == [200, 200, 429]
        assert (
            client.get("/cart").headers["RateLimit-Remaining"] == "27"
        )  # one counter for both methods; a refusal spends none


def test_shop_lets_nobody_guess_passwords_by_spelling_an_address_otherwise(store, tmp_path):
    with example("flask_shop", tmp_path, RATE_LIMIT_STORE_URL=store) as running:
        client = running.client
        emails = ["ann@example.org", "Ann@Example.org", "ANN@EXAMPLE.ORG ", "ann@example.org", "bob@example.org"]
        answers = [client.post("/login", data={"email": email, "password": "guess"}) for email in emails]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 401]


def test_shop_lists_its_limits(store, tmp_path):
    command = ("-m", "flask", "--app", "main:create_app", "ratekit", "limits")
    told = run_example("flask_shop", tmp_path, *command, RATE_LIMIT_STORE_URL=store)
    assert "post-900s=3/15min" in told.stdout
    assert "login by address" in told.stdout
