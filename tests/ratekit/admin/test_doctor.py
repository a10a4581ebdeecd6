"""What is wrong with a store is found and told; the rights that are said to be enough are enough, and no more."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ratekit
from ratekit import Algorithm, AsyncRateLimiter, Limit, Policy, RateLimiter, RateLimitUnavailable, report
from ratekit.admin import doctor
from ratekit.admin.doctor import Severity, acl_rule, examine
from ratekit.admin.fleet_mode import get_fleet_mode, set_fleet_mode
from ratekit.cli.program import run
from ratekit.core.errors import SourceUnavailable
from ratekit.overrides import (
    clear_rate_limit_overrides,
    delete_rate_limit_override,
    get_rate_limit_override,
    list_rate_limit_overrides,
    set_rate_limit_override,
)
from ratekit.rules.sources.redis import redis_source
from ratekit.stores.memory import MemoryStore
from support.servers import free_port, start_server, stop_server, wheel_server

ROOT = Path(ratekit.__file__).parents[1]
WINDOWED = Policy(
    "/x", [Limit(3, 60, name=f"l{number}", algorithm=algorithm) for number, algorithm in enumerate(Algorithm) if number < 4]
)
SLOTS = Policy("/slots", [Limit(1, 60, algorithm="concurrency"), Limit(9, 60, name="rate")])


def found(limiter: RateLimiter) -> dict[str, tuple[str, str]]:
    return {finding.what: (str(finding.severity), finding.message) for finding in examine(limiter)}


@contextmanager
def setting(server: Any, **values: str) -> Iterator[None]:
    """Change settings of a server for a while."""
    with server.client() as client:
        before = {name: client.config_get(name)[name] for name in values}
        try:
            for name, value in values.items():
                client.config_set(name, value)
            yield
        finally:
            for name, value in before.items():
                client.config_set(name, value)


def user_url(server: Any, rights: str) -> str:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "limiter", "reset", "on", ">secret", *rights.split())
    return server.url.replace("redis://", "redis://limiter:secret@")


def decide_by_everything(limiter: RateLimiter) -> None:
    assert [limiter.check(WINDOWED, "u").allowed for _ in range(4)] == [True, True, True, False]
    limiter.refund(WINDOWED, "u", cost=2)
    limiter.charge(WINDOWED, "u", cost=5)
    assert limiter.peek(WINDOWED, "u").is_over_limit
    with limiter.slot(SLOTS, "u"):
        assert limiter.acquire(SLOTS, "u", "other").is_over_limit
    limiter.acquire(SLOTS, "u", "mine")
    limiter.renew(SLOTS, "u", "mine")
    limiter.release(SLOTS, "u", "mine")
    limiter.reset(WINDOWED, "u")
    limiter.check(Limit(9, 60, name="w"), "u", endpoint="/w")
    limiter.check(Limit(9, 5, name="w"), "u", endpoint="/w")  # in a window that is longer than its limit's
    assert limiter.check(Limit(9, 60), "o", endpoint="/o").max_requests == 2


def test_rights_are_those_of_the_commands_that_the_script_has():
    script = (ROOT / "lua/ratekit.lua").read_text()
    used = {name.lower() for name in re.findall(r'(?:ask|redis\.p?call)\("([A-Z]+)"', script)}
    assert used == set(doctor.SCRIPT_COMMANDS)
    override = (ROOT / "lua/write_override.lua").read_text()
    needed = {name.lower() for name in re.findall(r'redis\.call\("([A-Z]+)"', override)}
    assert needed <= {*doctor.DECIDING, *doctor.ADMINISTRATION}


def test_rights_in_the_documentation_are_those_that_are_printed():
    page = " ".join((ROOT / "docs/stores.md").read_text().split())
    assert acl_rule("ratelimit") in page
    assert " ".join(f"+{command}" for command in doctor.ADMINISTRATION) in page


def test_smallest_rights_are_enough_for_every_decision(server):
    set_rate_limit_override(server.client(), endpoint="/o", subject="o", max_requests=2)
    with RateLimiter(user_url(server, acl_rule("ratelimit")), deadline=5, on_outage="closed") as limiter:
        decide_by_everything(limiter)
        assert get_fleet_mode(limiter) is None
        with pytest.raises(RateLimitUnavailable, match="noperm"):
            list_rate_limit_overrides(limiter)
        with pytest.raises(RateLimitUnavailable, match="noperm"):
            set_rate_limit_override(limiter, endpoint="/o", subject="o", max_requests=3)


async def test_smallest_rights_are_enough_with_await(server):
    url = user_url(server, acl_rule("ratelimit"))
    async with AsyncRateLimiter(url, deadline=5, on_outage="closed") as limiter:
        assert [(await limiter.check(WINDOWED, "u")).allowed for _ in range(4)] == [True, True, True, False]


def test_rights_for_administration_are_enough_for_overrides_and_mode_and_the_report(server):
    url = user_url(server, acl_rule("ratelimit", administration=True))
    with RateLimiter(url, deadline=5, on_outage="closed") as limiter:
        reporter = report.install(limiter)
        assert [limiter.check(WINDOWED, "u").allowed for _ in range(4)] == [True, True, True, False]
        reporter.close()
        assert len(report.read_report(limiter)) == 4
        assert report.clear_report(limiter) == 4
        limiter.reset(WINDOWED, "u")
        set_rate_limit_override(limiter, endpoint="/o", subject="o", max_requests=2, override_ttl=60)
        set_rate_limit_override(limiter, endpoint="/o", subject="o", max_requests=2)
        assert get_rate_limit_override(limiter, endpoint="/o", subject="o").max_requests == 2
        decide_by_everything(limiter)
        assert len(list_rate_limit_overrides(limiter)) == 1
        assert delete_rate_limit_override(limiter, endpoint="/o", subject="o", limit="60s") is False
        assert clear_rate_limit_overrides(limiter) == 1
        set_fleet_mode(limiter, "monitor")


# Without EXISTS the script asks for the override all the same, and the server notes a failure of rights each time.
@pytest.mark.parametrize("command", [command for command in doctor.SCRIPT_COMMANDS if command != "exists"])
def test_every_right_of_the_smallest_set_is_needed(command, redis_server):
    set_rate_limit_override(redis_server.client(), endpoint="/o", subject="o", max_requests=2)
    rights = acl_rule("ratelimit").replace(f" +{command} ", " ")
    with RateLimiter(user_url(redis_server, rights), deadline=5, on_outage="closed") as limiter:
        try:
            decide_by_everything(limiter)
        except RateLimitUnavailable as error:
            assert error.reason.startswith("noperm")
        else:
            pytest.fail(f"+{command} is not needed")


@pytest.mark.parametrize("command", ["time", "hmget", "hgetall"])
def test_right_that_is_missing_is_an_outage_and_no_crash(command, server):
    set_rate_limit_override(server.client(), endpoint="/x", subject="u", max_requests=2)
    rights = acl_rule("ratelimit").replace(f" +{command} ", " ")
    with RateLimiter(user_url(server, rights), deadline=5) as limiter:
        result = limiter.check(Limit(1, 60), "u", endpoint="/x")
    assert (result.allowed, result.degraded) == (True, "noperm")


def test_keys_of_others_are_out_of_reach(redis_server):
    url = user_url(redis_server, acl_rule("ratelimit"))
    with RateLimiter(url, deadline=5, on_outage="closed", prefix="shop") as limiter, pytest.raises(RateLimitUnavailable):
        limiter.check(Limit(1, 60), "u", endpoint="/x")


def test_healthy_server_has_nothing_but_ok(server):
    with RateLimiter(server.url, deadline=5, on_outage="closed") as limiter, setting(server, save="3600 1"):
        findings = found(limiter)
    assert {severity for severity, _ in findings.values()} == {"ok"}
    assert list(findings) == ["reach", "script", "server", "clock", "eviction", "persist"]
    with server.client() as client:
        assert findings["server"][1].split() == ["redis", client.info()["redis_version"]]
        assert client.dbsize() == 0


def test_missing_right_is_named_with_the_set_that_is_needed(redis_server):
    rights = acl_rule("ratelimit").replace(" +zcount", "") + " +info"
    with RateLimiter(user_url(redis_server, rights), deadline=5, on_outage="closed") as limiter:
        severity, message = found(limiter)["script"]
    assert severity == "problem"
    assert "noperm" in message
    assert acl_rule("ratelimit") in message


def test_user_who_may_not_look_is_told_which_right_it_takes(redis_server):
    with RateLimiter(user_url(redis_server, acl_rule("ratelimit")), deadline=5, on_outage="closed") as limiter:
        findings = found(limiter)
    assert findings["script"][0] == "ok"
    assert findings["server"][0] == "warning"
    assert findings["server"][1].endswith("grant +info")  # and not +time, which it has


def test_user_who_may_not_read_the_clock_is_told_that(redis_server):
    rights = acl_rule("ratelimit").replace(" +time", "") + " +info"
    with RateLimiter(user_url(redis_server, rights), deadline=5, on_outage="closed") as limiter:
        assert found(limiter)["server"][1].endswith("grant +time")


def test_rights_for_rules_are_enough_to_read_them_and_those_of_administration_to_write_them(server):
    source = redis_source(user_url(server, acl_rule("ratelimit", administration=True)), {}, "shop", None)
    version = source.save({"service": "shop", "rules": []})
    source.close()
    reader = redis_source(user_url(server, acl_rule("ratelimit", rules=True)), {}, "shop", None)
    loaded = reader.load(None, lambda: None)
    told = threading.Event()
    stop = reader.watch(told.set)
    assert loaded is not None
    assert stop is not None
    assert loaded.version == version
    assert told.wait(10)  # the subscription stands
    stop()
    reader.close()
    plain = redis_source(user_url(server, acl_rule("ratelimit")), {}, "shop", None)
    with pytest.raises(SourceUnavailable, match="ratelimit_rules:{shop} refuses: noperm"):
        plain.load(None, lambda: None)
    plain.close()


def test_store_that_refuses_is_not_said_to_be_silent(redis_server, capsys):
    assert run(["overrides", "list", "--store", user_url(redis_server, acl_rule("ratelimit"))]) == 3
    assert "the store refuses: noperm" in capsys.readouterr().err
    assert run(["overrides", "list", "--store", f"redis://127.0.0.1:{free_port()}"]) == 3
    assert "the store does not answer: " in capsys.readouterr().err


def test_evicting_policy_is_warned_of(redis_server):
    with redis_server.client() as client, RateLimiter(redis_server.url, deadline=5) as limiter:
        client.config_set("maxmemory-policy", "volatile-lru")
        try:
            severity, message = found(limiter)["eviction"]
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert (severity, "volatile-lru" in message) == ("warning", True)


def test_replica_is_a_problem(redis_server):
    host, port = redis_server.url.removeprefix("redis://").split(":")
    replica = start_server(wheel_server(), "--replicaof", host, port)
    try:
        with RateLimiter(replica.url, deadline=5, on_outage="closed") as limiter:
            findings = found(limiter)
    finally:
        stop_server(replica)
    assert findings["role"][0] == "problem"
    assert findings["script"][0] == "problem"


def test_clock_that_is_off_is_warned_of(redis_server, monkeypatch):
    import time

    real = time.time
    monkeypatch.setattr(doctor.time, "time", lambda: real() - 7)
    with RateLimiter(redis_server.url, deadline=5) as limiter:
        severity, message = found(limiter)["clock"]
    assert severity == "warning"
    assert "+7.0 s" in message


@pytest.mark.parametrize(("workers", "severity"), [("4", "problem"), ("1", "warning")])
@pytest.mark.filterwarnings("ignore:memory.// is used")
def test_several_workers_on_memory_are_a_problem(workers, severity, monkeypatch, capsys):
    monkeypatch.setenv("WEB_CONCURRENCY", workers)
    with RateLimiter(MemoryStore()) as limiter:
        assert found(limiter)["workers"][0] == severity
    assert run(["doctor", "--store", "memory://"]) == (3 if severity == "problem" else 0)
    assert (workers in capsys.readouterr().out) == (severity == "problem")


def test_program_prints_findings_and_rights(redis_server, capsys):
    assert run(["doctor", "--store", redis_server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        *(["ok", name] for name in ("reach", "script", "server", "clock", "eviction")),
        ["warning", "persist"],
    ]
    assert run(["doctor", "--store", redis_server.url, "--acl", "--admin"]) == 0
    assert capsys.readouterr().out.strip() == acl_rule("ratelimit", administration=True)


def test_severities_are_three():
    assert list(Severity) == ["ok", "warning", "problem"]


def test_server_that_forgets_overrides_in_a_restart_is_warned_of(server):
    with RateLimiter(server.url, deadline=5, on_outage="closed") as limiter:
        severity, message = found(limiter)["persist"]
        assert (severity, "ratekit overrides export" in message) == ("warning", True)
        with setting(server, save="3600 1"):
            severity, message = found(limiter)["persist"]
            assert (severity, "'3600 1'" in message) == ("ok", True)
        with setting(server, appendonly="yes"):
            assert found(limiter)["persist"] == ("ok", "appendonly is yes: overrides survive a restart")


def test_user_who_may_not_read_settings_is_not_warned(redis_server):
    url = user_url(redis_server, acl_rule("ratelimit") + " +info")
    with RateLimiter(url, deadline=5, on_outage="closed") as limiter:
        severity, message = found(limiter)["persist"]
    assert (severity, "CONFIG GET is not allowed" in message) == ("ok", True)
