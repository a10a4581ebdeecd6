"""Overrides in a database decide the next request, and outlive the store that decides."""

from __future__ import annotations

import datetime
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import insert, update

from benchmarks.server import start_server, stop_server, wait_until, wheel_server
from ratekit import Limit, Policy, RateLimiter
from ratekit.admin.durable_overrides import DurableOverrides
from ratekit.core.errors import ConfigurationError, DatabaseUnavailable
from ratekit.database import engines, migrate, schema
from ratekit.overrides import get_rate_limit_override, list_rate_limit_overrides
from support.databases import database_server, new_database

SEARCH = Policy("/search", [Limit(10, 60), Limit(100, 3600, name="hour")])
ANN = {"endpoint": "/search", "subject": "user:ann"}


@pytest.fixture
def limiter(redis_server):
    with RateLimiter(redis_server.url, deadline=2) as limiter:
        yield limiter


@pytest.fixture
def durable(database_url, limiter):
    migrate.upgrade(database_url)
    overrides = DurableOverrides(database_url, limiter)
    yield overrides
    overrides.close()


@pytest.fixture
def on_sqlite(tmp_path, limiter):
    url = new_database("sqlite", tmp_path)
    migrate.upgrade(url)
    overrides = DurableOverrides(url, limiter)
    yield overrides
    overrides.close()


def maximum(limiter, subject: str) -> int:
    """The maximum of the first limit in force for a subject."""
    return limiter.check(SEARCH, subject).tiers[0].max_requests


def in_hours(hours: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)


def test_override_decides_the_next_request_and_says_who_set_it(durable, limiter):
    assert maximum(limiter, "user:ann") == 10
    made = durable.set(**ANN, max_requests=500, valid_until=in_hours(1), reason="ticket 77", set_by="eve")
    assert (made.override.max_requests, made.is_copied) == (500, True)
    assert maximum(limiter, "user:ann") == 500
    stored = get_rate_limit_override(limiter, **ANN)
    assert (stored.note, stored.set_by) == ("ticket 77", "eve")
    assert 3500 < stored.expires_in <= 3600
    assert durable.get(**ANN).override.max_requests == 500


def test_numbers_of_another_limit_stay(durable, limiter):
    durable.set(**ANN, max_requests=500)
    durable.set(**ANN, limit="hour", max_requests=7000)
    durable.set(**ANN, unlimited=True)
    stored = get_rate_limit_override(limiter, **ANN)
    assert (stored.max_requests, stored.unlimited, stored.limits["hour"].max_requests) == (None, True, 7000)
    assert [made.override.limits["hour"].max_requests for made in durable.list()] == [7000]


def test_deleted_override_is_gone_everywhere_but_in_the_history(durable, limiter):
    durable.set(**ANN, max_requests=500, set_by="eve", reason="ticket 77")
    assert durable.delete(**ANN, deleted_by="bob", reason="closed")
    assert not durable.delete(**ANN)
    assert maximum(limiter, "user:ann") == 10
    assert (durable.get(**ANN), list(durable.list())) == (None, [])
    told = [(change.action, change.changed_by, change.reason, change.fields) for change in durable.history()]
    assert told == [
        ("delete", "bob", "closed", {"max_requests": "500"}),
        ("set", "eve", "ticket 77", {"max_requests": "500"}),
    ]


def test_store_that_comes_back_empty_is_filled_again(on_sqlite, limiter, redis_server):
    on_sqlite.set(**ANN, max_requests=500)
    on_sqlite.set(endpoint="/search", org_id=1, project_id=42, max_requests=7)
    follower = on_sqlite.follow(interval=60)
    try:
        assert follower.wait_for_first(10)
        with redis_server.client() as client:
            client.flushall()
        assert maximum(limiter, "user:ann") == 10
        follower.refresh()
        assert maximum(limiter, "user:ann") == 500
        assert maximum(limiter, "1:42") == 7
    finally:
        follower.close()


def test_follower_by_itself_restores_within_a_second(on_sqlite, limiter, redis_server):
    on_sqlite.set(**ANN, max_requests=500)
    follower = on_sqlite.follow()
    try:
        assert follower.wait_for_first(10)
        with redis_server.client() as client:
            client.flushall()
        began = time.monotonic()
        wait_until(lambda: maximum(limiter, "user:ann") == 500, "the override is not back")
        assert time.monotonic() - began < 2
    finally:
        follower.close()


def test_change_that_could_not_be_copied_is_copied_when_the_store_is_back(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ratekit.overrides")
    url = new_database("sqlite", tmp_path)
    migrate.upgrade(url)
    server = start_server(wheel_server())
    stop_server(server)
    overrides = DurableOverrides(url, server.url)
    made = overrides.set(**ANN, max_requests=500)
    assert (made.is_copied, overrides.get(**ANN).override.max_requests) == (False, 500)
    follower = overrides.follow(interval=60)
    follower.refresh()
    server = start_server(wheel_server(), port=int(server.url.rpartition(":")[2]))
    wait_until(lambda: follower.refresh() or overrides.copied_version() == overrides.version(), "it is not copied")
    with RateLimiter(server.url, deadline=2) as limiter:
        assert maximum(limiter, "user:ann") == 500
    follower.close()
    overrides.close()
    stop_server(server)
    levels = [record.levelname for record in caplog.records if record.name == "ratekit.overrides"]
    assert levels == ["WARNING", "WARNING", "INFO"]  # the change, the follower, and that it is well again


def test_database_that_is_away_leaves_the_copies_in_force(tmp_path, limiter):
    server = database_server("postgres")
    url = server.new_database()
    migrate.upgrade(url)
    overrides = DurableOverrides(url, limiter)
    overrides.set(**ANN, max_requests=500)
    follower = overrides.follow(interval=60)
    assert follower.wait_for_first(10)
    server.stop()
    try:
        with pytest.raises(DatabaseUnavailable, match="the database does not answer"):
            overrides.set(**ANN, max_requests=1)
        follower.refresh()
        assert maximum(limiter, "user:ann") == 500
    finally:
        server.start()
    overrides.set(**ANN, max_requests=1)
    assert maximum(limiter, "user:ann") == 1
    follower.close()
    overrides.close()


def test_override_that_has_ended_is_no_override_and_part_of_the_history(tmp_path, ratekit_clock):
    url = new_database("sqlite", tmp_path)
    migrate.upgrade(url)
    with RateLimiter("memory://") as limiter:
        overrides = DurableOverrides(url, limiter)
        overrides.set(**ANN, max_requests=500, valid_until=ratekit_clock.now + 60)
        assert maximum(limiter, "user:ann") == 500
        ratekit_clock.advance(61)
        assert maximum(limiter, "user:ann") == 10
        assert overrides.get(**ANN) is None
        assert (overrides.expire(), overrides.expire()) == (1, 0)
        assert [change.action for change in overrides.history(subject="user:ann")] == ["expire", "set"]
        overrides.close()


def test_row_of_the_published_table_counts_for_the_endpoint_of_its_rule(durable, limiter, database_url):
    engine = engines.open_engine(database_url)
    with engine.begin() as connection:  # as somebody else writes it, who knows nothing of versions
        rule = {"client_key": "user:ann", "endpoint": "/search", "algorithm": "fixed_window"}
        made = connection.execute(insert(schema.rules).values(**rule, max_requests=10, window_secs=60))
        row = {"client_key": "user:ann", "rule_id": made.inserted_primary_key[0], "max_requests": 3}
        connection.execute(insert(schema.overrides).values(**row, valid_until=in_hours(1)))
    durable.copy()
    assert maximum(limiter, "user:ann") == 3
    with engine.begin() as connection:
        connection.execute(update(schema.overrides).values(max_requests=4))
    durable.copy()
    assert maximum(limiter, "user:ann") == 4
    engine.dispose()


def test_two_who_write_at_once_leave_the_store_as_the_database_is(database_url, redis_server):
    migrate.upgrade(database_url)
    with RateLimiter(redis_server.url, deadline=5) as limiter:
        writers = [DurableOverrides(database_url, limiter) for _ in range(4)]

        def write(number: int) -> None:
            writers[number % 4].set(endpoint="/search", subject=f"user:{number % 3}", max_requests=number + 1)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(40)))
        kept = {made.override.subject: made.override.max_requests for made in writers[0].list()}
        copied = {override.subject: override.max_requests for override in list_rate_limit_overrides(limiter)}
        assert kept == copied
        for writer in writers:
            writer.close()


def test_database_that_went_back_to_a_backup_is_followed(on_sqlite, limiter):
    on_sqlite.set(**ANN, max_requests=500)
    engine = on_sqlite._engine
    with engine.begin() as connection:
        connection.execute(update(schema.config_version).values(version=0))
        connection.execute(update(schema.overrides).values(max_requests=300))
    on_sqlite.copy()
    assert maximum(limiter, "user:ann") == 300


def test_thousands_are_copied_in_batches_and_only_what_differs_again(on_sqlite, limiter):
    engine = on_sqlite._engine
    rows = [{"client_key": f"user:{n}", "endpoint": "/search", "max_requests": n + 1} for n in range(3000)]
    with engine.begin() as connection:
        connection.execute(insert(schema.overrides), rows)
    assert on_sqlite.copy().written == 3000
    assert on_sqlite.copy() == (on_sqlite.version(), 0, 0)
    assert maximum(limiter, "user:2999") == 3000
    with engine.begin() as connection:
        connection.execute(schema.overrides.delete().where(schema.overrides.c.client_key == "user:7"))
    assert on_sqlite.copy()[1:] == (0, 1)
    assert maximum(limiter, "user:7") == 10


def test_long_and_odd_subjects_survive_the_way_through_the_database(durable, limiter):
    for subject in ("user:" + "x" * 240, "a{b}c%d é", "1:42"):
        durable.set(endpoint="/items/{id}", subject=subject, max_requests=5)
        assert durable.get(endpoint="/items/{id}", subject=subject).override.subject == subject
        assert limiter.check(Limit(10, 60), subject, endpoint="/items/{id}").max_requests == 5


def test_tenants_do_not_see_each_other(database_url, limiter):
    migrate.upgrade(database_url)
    one, other = (DurableOverrides(database_url, limiter, tenant=name) for name in ("one", "other"))
    one.set(**ANN, max_requests=5)
    assert (other.get(**ANN), list(other.list()), list(other.history())) == (None, [], [])
    assert not other.delete(**ANN)
    other.copy()
    assert maximum(limiter, "user:ann") == 5
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_requests": -1}, "max_requests -1"),
        ({}, "no numbers"),
        ({"max_requests": 5, "valid_until": "tomorrow"}, "valid_until 'tomorrow'"),
        ({"max_requests": 5, "valid_until": 12.0}, "1970-01-01T00:00:12"),
        ({"max_requests": 5, "valid_until": datetime.datetime(2030, 1, 1)}, "time zone"),
        ({"max_requests": 5, "valid_until": 1e300}, "valid_until 1e+300"),
        ({"max_requests": 5, "reason": "x" * 501}, "note"),
    ],
)
def test_nonsense_is_refused_by_name_and_nothing_is_written(on_sqlite, wrong, named):
    with pytest.raises(ConfigurationError) as refused:
        on_sqlite.set(**ANN, **wrong)
    assert named in str(refused.value)
    assert on_sqlite.get(**ANN) is None


def test_bad_row_of_others_does_not_hold_up_the_rest(on_sqlite, limiter, caplog):
    rows = [
        {"client_key": "", "endpoint": "/search", "max_requests": 1},
        {"client_key": "user:ann", "endpoint": "/search", "max_requests": 7, "reason": "two\nlines " + "x" * 900},
        {"client_key": "user:bob", "endpoint": "/search", "max_requests": -7, "fields": {"hour.max_requests": "oops"}},
        {"client_key": "user:eve", "endpoint": "/search"},
    ]
    with on_sqlite._engine.begin() as connection:
        for row in rows:
            connection.execute(insert(schema.overrides).values(**row))
    on_sqlite.copy()
    assert [maximum(limiter, f"user:{name}") for name in ("ann", "bob", "eve")] == [7, 10, 10]
    assert get_rate_limit_override(limiter, **ANN).note.startswith("two lines x")
    assert "an override in the database is left out" in caplog.text
