"""Envoy itself, with the configuration of example_projects/gateways/envoy, in front of ratekit's rate limit service."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from ratekit import RateLimiter
from ratekit.overrides import set_rate_limit_override
from support.gateways import GATEWAYS, application, binary, client, configured, envoy, envoy_service, stack
from support.servers import Server, free_port, wait_until


class Running(NamedTuple):
    """Envoy in front of an application and one or several services."""

    client: httpx2.Client
    services: list[Any]
    rules: Path


@contextmanager
def running(
    folder: Path, store: str, changes: dict[str, object], *options: str, services: int = 1, **environment: str
) -> Iterator[Running]:
    binary("envoy")
    with stack() as started:
        backend, port = started.enter_context(application()), free_port()
        ports = {"port_value: 9000": f"port_value: {backend}", "port_value: 10000": f"port_value: {port}"}
        copy = configured("envoy", folder, ports | changes)
        rules = copy / "ratelimit.yaml"
        made = [envoy_service(rules, folder, "--store", store, *options, **environment) for _ in range(services)]
        programs = [started.enter_context(one) for one in made]
        config = copy / "envoy.yaml"
        line = "        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8081}}}\n"
        assert line in config.read_text()
        lines = "".join(line.replace("8081", str(one)) for one, _ in programs)
        config.write_text(config.read_text().replace(line, lines))
        client = started.enter_context(envoy(config, port, folder))
        yield Running(client, [program for _, program in programs], rules)


# No window ends within a test, and a busy machine is no reason to let a request pass undecided.
PATIENT: dict[str, object] = {"timeout: 0.05s\n": "timeout: 10s\n"}
RATE_LIMIT_FILTER = "          - name: envoy.filters.http.ratelimit"
YEARLY = PATIENT | {"unit: minute, requests_per_unit: 5": "unit: year, requests_per_unit: 5"}


def statuses(client: httpx2.Client, times: int, user: str, path: str = "/") -> list[int]:
    return [client.get(path, headers={"x-user": user}).status_code for _ in range(times)]


def limit_of(client: httpx2.Client, user: str) -> str:
    return client.get("/", headers={"x-user": user}).headers["ratelimit-limit"]


def test_requests_pass_and_then_are_refused_with_our_numbers(tmp_path, redis_server):
    with running(tmp_path, redis_server.url, YEARLY) as gateway:
        answers = [gateway.client.get("/", headers={"x-user": "42", "ratelimit-limit": "999"}) for _ in range(7)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
        assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["4", "3", "2", "1", "0", "0", "0"]
        assert "ratelimit-limit" not in answers[0].text  # what a client says of limits does not reach the application
        refused = answers[-1].headers
        assert (refused["ratelimit-limit"], refused["x-ratekit-rule"]) == ("5", "per_user")
        assert refused["retry-after"] == refused["ratelimit-reset"] == refused["x-ratelimit-reset"]
        assert int(refused["retry-after"]) > 0
        assert refused["x-envoy-ratelimited"] == "true"
        assert refused["x-ratelimit-remaining"] == "0"
        assert statuses(gateway.client, 1, "43") == [200]


def test_address_is_that_of_the_connection(tmp_path, redis_server):
    """remote_address, as the comment of the example has it for those without authentication."""
    example = (GATEWAYS / "envoy" / "envoy.yaml").read_text()
    of_users = example[example.index("          - name: envoy.filters.http.lua") : example.index(RATE_LIMIT_FILTER)]
    changes = YEARLY | {
        "request_headers: {header_name: x-user, descriptor_key: user}": "remote_address: {}",
        "key: user ": "key: remote_address ",
        of_users: "",
    }
    with running(tmp_path, redis_server.url, changes) as gateway:
        port = gateway.client.base_url.port
        with client(port, "127.0.0.8") as first, client(port, "127.0.0.9") as second:
            forged = [first.get("/", headers={"x-forwarded-for": f"9.9.9.{n}"}).status_code for n in range(6)]
            assert forged == [200] * 5 + [429]
            assert second.get("/").status_code == 200


@pytest.mark.parametrize("lines", [[("x-user", "r{n}"), ("x-user", "ann")], [("x-user", "r{n},ann")], [("x-user", "")], []])
def test_request_with_two_users_or_none_is_refused(lines, tmp_path, redis_server):
    with running(tmp_path, redis_server.url, YEARLY) as gateway:
        for n in range(7):
            sent = [(name, value.format(n=n)) for name, value in lines]
            assert gateway.client.get("/", headers=sent).status_code == 400


def test_all_descriptors_are_one_decision(tmp_path, redis_server):
    changes = YEARLY | {"unit: minute, requests_per_unit: 20": "unit: year, requests_per_unit: 7"}
    with running(tmp_path, redis_server.url, changes) as gateway:
        assert statuses(gateway.client, 9, "42", "/reports/a") == [200] * 5 + [429] * 4
        # What the first user was refused has cost the others nothing.
        answers = [gateway.client.get("/reports/b", headers={"x-user": "43"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[-1].headers["x-ratekit-rule"] == "reports"
        assert statuses(gateway.client, 3, "43") == [200] * 3


def test_override_and_changed_rules_and_monitor_mode_are_seen_through_envoy(tmp_path, redis_server):
    mode = tmp_path / "mode"
    mode.write_text("on")
    with running(tmp_path, redis_server.url, YEARLY, RATE_LIMIT_MODE_FILE=str(mode)) as gateway:
        assert statuses(gateway.client, 6, "42")[-1] == 429
        with RateLimiter(redis_server.url) as limiter:
            set_rate_limit_override(limiter, subject="user:42", endpoint="shop:user", max_requests=8)
        assert statuses(gateway.client, 4, "42") == [200] * 3 + [429]
        mode.write_text("monitor")
        watched = gateway.client.get("/", headers={"x-user": "42"})
        assert (watched.status_code, watched.headers["ratelimit-remaining"]) == (200, "0")
        mode.write_text("on")
        assert statuses(gateway.client, 1, "42") == [429]
        gateway.rules.write_text(gateway.rules.read_text().replace("requests_per_unit: 5", "requests_per_unit: 2"))
        wait_until(lambda: limit_of(gateway.client, str(time.monotonic())) == "2", "the rules do not change")
        assert statuses(gateway.client, 3, "new") == [200, 200, 429]
        gateway.rules.write_text("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: never}}]")
        time.sleep(2.5)  # longer than a change takes to be noticed: this one makes no sense, and changes nothing
        assert statuses(gateway.client, 3, "newer") == [200, 200, 429]


@pytest.mark.parametrize(("deny", "status"), [("false", 200), ("true", 500)])
def test_service_away_is_open_or_closed_as_configured(tmp_path, redis_server, deny, status):
    changes = YEARLY | {"failure_mode_deny: false": f"failure_mode_deny: {deny}"}
    with running(tmp_path, redis_server.url, changes) as gateway:
        assert statuses(gateway.client, 6, "42") == [200] * 5 + [429]
        (service,) = gateway.services
        service.kill()
        service.wait()
        took = []
        for _ in range(10):
            started = time.perf_counter()
            assert statuses(gateway.client, 1, "42") == [status]
            took.append(time.perf_counter() - started)
        assert sorted(took)[len(took) // 2] < 0.06


@pytest.mark.parametrize(("deny", "status"), [("false", 200), ("true", 500)])
def test_service_that_hangs_is_open_or_closed_within_the_time_limit(tmp_path, redis_server, deny, status):
    """A service that accepts connections and never answers: the filter's `timeout: 0.05s` as it stands."""
    changes: dict[str, object] = {"failure_mode_deny: false": f"failure_mode_deny: {deny}"}
    with running(tmp_path, redis_server.url, changes) as gateway:
        wait_until(lambda: statuses(gateway.client, 1, "42") == [200], "it never answers")
        (service,) = gateway.services
        service.send_signal(signal.SIGSTOP)
        took = []
        try:
            while len(took) < 10 or (min(took) > 0.06 and len(took) < 60):  # the machine may be busy
                started = time.perf_counter()
                assert statuses(gateway.client, 1, "42") == [status]
                took.append(time.perf_counter() - started)
        finally:
            service.send_signal(signal.SIGCONT)
        assert min(took) < 0.06


@pytest.mark.parametrize(("on_outage", "status"), [("open", 200), ("closed", 500)])
def test_store_away_is_open_or_closed_as_configured(tmp_path, on_outage, status):
    changes = YEARLY | {"failure_mode_deny: false": "failure_mode_deny: true"}
    with running(tmp_path, f"redis://127.0.0.1:{free_port()}", changes, "--on-outage", on_outage) as gateway:
        assert statuses(gateway.client, 7, "42") == [status] * 7


def test_two_services_behind_one_envoy_admit_exactly_the_limit(tmp_path, redis_server: Server):
    limit, connections = 200, 32
    changes = PATIENT | {"unit: minute, requests_per_unit: 5": f"unit: year, requests_per_unit: {limit}"}
    with running(tmp_path, redis_server.url, changes, services=2) as gateway:
        seen: Counter[int] = Counter()

        def send() -> None:
            with httpx2.Client(base_url=gateway.client.base_url, timeout=60) as own:
                for _ in range(limit * 2 // connections):
                    seen[own.get("/", headers={"x-user": "42"}).status_code] += 1

        threads = [threading.Thread(target=send) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen[200] == limit
    assert seen[429] == limit * 2 // connections * connections - limit
