"""The fixtures that users get."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter
from ratekit.core import clock
from ratekit.testing import assert_admits, assert_admits_async, is_admitted

THREE = Policy("three", Limit(3, 60))


def test_clock_stands_still_until_it_is_moved(ratekit_clock, ratekit_store):
    limiter = RateLimiter()
    assert limiter.check(THREE, "u").reset_at == ratekit_clock.now + 60
    ratekit_clock.advance(59)
    assert limiter.check(THREE, "u").ttl == 1
    ratekit_clock.advance(1)
    assert limiter.check(THREE, "u").request_count == 1
    ratekit_clock.set(5)
    assert ratekit_clock.now == 5


@pytest.mark.parametrize("turn", [1, 2])
def test_store_is_empty_for_each_test(ratekit_store, turn):
    assert len(ratekit_store) == 0
    assert RateLimiter("memory://").check(THREE, "u").request_count == 1
    assert len(ratekit_store) == 1


def test_clock_is_real_again_after_the_test():
    assert clock.source is None


def test_assertion_tells_how_many_passed(ratekit_store, ratekit_admits):
    limiter = RateLimiter()
    ratekit_admits(lambda: limiter.check(THREE, "u"), exactly=3)
    with pytest.raises(AssertionError, match=r"0 of 3 requests passed, not the first 2: xxx"):
        ratekit_admits(lambda: limiter.check(THREE, "u"), exactly=2)


async def test_assertion_awaits(ratekit_store):
    limiter = AsyncRateLimiter()
    await assert_admits_async(lambda: limiter.check(THREE, "u"), exactly=3, of=6)


@pytest.mark.parametrize(("status", "admitted"), [(200, True), (404, True), (429, False)])
def test_response_is_admitted_unless_it_is_a_429(status, admitted):
    class Response:
        status_code = status

    assert is_admitted(Response()) is admitted
    assert is_admitted(admitted) is admitted


def test_answer_of_another_kind_is_refused():
    with pytest.raises(ConfigurationError, match="'yes'"):
        assert_admits(lambda: "yes", exactly=1)


def test_plugin_is_found_by_pytest_and_imports_nothing_heavy(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "LOADED = {name.partition('.')[0] for name in sys.modules}\n"
        "def test_light():\n    assert not LOADED & {'lupa', 'redis'}\n"
        "def test_fixtures(ratekit_clock, ratekit_store, ratekit_admits):\n    ratekit_clock.advance(1)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:fakeredis"]
    finished = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "2 passed" in finished.stdout, finished.stdout
