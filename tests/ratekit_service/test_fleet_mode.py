"""`ratekit mode monitor` reaches the processes of the service: the check service, and Envoy's rate limit service alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager

import grpc
import httpx2
import pytest

from ratekit_service.envoy.service import METHOD
from support.envoy_messages import OVER_LIMIT, Response, request
from support.gateway_service import LIMIT, serving
from support.gateways import envoy_service

FILE = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 1}}\n"


def set_mode(store: str, mode: str) -> None:
    subprocess.run([sys.executable, "-m", "ratekit.cli", "mode", mode, "--store", store], check=True)


def seconds_until(what: Callable[[], bool]) -> float:
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < 20
        time.sleep(0.02)
    return time.monotonic() - started


def assert_follows(store: str, is_refused: Callable[[], bool]) -> None:
    """A mode is in force within two seconds, on this machine that may be busy, and so is its end."""
    assert is_refused()
    for mode, refuses in (("monitor", False), ("on", True), ("off", False), ("clear", True)):
        set_mode(store, mode)
        assert seconds_until(lambda refuses=refuses: is_refused() is refuses) < 2  # type: ignore[misc]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_check_service_follows_the_mode_of_the_store(workers, tmp_path, redis_server):
    with serving(tmp_path, redis_server.url, "--workers", workers) as service:
        url = f"http://127.0.0.1:{service.port}/v1/authorize?resource=orders"
        headers = {"x-api-key": service.key, "x-ratekit-subject": "42"}

        def statuses() -> set[int]:
            """Connections of their own: the workers share them."""
            return {httpx2.get(url, headers=headers).status_code for _ in range(8)}

        assert statuses() >= {429}
        for _ in range(LIMIT):
            httpx2.get(url, headers=headers)
        assert_follows(redis_server.url, lambda: statuses() == {429})
        set_mode(redis_server.url, "monitor")
        seconds_until(lambda: statuses() == {200})  # every worker


def test_weakest_of_the_modes_of_store_and_plan_counts(tmp_path, redis_server):
    set_mode(redis_server.url, "on")
    with serving(tmp_path, redis_server.url) as service:
        service.admin("PATCH", f"plans/{service.plan_id}", {"mode": "monitor"})
        url, headers = f"http://127.0.0.1:{service.port}/v1/check", {"x-api-key": service.key}
        body = {"resource": "orders", "subject": "42"}

        def checked() -> list[httpx2.Response]:
            return [httpx2.post(url, headers=headers, json=body) for _ in range(LIMIT + 1)]

        assert [answer.status_code for answer in checked()] == [200] * (LIMIT + 1)
        set_mode(redis_server.url, "off")
        seconds_until(lambda: "x-ratelimit-limit" not in checked()[-1].headers)  # nothing is counted


@contextmanager
def asking_envoy(folder, store):
    """Run Envoy's rate limit service, and yield what asks it for the code of one request."""
    rules = folder / "ratelimit.yaml"
    rules.write_text(FILE)
    message = request("shop", [("user", "42")]).SerializeToString()
    with (
        envoy_service(rules, folder, "--store", store) as (port, _),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=Response.FromString)
        yield lambda: call(message, timeout=20, wait_for_ready=True).overall_code


def test_rate_limit_service_of_envoy_follows_the_mode_of_the_store(tmp_path, redis_server):
    with asking_envoy(tmp_path, redis_server.url) as ask:
        ask()
        assert_follows(redis_server.url, lambda: ask() == OVER_LIMIT)


def test_mode_of_the_store_is_in_force_from_the_first_request_on(tmp_path, redis_server):
    set_mode(redis_server.url, "monitor")
    with asking_envoy(tmp_path, redis_server.url) as ask:
        codes = {ask() for _ in range(5)}
        assert OVER_LIMIT not in codes
