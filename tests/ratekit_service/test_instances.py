"""Real instances, each a process of `ratekit serve`: one limit for all of them, one configuration within a second."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from support import databases
from support.instances import TOKEN, crowd, instances, seconds_until, start, tenant
from support.servers import free_port, survivors, wait_until


@pytest.fixture
def places(redis_server, tmp_path) -> tuple[str, str]:
    return databases.new_database("postgres", tmp_path), redis_server.url


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_two_instances_have_one_exact_limit_and_one_configuration(places, tmp_path):
    with instances(2, tmp_path, *places) as (first, second):
        _, plan_id, key = tenant(first)
        seconds_until(lambda: second.check(key, cost=0).status_code == 200)
        statuses = asyncio.run(crowd([first.url, second.url], key, 300))
        assert (statuses.count(200), statuses.count(429)) == (100, 200)

        first.admin("PATCH", f"/plans/{plan_id}", {"limits": ["150/h"]})
        assert seconds_until(lambda: second.check(key, cost=0).json()["limit"] == 150) < 1
        first.admin("DELETE", f"/keys/{key.split('_')[2]}")
        assert first.check(key).status_code == 401
        assert seconds_until(lambda: second.check(key).status_code == 401) < 1


def test_change_reaches_others_within_a_second_by_polling_alone(tmp_path):
    with instances(3, tmp_path, f"sqlite:///{tmp_path}/ratekit.db", "memory://") as (first, *others):
        _, plan_id, key = tenant(first)
        for one in others:
            seconds_until(lambda one=one: one.check(key, cost=0).status_code == 200)
        for most in (101, 102, 103):
            first.admin("PATCH", f"/plans/{plan_id}", {"limits": [f"{most}/h"]})
            waits = [
                seconds_until(lambda one=one, most=most: one.check(key, cost=0).json()["limit"] == most) for one in others
            ]
            assert max(waits) < 1


def test_nobody_else_notices_an_instance_that_is_killed_under_load(places, tmp_path):
    with instances(3, tmp_path, *places) as started:
        _, _, key = tenant(started[0], limits=["400/h"])
        for one in started[1:]:
            seconds_until(lambda one=one: one.check(key, cost=0).status_code == 200)

        async def load() -> tuple[list[int], list[int]]:
            doomed = asyncio.create_task(crowd([started[2].url], key, 300, 4))
            others = asyncio.create_task(crowd([one.url for one in started[:2]], key, 600, 8))
            await asyncio.sleep(0.3)
            started[2].process.kill()
            return await others, await doomed

        others, doomed = asyncio.run(load())
        assert set(others) <= {200, 429}
        answered = others.count(200) + doomed.count(200)
        assert 400 - 4 <= answered <= 400  # what was in flight in the killed instance may have been counted
        assert started[0].check(key).status_code == 429


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_ten_instances_start_at_once_on_an_empty_database(redis_server, tmp_path, kind):
    with instances(10, tmp_path, databases.new_database(kind, tmp_path), redis_server.url) as started:
        versions = {one.ask("GET", "/v1/ready").json()["config_version"] for one in started}
        assert versions == {1}
        assert not [one.log.read_text() for one in started if "Traceback" in one.log.read_text()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_it_when_what_was_begun_is_answered(tmp_path, number):
    with instances(1, tmp_path, f"sqlite:///{tmp_path}/r.db", "memory://") as (instance,):
        _, _, key = tenant(instance, limits=["5/min"])
        for _ in range(7):
            instance.check(key)
        instance.process.send_signal(number)
        assert instance.process.wait(20) == 0
        log = instance.log.read_text()
        assert "Traceback" not in log
    with instances(1, tmp_path, f"sqlite:///{tmp_path}/r.db", "memory://") as (again,):
        assert len(again.admin("GET", "/violations")["items"]) == 2
        assert again.check(key).json()["limit"] == 5
        assert again.admin("GET", f"/keys/{key.split('_')[2]}")["last_used_at"] is not None


def test_signal_ends_it_even_if_the_database_hangs(tmp_path, redis_server):
    postgres = databases.Postgres()
    (tmp_path / "settings.toml").write_text("shutdown_seconds = 1.0\n")
    try:
        database = postgres.new_database()
        with instances(1, tmp_path, database, redis_server.url, "--config", "settings.toml") as (instance,):
            _, _, key = tenant(instance, limits=["5/min"])
            postgres.freeze()
            assert instance.check(key).status_code == 200
            instance.process.send_signal(signal.SIGTERM)
            assert instance.process.wait(30) == 1
            assert "the service ends, as something has hung for 1 s" in instance.log.read_text()
    finally:
        postgres.stop()


def test_several_workers_need_a_shared_store_and_have_one_limit(places, tmp_path):
    refused = start(tmp_path, places[0], "memory://", "--workers", "2")
    assert refused.process.wait(60) == 2
    assert "memory:// counts in one process" in refused.log.read_text()
    with instances(1, tmp_path, *places, "--workers", "2") as (instance,):
        _, _, key = tenant(instance, limits=["50/h"])
        wait_until(lambda: all(instance.check(key, cost=0).status_code == 200 for _ in range(8)), "not everywhere")
        statuses = asyncio.run(crowd([instance.url], key, 120))
        assert statuses.count(200) == 50
        counted = 'rl_blocked_total{route="/v1/check"} 70.0'
        wait_until(lambda: counted in instance.ask("GET", "/metrics").text, "the workers' metrics are not together")
        assert "ratekit_database_up 1.0" in instance.ask("GET", "/metrics").text


def test_workers_end_with_their_group_when_only_their_supervisor_was_killed(places, tmp_path):
    marker = {"RATEKIT_TEST_WORKERS": str(tmp_path)}
    instance = start(tmp_path, *places, "--workers", "2", **marker)
    try:
        wait_until(lambda: instance.is_ready, "not ready", 90)
        instance.process.kill()
        instance.process.wait()
        left = survivors("RATEKIT_TEST_WORKERS", str(tmp_path))
        assert left  # that is why a group is ended, and not a process
    finally:
        instance.end()
    wait_until(lambda: not survivors("RATEKIT_TEST_WORKERS", str(tmp_path)), "a worker has outlived its group")


def test_demo_prints_a_curl_loop_that_shows_what_it_says(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "ratekit.cli", "serve", "--demo", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=tmp_path) as process:
        try:
            lines = []
            while "Ctrl-C" not in "".join(lines[-1:]):
                lines.append(process.stderr.readline())
            text = "".join(lines)
            wait_until(lambda: is_listening(port), "not there")
            loop = text[text.index("  for i in") : text.index("\n\nCtrl-C")]
            shown = subprocess.check_output(["sh", "-c", loop], text=True)
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert shown.split()[:10] == ["200"] * 10
    assert "429" in shown.split()
    assert not list(tmp_path.iterdir())


def test_log_lines_are_json_with_the_subject_hashed_and_no_secret(tmp_path):
    instance = start(tmp_path, f"sqlite:///{tmp_path}/r.db", "memory://", "--log-checks", "all")
    try:
        wait_until(lambda: instance.is_ready, "not ready", 60)
        tenant_id, plan_id, key = tenant(instance, limits=["1/h"])
        evil = 'ann@example.com\n{"event":"forged"}\r\nx'
        for _ in range(2):
            instance.check(key, subject=evil)
        instance.check(key[:-1])
        instance.process.send_signal(signal.SIGTERM)
        instance.process.wait(20)
    finally:
        instance.end()
    text = instance.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    checks = [line for line in lines if line["event"] == "api.v1.check"]
    assert [(line["outcome"], line["algorithm"]) for line in checks] == [
        ("allowed", "fixed_window"),
        ("denied", "fixed_window"),
    ]
    assert {line["tenant"] for line in checks} == {tenant_id}
    assert {line["plan"] for line in checks} == {plan_id}
    assert len({line["subject_hash"] for line in checks}) == 1
    for secret in ("ann@example.com", "forged", key, key.split("_")[3], TOKEN):
        assert secret not in text


@pytest.mark.parametrize(
    ("options", "environment", "sentence"),
    [
        (["--port", "99999"], {}, "port 99999 is not between"),
        ([], {"RATEKIT_ADMIN_TOKEN": "short"}, "admin_token has 5 characters"),
        ([], {"RATEKIT_POLL_SECONDS": "often"}, "RATEKIT_POLL_SECONDS 'often' is not a number"),
        ([], {"RATEKIT_ON_OUTAGE": "panic"}, "on_outage 'panic' is unknown"),
        ([], {"RATEKIT_TENANT_LIMIT": "lots"}, "'lots'"),
        (["--database", "oracle://u:hunter2@h/n"], {}, "database 'oracle' is unknown"),
        (["--store", "ftp://u:hunter2@h"], {}, "store URL"),
        (["--config", "none.toml"], {}, "none.toml"),
        (["--tls-key", "key.pem"], {}, "tls_certificate and tls_key belong together"),
    ],
)
def test_setting_that_makes_no_sense_is_told_in_one_sentence_at_the_start(tmp_path, options, environment, sentence):
    command = [sys.executable, "-m", "ratekit.cli", "serve", *options]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=60, env=os.environ | environment, check=False
    )
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert "hunter2" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_settings_come_from_a_file_too(tmp_path):
    (tmp_path / "ratekit.toml").write_text('log_checks = "none"\nbody_bytes = 1024\ndatabase_url = "sqlite:///its.db"\n')
    instance = start(tmp_path, "", "memory://", "--config", "ratekit.toml")
    try:
        wait_until(lambda: instance.is_ready, "not ready", 60)
        assert (tmp_path / "its.db").exists()
        assert instance.ask("POST", "/v1/check", {"resource": "x" * 2000}).status_code == 413
    finally:
        instance.end()
