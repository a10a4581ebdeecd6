"""Violations are written in batches, and no request waits for the database."""

from __future__ import annotations

import logging
import os
import time

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import event

from ratekit import Limit, Policy, RateLimiter
from ratekit.admin.violations import ViolationLog, list_violations
from ratekit.core.errors import ConfigurationError
from ratekit.database import engines, migrate
from ratekit.stores.memory import MemoryStore
from ratekit.telemetry import prometheus
from support.databases import database_server, new_database

POLICY = Policy("/search", [Limit(2, 60), Limit(5, 3600, name="hour", shadow=True)])


@pytest.fixture
def limiter():
    with RateLimiter(MemoryStore()) as limiter:
        yield limiter


@pytest.fixture
def url(tmp_path):
    url = new_database("sqlite", tmp_path)
    migrate.upgrade(url)
    return url


@pytest.fixture
def log(url):
    log = ViolationLog(url, interval=3600).start()
    yield log
    log.close()


def refuse(limiter, times: int, subject: str = "user:ann") -> None:
    limiter.reset(POLICY, subject)
    limiter.charge(POLICY, subject, cost=2)
    for _ in range(times):
        assert not limiter.check(POLICY, subject).allowed


def test_each_refused_request_is_a_row_of_its_own(database_url, limiter):
    migrate.upgrade(database_url)
    log = ViolationLog(database_url, interval=3600).start()
    limiter.check(POLICY, "user:bob")
    refuse(limiter, 3)
    log.close()
    found = list_violations(database_url)
    assert [(one.subject, one.endpoint, one.limit, one.used, one.maximum) for one in found] == [
        ("user:ann", "/search", "60s", 2, 2)
    ] * 3
    assert abs(found[0].at.timestamp() - time.time()) < 60
    assert (log.written, log.dropped) == (3, 0)


def test_it_is_written_within_seconds_by_itself(url, limiter):
    log = ViolationLog(url, interval=0.01).start()
    refuse(limiter, 1)
    deadline = time.monotonic() + 10
    while not log.written and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [one.subject for one in list_violations(url)] == ["user:ann"]
    log.close()


def test_filters_and_pages(log, url, limiter):
    refuse(limiter, 2)
    refuse(limiter, 3, "user:bob")
    log.flush()
    assert len(list_violations(url, subject="user:bob")) == 3
    assert len(list_violations(url, endpoint="/other")) == 0
    assert [one.subject for one in list_violations(url, most=4)] == ["user:bob"] * 3 + ["user:ann"]
    assert list_violations(url, tenant="another") == []


def test_monitored_and_shadow_refusals_are_no_violations(log, url, limiter):
    shadowed = Policy("/shadow", [Limit(100, 60), Limit(1, 60, shadow=True)])
    for _ in range(3):
        assert limiter.check(shadowed, "user:ann").allowed
    log.flush()
    assert list_violations(url) == []


def test_thousands_are_written_in_few_statements(url, limiter):
    engine = engines.open_engine(url)
    statements = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    log = ViolationLog(engine, interval=3600).start()
    refuse(limiter, 2000)
    log.flush()
    assert sum(statement.startswith("INSERT") for statement in statements) == 4
    assert (log.written, len(list_violations(engine, most=5000))) == (2000, 2000)
    log.close()
    engine.dispose()


def test_database_that_is_away_makes_records_wait_and_drops_what_does_not_fit(limiter, caplog):
    caplog.set_level(logging.INFO, "ratekit.violations")
    registry = CollectorRegistry()
    end = prometheus.install(registry)
    server = database_server("postgres")
    url = server.new_database()
    migrate.upgrade(url)
    log = ViolationLog(url, interval=3600, most=10).start()
    server.stop()
    try:
        began = time.monotonic()
        refuse(limiter, 25)
        assert time.monotonic() - began < 1  # nobody has waited for the database
        log.flush()
        log.flush()
    finally:
        server.start()
    log.flush()
    assert (log.written, log.dropped, len(list_violations(url))) == (10, 15, 10)
    assert registry.get_sample_value("ratekit_lost_records_total", {"what": "violations"}) == 15
    said = [
        (record.levelname, record.message.split(":")[0]) for record in caplog.records if record.name == "ratekit.violations"
    ]
    assert said == [
        ("WARNING", "violations are dropped from now on"),
        ("WARNING", "violations cannot be written, and wait until they can"),
        ("INFO", "violations are written again"),
    ]
    end()
    log.close()


def test_forked_process_writes_its_own_records_only(log, url, limiter):
    refuse(limiter, 2)
    child = os.fork()
    if child == 0:
        try:
            refuse(limiter, 1, "user:child")
            log.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    log.flush()
    assert sorted(one.subject for one in list_violations(url)) == ["user:ann", "user:ann", "user:child"]


def test_subjects_may_be_pseudonyms(url, limiter):
    log = ViolationLog(url, interval=3600, subjects="hashed").start()
    refuse(limiter, 1)
    log.close()
    (found,) = list_violations(url)
    assert "ann" not in found.subject


def test_long_subjects_and_endpoints_are_cut_to_what_the_table_takes(url, limiter):
    log = ViolationLog(url, interval=3600).start()
    for _ in range(2):
        limiter.check(Limit(1, 60), "user:ann", endpoint="/" + "x" * 199)
    log.close()
    assert len(list_violations(url)) == 1


@pytest.mark.parametrize(
    ("wrong", "named"), [({"subjects": "secret"}, "'secret'"), ({"most": 0}, "most 0"), ({"interval": -1}, "interval -1")]
)
def test_nonsense_is_refused_by_name(url, wrong, named):
    with pytest.raises(ConfigurationError, match=named):
        ViolationLog(url, **wrong)


def test_command_lists_and_deletes(ratekit_command, log, url, limiter):
    refuse(limiter, 2)
    log.flush()
    lines = ratekit_command("violations", "--since", "1h", "--database", url).splitlines()
    assert lines[0].split() == ["WHEN", "SUBJECT", "ENDPOINT", "LIMIT", "USED", "MAXIMUM"]
    assert lines[1].split()[1:] == ["user:ann", "/search", "60s", "2", "2"]
    assert ratekit_command("violations", "delete", "--older", "1h", "--database", url) == "deleted: 0\n"
    assert ratekit_command("violations", "delete", "--older", "1ms", "--database", url) == "deleted: 2\n"
    assert ratekit_command("violations", "--database", url) == "there are none\n"


@pytest.fixture
def ratekit_command(capsys):
    from ratekit.cli.program import run

    def command(*arguments: str) -> str:
        assert run(arguments) == 0
        return capsys.readouterr().out

    return command
