"""TLS: certificates are made for the test, by openssl; the server is one that was built with TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.down import PLENTY
from faults.drive import Request
from faults.serving import serving
from ratekit import Limit, Policy
from support.certificates import make_certificates
from support.servers import executable_of, free_port, stop_server

TEN = Policy("ten", Limit(10, 3600))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a certificate of it for this machine, and another authority that has nothing to do with it."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def encrypted(certificates: Path) -> Iterator[tuple]:
    """A server that also talks TLS, and its port for that."""
    port = free_port()
    files = {"cert": "server.pem", "key": "server.key", "ca-cert": "authority.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(certificates / file))]
    options += ["--tls-port", str(port), "--tls-auth-clients", "no"]
    with serving(*options, executable=executable_of("path-redis-server")) as server:
        yield server, port


def test_limits_hold_over_tls(ours, encrypted, certificates):
    _, port = encrypted
    url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificates / 'authority.pem'}"
    with ours.open(url, deadline=2) as driver:
        samples = driver.checks([Request(TEN)] * 40, width=8)
    assert [sample.degraded for sample in samples] == [None] * 40
    assert sum(sample.allowed for sample in samples) == 10


def test_certificate_of_a_stranger_is_an_outage_and_no_exception(ours, encrypted, certificates):
    _, port = encrypted
    url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificates / 'stranger.pem'}"
    with ours.open(url, deadline=2) as driver:
        samples = driver.checks([Request(TEN)] * 5, width=1)
    assert {sample.degraded for sample in samples} == {"connection"}


def test_server_that_talks_tls_may_be_killed_too(ours, encrypted, certificates):
    server, port = encrypted
    url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificates / 'authority.pem'}"
    with ours.open(url, deadline=2) as driver:
        assert driver.check(PLENTY).is_decided
        stop_server(server)
        samples = driver.checks([Request(PLENTY)] * 20, width=4)
    assert [sample.is_error for sample in samples] == [False] * 20
    assert {sample.degraded for sample in samples} == {"connection"}
