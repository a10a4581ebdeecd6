"""Each proxy itself, with its configuration of example_projects/gateways, in front of /v1/authorize."""

from __future__ import annotations

import signal
import socket
import time
from itertools import count

import httpx2
import pytest

from support.gateway_proxies import every_proxy, get, running
from support.servers import wait_until


@every_proxy
def test_requests_pass_and_then_are_refused_with_our_numbers(proxy, tmp_path, redis_server):
    with running(proxy, tmp_path, redis_server.url) as gateway:
        answers = [get(gateway.client) for _ in range(7)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
        refused = answers[-1].headers
        assert 0 < int(refused["retry-after"]) <= 86_400
        assert (refused["x-ratelimit-limit"], refused["x-ratelimit-remaining"]) == ("5", "0")
        shown = [answer.headers.get("x-ratelimit-remaining") for answer in answers[:5]]
        assert shown == (["4", "3", "2", "1", "0"] if proxy.shows_numbers else [None] * 5)
        assert get(gateway.client, "43").status_code == 200


@every_proxy
def test_what_clients_send_changes_nothing(proxy, tmp_path, redis_server):
    """A client that names another resource, subject, key, cost or host is limited all the same, and its key is not ours."""
    forged = {
        "x-ratekit-subject": "somebody-else", "x-ratekit-resource": "free", "x-ratekit-cost": "0", "x-ratekit-refuse": "403",
        "x-ratekit-by": "header:x-other", "x-api-key": "mine", "x-ratelimit-status": "ok", "x-forwarded-for": "10.0.0.1",
        "host": "shop.example",
    }  # fmt: skip
    with running(proxy, tmp_path, redis_server.url) as gateway:
        answers = [get(gateway.client, path=f"/?resource=free&cost=0&by=ip&n={n}", **forged) for n in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert get(gateway.client).status_code == 429
        assert gateway.service.key not in answers[0].text  # the application does not learn the proxy's key
        url = f"http://127.0.0.1:{gateway.service.port}/v1/authorize?resource=orders&by=ip"
        assert httpx2.get(url, headers={"x-forwarded-for": "10.0.0.1"}).status_code == 401


@every_proxy
def test_override_and_plan_and_monitor_mode_are_seen_through_the_proxy(proxy, tmp_path, redis_server):
    mode = tmp_path / "mode"
    mode.write_text("on")
    with running(proxy, tmp_path, redis_server.url, RATE_LIMIT_MODE_FILE=str(mode)) as gateway:
        service = gateway.service
        assert [get(gateway.client).status_code for _ in range(6)][-1] == 429
        override = {"tenant_id": service.tenant_id, "resource": "orders", "subject": "42", "max_requests": 7, "ttl": 3600}
        service.admin("PUT", "overrides", override)
        assert [get(gateway.client).status_code for _ in range(3)] == [200, 200, 429]
        mode.write_text("monitor")
        assert get(gateway.client).status_code == 200
        mode.write_text("on")
        assert get(gateway.client).status_code == 429
        service.admin("PATCH", f"plans/{service.plan_id}", {"limit": 2, "window_seconds": 86_400})
        users = map(str, count(100))
        wait_until(lambda: is_refused_at(gateway.client, next(users), 3), "the plan does not change")


def is_refused_at(client: httpx2.Client, user: str, number: int) -> bool:
    """Whether the request of that number is the first of a user that is refused."""
    return [get(client, user).status_code for _ in range(number)] == [200] * (number - 1) + [429]


@every_proxy
@pytest.mark.parametrize("way", ["as it stands", "the other way"])
def test_service_away_is_open_or_closed_as_configured(proxy, way, tmp_path, redis_server):
    status, changes = (proxy.away, {}) if way == "as it stands" else (proxy.other_away, proxy.other)
    if status is None:
        assert not proxy.other  # there is one way only, and the README of the example says so
        return
    with running(proxy, tmp_path, redis_server.url, changes) as gateway:
        assert [get(gateway.client).status_code for _ in range(6)] == [200] * 5 + [429]
        gateway.service.program.kill()
        gateway.service.program.wait()
        took = []
        for _ in range(5 if proxy.away_seconds < 1 else 2):
            started = time.perf_counter()
            assert get(gateway.client).status_code == status
            took.append(time.perf_counter() - started)
        assert min(took) < proxy.away_seconds


@every_proxy
@pytest.mark.parametrize("way", ["as it stands", "the other way"])
def test_service_that_hangs_is_open_or_closed_within_the_time_limit(proxy, way, tmp_path, redis_server):
    """A service that accepts connections and never answers, with the time limits of the example as they stand."""
    status, changes = (proxy.away, {}) if way == "as it stands" else (proxy.other_away, proxy.other)
    if status is None or proxy.hung_seconds is None:
        return
    with running(proxy, tmp_path, redis_server.url, changes, is_patient=False) as gateway:
        wait_until(lambda: get(gateway.client).status_code in (200, 429), "it never answers")
        gateway.service.program.send_signal(signal.SIGSTOP)
        try:
            took: list[float] = []
            while len(took) < 10 or (min(took) > proxy.hung_seconds and len(took) < 60):  # the machine may be busy
                started = time.perf_counter()
                assert get(gateway.client).status_code == status
                took.append(time.perf_counter() - started)
        finally:
            gateway.service.program.send_signal(signal.SIGCONT)
        assert min(took) < proxy.hung_seconds


ODD: dict[str, dict[str, str]] = {
    "no subject": {},
    "an empty subject": {"x-user": ""},
    "a subject that is too long": {"x-user": "u" * 300},
    "a subject of 7000 bytes": {"x-user": "u" * 7000},
}


@every_proxy
def test_client_cannot_make_a_question_that_nobody_decides(proxy, tmp_path, redis_server):
    """A question that makes no sense is not an outage: where the proxy is open then, a client would have no limit."""
    with running(proxy, tmp_path, redis_server.url) as gateway:
        for name, headers in ODD.items():
            found = [gateway.client.get("/", headers=headers).status_code for _ in range(7)]
            assert found[-1] in (400, 403, 422, 429), (name, found)


@every_proxy
def test_spelling_of_a_request_is_no_way_around(proxy, tmp_path, redis_server):
    """Old versions, whole URLs as targets, escapes, several paths: all count for the same subject."""
    with running(proxy, tmp_path, redis_server.url) as gateway:
        port = gateway.client.base_url.port
        lines = [
            "GET / HTTP/1.0", f"GET http://127.0.0.1:{port}/ HTTP/1.1", "GET /%2e%2e/%2f HTTP/1.1", "GET //x HTTP/1.1",
            "POST /?a=%00 HTTP/1.1", "HEAD / HTTP/1.1", "OPTIONS / HTTP/1.1", "GET /a;b=c HTTP/1.1", "DELETE /x HTTP/1.1",
        ]  # fmt: skip
        passed = [line for line in lines if 200 <= _raw(port, line) < 300]
        assert len(passed) <= 5
        assert get(gateway.client).status_code == 429 or len(passed) < 5
        for _ in range(6):
            get(gateway.client)
        assert [line for line in lines if 200 <= _raw(port, line) < 300] == []


def _raw(port: int | None, line: str) -> int:
    """Send a request as it is written. Returns the status of the answer; 0 if the connection is closed."""
    head = f"{line}\r\nhost: 127.0.0.1\r\nx-user: 42\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port or 0), timeout=20) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else 0
