"""The version of the configuration is raised by every write, in its transaction, in order."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from ratekit.core.errors import DatabaseUnavailable
from ratekit.database import engines, migrate, schema, versions

NOW = datetime.datetime(2026, 11, 18, 12, tzinfo=datetime.UTC)


@pytest.fixture
def engine(database_url):
    migrate.upgrade(database_url)
    engine = engines.open_engine(database_url)
    yield engine
    engine.dispose()


def write(engine, name: str) -> int:
    with engine.begin() as connection:
        version = versions.raise_version(connection)
        connection.execute(insert(schema.tenants).values(id=name, name=name, version=version))
        return version


def test_every_write_raises_the_version(engine):
    with engine.connect() as connection:
        before = versions.current_version(connection)
    assert [write(engine, "a"), write(engine, "b")] == [before + 1, before + 2]
    with engine.connect() as connection:
        assert versions.current_version(connection) == before + 2


def test_write_that_is_rolled_back_raises_nothing(engine):
    version = write(engine, "a")
    with pytest.raises(IntegrityError), engines.telling_outages():
        write(engine, "a")
    assert write(engine, "b") == version + 1


def test_writers_at_the_same_time_have_versions_of_their_own(engine):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: write(engine, str(number)), range(40)))
    assert len(set(found)) == 40
    with engine.connect() as connection:
        rows = connection.execute(select(schema.tenants.c.version)).scalars().all()
        assert versions.current_version(connection) == max(found)
    assert sorted(rows) == sorted(found)


def test_deletions_are_remembered_until_they_are_forgotten(engine):
    with engine.begin() as connection:
        first = versions.raise_version(connection)
        versions.note_deletion(connection, first, "plan", "p1")
    with engine.begin() as connection:
        versions.note_deletion(connection, versions.raise_version(connection), "key", "k1")
    with engine.connect() as connection:
        assert versions.deletions_since(connection, first - 1) == [("plan", "p1"), ("key", "k1")]
        assert versions.deletions_since(connection, first) == [("key", "k1")]
    with engine.begin() as connection:
        assert versions.forget_deletions(connection, NOW + datetime.timedelta(days=3650)) == 2
    with engine.connect() as connection:
        assert versions.deletions_since(connection, first) is None
        assert versions.deletions_since(connection, versions.current_version(connection)) == []


def test_times_are_aware_and_utc_whatever_was_written(engine):
    berlin = datetime.timezone(datetime.timedelta(hours=1))
    given = [NOW, NOW.astimezone(berlin), NOW.replace(tzinfo=None)]
    with engine.begin() as connection:
        for number, time in enumerate(given):
            row = {"client_key": str(number), "endpoint": "/", "violated_at": time, "request_count": 1, "limit_value": 1}
            connection.execute(insert(schema.violations).values(**row))
        found = connection.execute(select(schema.violations.c.violated_at)).scalars().all()
    assert found == [NOW] * 3
    assert {time.tzinfo for time in found} == {datetime.UTC}


def test_default_time_is_now_in_utc(engine):
    write(engine, "a")
    with engine.connect() as connection:
        created = connection.execute(select(schema.tenants.c.created_at)).scalar_one()
    assert abs((datetime.datetime.now(datetime.UTC) - created).total_seconds()) < 60


def test_override_goes_with_its_rule(engine):
    rule = {"client_key": "user:42", "algorithm": "token_bucket", "max_requests": 5, "window_secs": 60}
    with engine.begin() as connection:
        rule_id = connection.execute(insert(schema.rules).values(**rule)).inserted_primary_key[0]
        override = {"client_key": "user:42", "rule_id": rule_id, "max_requests": 9, "valid_until": NOW}
        connection.execute(insert(schema.overrides).values(**override))
        found = connection.execute(select(schema.rules)).one()
        connection.execute(schema.rules.delete())
        assert connection.execute(select(schema.overrides)).all() == []
    assert (found.endpoint, found.burst_size, found.enabled, found.tenant_id) == ("*", 0, True, "")


async def test_awaited_engine_reads_what_the_waiting_one_has_written(database_url):
    migrate.upgrade(database_url)
    engine = engines.open_engine(database_url)
    version = write(engine, "a")
    engine.dispose()
    awaited = engines.open_async_engine(database_url)
    async with awaited.connect() as connection:
        assert await connection.run_sync(versions.current_version) == version
    await awaited.dispose()


def test_version_of_a_database_without_tables_is_an_outage(database_url):
    engine = engines.open_engine(database_url)
    with pytest.raises(DatabaseUnavailable), engines.telling_outages(), engine.connect() as connection:
        versions.current_version(connection)
    engine.dispose()
