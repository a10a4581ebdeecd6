"""on, off and monitor: read on every request, from the environment, the file and the limiter itself."""

from __future__ import annotations

import time

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from ratekit import ConfigurationError, RateLimitMode
from ratekit.admin.fleet_mode import set_fleet_mode
from ratekit.core.modes import mode_sources
from ratekit.testing import assert_admits
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, install


def statuses(client: TestClient, times: int) -> list[int]:
    return [client.get("/x").status_code for _ in range(times)]


def test_mode_is_switched_between_two_requests(limited, monkeypatch, ratekit_clock):
    client = limited(PathRateLimiter(1, 60))
    assert statuses(client, 2) == [200, 429]
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert statuses(client, 2) == [200, 200]
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert statuses(client, 2) == [200, 200]
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert statuses(client, 1) == [429]
    monkeypatch.delenv("RATE_LIMIT_MODE")
    assert statuses(client, 1) == [429]


def test_mode_is_switched_by_the_file(limited, monkeypatch, tmp_path, ratekit_clock):
    path = tmp_path / "mode"
    monkeypatch.setenv("RATE_LIMIT_MODE_FILE", str(path))
    client = limited(PathRateLimiter(1, 60))
    assert statuses(client, 2) == [200, 429]
    path.write_text("monitor\n")
    assert statuses(client, 2) == [200, 200]
    path.write_text("off")
    assert "RateLimit-Limit" not in client.get("/x").headers
    path.write_text("on")
    assert statuses(client, 1) == [429]


def test_monitor_counts_and_lets_pass_with_nothing_remaining(limited, monkeypatch, store, ratekit_clock):
    client = limited(PathRateLimiter(2, 60))
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    answers = [client.get("/x") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200]
    assert [answer.headers["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0", "0"]
    assert [answer.headers["RateLimit-Limit"] for answer in answers] == ["2", "2", "2", "2"]
    assert not any("Retry-After" in answer.headers for answer in answers)
    assert len(store) == 1
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert statuses(client, 1) == [429]


def test_off_does_not_count_and_sets_no_headers(limited, monkeypatch, store, ratekit_clock):
    client = limited(PathRateLimiter(2, 60), ProjectRateLimiter(2, 60, anonymous="refuse"))
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    answers = [client.get("/x") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200]
    assert not any(name.startswith("ratelimit") for answer in answers for name in answer.headers)
    assert len(store) == 0


def test_off_does_not_ask_who_it_is(limited, monkeypatch):
    asked = []
    client = limited(ProjectRateLimiter(2, 60), identify=asked.append)
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    client.get("/x")
    assert asked == []


@pytest.mark.parametrize("own", ["off", RateLimitMode.OFF, " Off "], ids=repr)
def test_own_mode_of_a_limiter_is_off(own, limited, store, ratekit_clock):
    client = limited(PathRateLimiter(1, 60, mode=own))
    assert statuses(client, 3) == [200, 200, 200]
    assert len(store) == 0


@pytest.mark.parametrize(
    ("own", "everywhere", "expected"),
    [
        ("on", "on", [200, 429]),
        ("monitor", "on", [200, 200]),
        ("on", "monitor", [200, 200]),
        ("on", "off", [200, 200]),
        ("off", "monitor", [200, 200]),
        (None, "monitor", [200, 200]),
        (None, "on", [200, 429]),
    ],
)
def test_weakest_of_the_modes_wins(own, everywhere, expected, limited, monkeypatch, ratekit_clock):
    monkeypatch.setenv("RATE_LIMIT_MODE", everywhere)
    assert statuses(limited(PathRateLimiter(1, 60, mode=own)), 2) == expected


def test_monitor_of_one_limiter_leaves_the_other_in_force(limited, ratekit_clock):
    client = limited(PathRateLimiter(1, 60, mode="monitor"), PathRateLimiter(3, 3600))
    assert_admits(lambda: client.get("/x"), exactly=3)


def test_monitor_of_one_limiter_beside_a_refusal_of_the_other_answers_for_the_other(limited, ratekit_clock):
    client = limited(PathRateLimiter(1, 60, mode="monitor"), PathRateLimiter(2, 3600))
    statuses(client, 2)
    answer = client.get("/x")
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "3600"
    assert answer.json()["violated-policies"] == ["hour"]


def test_unknown_mode_while_running_leaves_the_last_one_in_force(limited, monkeypatch, caplog, ratekit_clock):
    client = limited(PathRateLimiter(1, 60))
    monkeypatch.setenv("RATE_LIMIT_MODE", "audit")
    assert statuses(client, 3) == [200, 429, 429]
    assert caplog.text.count("'audit'") == 1


def test_unknown_mode_at_the_start_is_refused_by_install(monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "audit")
    with pytest.raises(ConfigurationError, match="RATE_LIMIT_MODE 'audit'"):
        install(FastAPI())


def test_unknown_mode_at_the_start_is_refused_by_a_limiter(monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "audit")
    with pytest.raises(ConfigurationError, match="RATE_LIMIT_MODE 'audit'"):
        PathRateLimiter(1, 60)


def test_monitor_tags_the_root_span_of_the_trace(limited, monkeypatch, ratekit_clock):
    import sys
    from types import SimpleNamespace

    tags = {}
    span = SimpleNamespace(set_tag=tags.__setitem__)
    monkeypatch.setitem(sys.modules, "ddtrace", SimpleNamespace(tracer=SimpleNamespace(current_root_span=lambda: span)))
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    client = limited(PathRateLimiter(1, 60))
    client.get("/x")
    assert tags == {}
    client.get("/x")
    assert tags == {"ratelimit.over_limit": "/x"}


def test_unusable_request_passes_while_monitoring_and_is_told_of(limited, monkeypatch, caplog, ratekit_clock):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    client = limited(PathRateLimiter(1, 60, cost=lambda request: -1))
    assert client.get("/x").status_code == 200
    assert "-1" in caplog.text


def test_mode_holds_without_install(monkeypatch, ratekit_clock):
    app = FastAPI()

    @app.get("/x", dependencies=[Depends(PathRateLimiter(1, 60))])
    async def x():
        return {}

    client = TestClient(app)
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    answers = [client.get("/x") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[2].headers["RateLimit-Remaining"] == "0"
    assert "Retry-After" not in answers[2].headers


@pytest.mark.parametrize("starts", [1, 2])
def test_mode_of_the_fleet_is_followed_while_the_application_runs(starts, limited, store, ratekit_clock):
    client = limited(PathRateLimiter(1, 60), fleet_mode=True)
    for _ in range(starts):
        set_fleet_mode(store, "on")
        with client:
            statuses(client, 1)
            set_fleet_mode(store, "monitor")
            deadline = time.monotonic() + 20
            while client.get("/x").status_code == 429:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert [name for name, _ in mode_sources()] == ["RATE_LIMIT_MODE", "RATE_LIMIT_MODE_FILE"]
