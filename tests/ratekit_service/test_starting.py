"""`ratekit serve` before it serves: what is wrong is one sentence and exit code 2, and nothing has begun."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
import redis

from ratekit.core.errors import ConfigurationError
from ratekit_service import preflight
from ratekit_service.settings import load
from support.servers import free_port, serving

SERVE = [sys.executable, "-m", "ratekit.cli", "serve"]
FILES = {"tls_certificate": __file__, "tls_key": __file__}
REFUSED = {
    "misspelt": ({"RATEKIT_DEADLIN": "1"}, {}, r"the variable RATEKIT_DEADLIN is no setting: RATEKIT_DEADLINE is"),
    "other name": ({"RATEKIT_STORE_URL": "redis://r"}, {}, r"RATEKIT_STORE_URL is no setting: RATE_LIMIT_STORE_URL is"),
    "limit": ({"RATEKIT_TENANT_LIMIT": "lots"}, {}, r"tenant_limit: rate 'lots' is not a limit"),
    "limit of units": ({"RATEKIT_TENANT_LIMIT": "9 tokens/min"}, {}, r"tenant_limit: limit '9 tokens/min' counts tokens"),
    "failures": ({"RATEKIT_FAILURE_LIMIT": "9 tokens/min"}, {}, r"failure_limit: limit '9 tokens/min' counts tokens"),
    "number": ({"RATEKIT_BODY_BYTES": "1e9"}, {}, r"RATEKIT_BODY_BYTES '1e9' is not a whole number"),
    "folder": ({"RATEKIT_DATABASE_URL": "sqlite:////nowhere/x/r.db"}, {}, r"in '/nowhere/x', and there is no such folder"),
    "a folder": ({"RATEKIT_DATABASE_URL": "sqlite:////tmp"}, {}, r"names '/tmp', which is no database of SQLite"),
    "a text": ({"RATEKIT_DATABASE_URL": f"sqlite:///{__file__}"}, {}, r"test_starting.py', which is no database of SQLite"),
    "one port": ({}, {"port": 8081, "grpc_port": 8081, "rules": "r.yaml"}, r"port and grpc_port are both 8081: give each"),
    "no certificate": (
        {},
        {**FILES, "tls_certificate": "/nowhere/a.crt"},
        r"tls_certificate '/nowhere/a.crt' cannot be read",
    ),
    "no PEM": ({}, FILES, r"are no certificate and key in PEM"),
    "host": ({}, {"host": "203.0.113.9"}, r"nobody can listen on host '203.0.113.9', port 8080: Cannot assign"),
    "workers": ({}, {"workers": 2}, r"memory:// counts in one process, not in 2 workers: give a redis:// store"),
}


def served(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program until it ends, which it does by itself."""
    options = {"cwd": folder, "env": os.environ | environment, "timeout": 60}
    return subprocess.run([*SERVE, *words], capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("case", REFUSED)
def test_nonsense_is_refused_by_its_name(case):
    environment, given, expected = REFUSED[case]
    with pytest.raises(ConfigurationError, match=expected):
        preflight.check(load(given, environment=environment))


def test_unknown_mode_is_one_sentence_before_anything_begins(tmp_path):
    ended = served(tmp_path, {"RATE_LIMIT_MODE": "maybe"}, "--port", str(free_port()))
    assert ended.returncode == 2
    assert ended.stderr == "ratekit: RATE_LIMIT_MODE 'maybe' is unknown: it is one of on, monitor, off\n"
    assert ended.stdout == ""
    assert not (tmp_path / "ratekit.db").exists()


@pytest.fixture
def without_otlp(tmp_path: Path) -> dict[str, str]:
    """An environment in which the exporter of spans cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.exporter'] = None\n")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def test_missing_extra_is_told_once_and_not_by_each_worker(tmp_path, without_otlp):
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "RATE_LIMIT_STORE_URL": "redis://127.0.0.1:9"}
    ended = served(tmp_path, without_otlp | settings, "--port", str(free_port()), "--workers", "2")
    assert ended.returncode == 2
    assert re.fullmatch(r"ratekit: .* needs a package that is not installed: pip install 'ratekit\[otlp\]'\n", ended.stderr)


def test_taken_port_is_told_and_the_demo_does_not_say_that_it_listens(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = served(tmp_path, {}, "--demo", "--port", str(port))
    assert ended.returncode == 2
    assert ended.stderr == f"ratekit: port {port} of 127.0.0.1 is taken by another program: choose one by --port\n"


def test_taken_port_of_envoys_service_is_told_before_anything_begins(tmp_path):
    (tmp_path / "ratelimit.yaml").write_text("domain: shop\ndescriptors: [{key: user}]\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["--port", str(free_port()), "--grpc-port", str(port), "--rules", "ratelimit.yaml"]
        ended = served(tmp_path, {}, *words)
    assert ended.returncode == 2
    assert ended.stderr == f"ratekit: port {port} of 127.0.0.1 is taken by another program: choose one by --grpc-port\n"
    assert ended.stdout == ""
    assert not (tmp_path / "ratekit.db").exists()


def test_service_that_cannot_start_does_not_end_as_if_all_were_well(tmp_path):
    """Its port is taken between the look at it and its use."""
    port = free_port()
    late = """
import socket
from ratekit_service import preflight
taken = []
def check(host, port, option):
    taken.append(socket.create_server((host, port)))
preflight.check_port = check
"""
    (tmp_path / "sitecustomize.py").write_text(late)
    ended = served(tmp_path, {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}, "--port", str(port))
    assert ended.returncode == 2
    assert "address already in use" in ended.stdout + ended.stderr
    assert "ratekit: the service could not start: its log says why\n" in ended.stderr


@pytest.mark.parametrize("wrong", ["taken", 99999])
def test_envoys_service_alone_tells_of_its_port_in_one_sentence(tmp_path, wrong):
    (tmp_path / "ratelimit.yaml").write_text("domain: shop\ndescriptors: [{key: user}]\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if wrong == "taken" else wrong
        command = [sys.executable, "-m", "ratekit_service.envoy", "--rules", "ratelimit.yaml", "--grpc-port", str(port)]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    sentence = f"port {port} of 127.0.0.1 is taken by another program: choose one by --grpc-port"
    sentence = sentence if wrong == "taken" else "port 99999 is not between 0 and 65535"
    assert ended.stderr == f"python -m ratekit_service.envoy: {sentence}\n"


def test_demo_ignores_a_database_url_that_makes_no_sense(tmp_path):
    port = free_port()
    with serving([*SERVE, "--demo", "--port", str(port)], port, tmp_path, RATEKIT_DATABASE_URL="nonsense") as url:
        assert httpx2.get(f"{url}/v1/ready").json()["database"] == "up"
    assert "The demo ignores RATEKIT_DATABASE_URL: it has" in (tmp_path / "log").read_text()


def test_demo_touches_no_configured_store_or_database_and_prints_no_configured_token(tmp_path, redis_server):
    database, token = tmp_path / "production.db", "a-token-of-production"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE tenants (name TEXT)")
        connection.execute("INSERT INTO tenants VALUES ('demo')")
        connection.commit()
    before = database.read_bytes()
    port = free_port()
    settings = {"RATEKIT_DATABASE_URL": f"sqlite:///{database}", "RATE_LIMIT_STORE_URL": redis_server.url}
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        with serving([*SERVE, "--demo", "--port", str(port)], port, tmp_path, RATEKIT_ADMIN_TOKEN=token, **settings) as url:
            key = httpx2.get(f"{url}/page/settings.json").json()["api_key"]
            body = {"resource": "GET:/orders", "subject": "user:42"}
            assert httpx2.post(f"{url}/v1/check", json=body, headers={"x-api-key": key}).status_code == 200
        assert client.keys() == []
    assert database.read_bytes() == before
    log = (tmp_path / "log").read_text()
    sentence = "The demo ignores RATE_LIMIT_STORE_URL and RATEKIT_DATABASE_URL: it has a store and a database of its own.\n"
    assert log.count(sentence) == 1
    assert token not in log


@pytest.mark.parametrize("asked", ["variable", "file"])
def test_demo_that_is_asked_for_elsewhere_is_apart_too(tmp_path, asked):
    (tmp_path / "settings.toml").write_text('database = "sqlite:///production.db"\n' + "demo = true\n" * (asked == "file"))
    port = free_port()
    environment = {"RATEKIT_DEMO": "1"} if asked == "variable" else {}
    with serving([*SERVE, "--config", "settings.toml", "--port", str(port)], port, tmp_path, **environment) as url:
        assert httpx2.get(f"{url}/page/settings.json").json()["api_key"]
    assert not (tmp_path / "production.db").exists()


@pytest.mark.parametrize("option", ["--store", "--database"])
def test_demo_refuses_options_that_it_does_not_follow(tmp_path, option):
    ended = served(tmp_path, {}, "--demo", option, "redis://r" if option == "--store" else "sqlite:///r.db")
    assert ended.returncode == 2
    assert ended.stderr == "ratekit: --demo has a store and a database of its own: leave out --store and --database\n"


def test_start_says_where_everything_is_and_no_password(tmp_path):
    port = free_port()
    settings = {"RATEKIT_DATABASE_URL": "sqlite:///r.db", "RATE_LIMIT_STORE_URL": "redis://u:hidden@127.0.0.1:9"}
    with serving([*SERVE, "--port", str(port)], port, tmp_path, RATEKIT_ADMIN_TOKEN="", **settings):
        pass
    log = (tmp_path / "log").read_text()
    assert "counters are in redis://127.0.0.1:9, tenants in sqlite:///r.db; administration is off" in log
    assert "hidden" not in log
    assert "setup plugin" not in log


def test_service_links_of_kubernetes_are_no_port():
    linked = {"RATEKIT_PORT": "tcp://10.96.0.7:8080", "RATEKIT_SERVICE_HOST": "10.96.0.7", "RATEKIT_SERVICE_PORT": "8080"}
    linked |= {"RATEKIT_PORT_8080_TCP": "tcp://10.96.0.7:8080", "RATEKIT_PORT_8080_TCP_PORT": "8080"}
    assert load(environment=linked).port == 8080
    with pytest.raises(ConfigurationError, match="RATEKIT_PORT 'eighty' is not a whole number"):
        load(environment={"RATEKIT_PORT": "eighty"})


def test_settings_file_takes_the_names_of_options_and_of_settings(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('store = "redis://one"\ndatabase_url = "sqlite:///two"\nlog-checks = "none"\n')
    settings = load(file=str(file), environment={})
    assert (settings.store_url, settings.database_url, settings.log_checks) == ("redis://one", "sqlite:///two", "none")
