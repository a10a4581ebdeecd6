"""Each proxy that asks /v1/authorize, with its configuration of example_projects/gateways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from support.gateway_service import GatewayService, serving
from support.gateways import application, binary, client, configured, envoy_command, process, stack
from support.servers import free_port, wait_until


def haproxy_command(folder: Path) -> list[str]:
    """Return the command that runs HAProxy."""
    return [binary("haproxy"), "-db", "-q", "-f", "haproxy.cfg"]


class Proxy(NamedTuple):
    """How a proxy is started, and what is particular to it."""

    example: str
    command: Callable[[Path], list[str]]
    shows_numbers: bool  # on requests that pass
    away: int  # the status while ratekit is away
    other: dict[str, object]  # the change of its configuration that makes it the other way round
    other_away: int | None  # the status then; None: there is no other way
    away_seconds: float = 0.06
    hung_seconds: float | None = 0.06  # None: the proxy has no time limit that is short enough


CADDY_OPEN: dict[str, object] = {'		respond "the limits cannot be checked now" 503': "		import application"}
HAPROXY_CLOSED: dict[str, object] = {"  # http-request deny deny_status 503": "  http-request deny deny_status 503"}
PROXIES = [
    Proxy("nginx", lambda folder: [binary("nginx"), "-p", str(folder), "-c", "nginx.conf"], True, 200,
          {"      error_page 500 = @undecided;": "      #"}, 500),
    Proxy("traefik", lambda folder: [binary("traefik"), "--configFile=traefik.yaml"], False, 500, {}, None,
          hung_seconds=None),
    Proxy("caddy", lambda folder: [binary("caddy"), "run", "--config", "Caddyfile", "--adapter", "caddyfile"],
          False, 503, CADDY_OPEN, 200),
    # Its HTTP client has no time limit for connecting before 3.0: it tries three times, a second each.
    Proxy("haproxy", haproxy_command, True, 200, HAPROXY_CLOSED, 503, away_seconds=4.0,
          hung_seconds=0.3),  # four times its 50 ms
    Proxy("envoy_ext_authz", lambda folder: envoy_command(Path("envoy.yaml")), True, 200,
          {"failure_mode_allow: true": "failure_mode_allow: false"}, 403),
]  # fmt: skip
PROXY = {proxy.example: proxy for proxy in PROXIES}
every_proxy = pytest.mark.parametrize("proxy", PROXIES, ids=lambda proxy: proxy.example)


class Running(NamedTuple):
    """A proxy in front of an application and ratekit."""

    client: httpx2.Client
    service: GatewayService


@contextmanager
def running(
    proxy: Proxy,
    folder: Path,
    store: str,
    changes: dict[str, object] | None = None,
    *,
    is_patient: bool = True,
    **environment: str,
) -> Iterator[Running]:
    """Run a proxy in front of an application and ratekit, with changes of its configuration."""
    with stack() as started:
        backend, port = started.enter_context(application()), free_port()
        service = started.enter_context(serving(folder, store, **environment))
        ports = {"10000": port, "9000": backend, "8080": service.port, "RATEKIT_API_KEY": service.key}
        copy = configured(proxy.example, folder, (_patient(proxy) if is_patient else {}) | (changes or {}) | ports)
        home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        started.enter_context(process(proxy.command(copy), port, copy, **home))
        connected = started.enter_context(client(port))
        # Traefik listens before it knows its routes.
        wait_until(lambda: get(connected, "first").status_code != 404, f"{proxy.example} has no routes")
        yield Running(connected, service)


def _patient(proxy: Proxy) -> dict[str, object]:
    """Give a busy machine more time than the example does; a port that nobody listens on is noticed at once anyway."""
    return {
        "nginx": {"timeout 50ms": "timeout 10s"},
        "caddy": {"timeout 50ms": "timeout 10s"},
        "haproxy": {"timeout = 50,": "timeout = 10000,"},
        "envoy_ext_authz": {"timeout: 0.05s": "timeout: 10s"},
    }.get(proxy.example, {})


def get(client: httpx2.Client, user: str = "42", path: str = "/", **headers: str) -> httpx2.Response:
    """Send a request of a user."""
    return client.get(path, headers={"x-user": user} | headers)
