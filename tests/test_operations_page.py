"""The bytes that docs/operations.md names are what a real server needs."""

from __future__ import annotations

import re
import textwrap

import pytest

from ratekit import Limit, RateLimiter
from ratekit.admin.doctor import examine
from ratekit.overrides import set_rate_limit_override
from support.gateways import process
from support.pages import ROOT
from support.servers import SERVERS, executable_of, free_port

PAGE = (ROOT / "docs/operations.md").read_text()
ROWS = {name: int(number.replace(",", "")) for name, number in re.findall(r"^\| (.+?) \| ([\d,]+) \|$", PAGE, re.MULTILINE)}
STATES = {
    "`fixed_window`, one subject": (Limit(100, 3600), 3, 1000),
    "`sliding_window_counter`, one subject": (Limit(100, 3600, algorithm="sliding_window_counter"), 3, 1000),
    "`token_bucket`, one subject": (Limit(100, 3600, burst=100), 3, 1000),
    "`sliding_window_log` of 10 requests, one subject": (Limit(100, 3600, algorithm="sliding_window_log"), 10, 100),
    "`sliding_window_log` of 100 requests, one subject": (Limit(100, 3600, algorithm="sliding_window_log"), 100, 30),
}


@pytest.fixture
def memory(redis_server):
    with redis_server.client() as client:
        yield lambda: int(client.info("memory")["used_memory"])


@pytest.fixture
def limiter(redis_server):
    with RateLimiter(f"{redis_server.url}?socket_timeout=5") as limiter:
        limiter.check(Limit(1, 1), "warm", endpoint="/warm")
        yield limiter


@pytest.mark.parametrize("name", SERVERS)
def test_configuration_of_the_page_starts_a_server_that_is_fit(name, tmp_path):
    lines = re.search(r"(?:^    .*\n)+", PAGE, re.MULTILINE)
    assert lines is not None
    config, port = tmp_path / "redis.conf", free_port()
    config.write_text(textwrap.dedent(lines[0]))
    command = [executable_of(name), str(config), "--port", str(port), "--dir", str(tmp_path), "--bind", "127.0.0.1"]
    with (
        process(command, port, tmp_path),
        RateLimiter(f"redis://127.0.0.1:{port}", deadline=5, on_outage="closed") as limiter,
    ):
        found = {finding.what: (str(finding.severity), finding.message) for finding in examine(limiter)}
    assert {severity for severity, _ in found.values()} == {"ok"}
    assert "noeviction, maxmemory 200" in found["eviction"][1]
    assert "appendonly is yes" in found["persist"][1]


def test_every_row_is_measured():
    assert set(ROWS) == {*STATES, "an override of two numbers"}


@pytest.mark.parametrize("name", STATES)
def test_bytes_of_a_counter_are_those_of_the_page(limiter, memory, name):
    limit, requests, subjects = STATES[name]
    before = memory()
    for number in range(subjects):
        for _ in range(requests):
            limiter.check(limit, f"user:{number:08}", endpoint="/api/search")
    assert (memory() - before) / subjects == pytest.approx(ROWS[name], rel=0.25)


def test_bytes_of_an_override_are_those_of_the_page(limiter, memory):
    before = memory()
    for number in range(1000):
        set_rate_limit_override(limiter, endpoint="/api/search", subject=f"user:{number:08}", max_requests=500, expiry=60)
    assert (memory() - before) / 1000 == pytest.approx(ROWS["an override of two numbers"], rel=0.25)
