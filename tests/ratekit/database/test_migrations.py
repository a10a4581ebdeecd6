"""Migrations make the tables of the schema, once, whoever starts at the same time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import insert, inspect, select, text

import ratekit
from ratekit.core.errors import ConfigurationError, DatabaseUnavailable
from ratekit.database import engines, migrate, urls
from ratekit.database.schema import metadata, rules
from support.servers import free_port

PUBLISHED = {  # the columns of the tables that were published
    "rate_limit_rules": "rule_id client_key endpoint algorithm max_requests window_secs burst_size enabled",
    "rate_limit_overrides": "override_id client_key rule_id max_requests valid_until",
    "rate_limit_violations": "violation_id client_key endpoint violated_at request_count limit_value",
}


def test_migrations_make_the_tables_of_the_schema(database_url):
    assert migrate.upgrade(database_url)
    engine = engines.open_engine(database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_name": lambda name, kind, _: name != "ratekit_migrations"}
        )
        differences = compare_metadata(context, metadata)
        tables = inspect(connection)
        for name, columns in PUBLISHED.items():
            assert {column["name"] for column in tables.get_columns(name)} >= set(columns.split())
    engine.dispose()
    assert differences == []


def test_texts_are_kept_as_they_are_and_differ_by_case_and_accent(database_url):
    migrate.upgrade(database_url)
    engine = engines.open_engine(database_url)
    names = ["ann", "Ann", "änn", "ann ", "アン", "🚦"]
    with engine.begin() as connection:
        same = {"endpoint": "/", "algorithm": "fixed_window", "max_requests": 1, "window_secs": 1}
        values = [{"client_key": name, **same} for name in names]
        connection.execute(insert(rules), values)
        column = rules.c.client_key
        for name in names:
            assert connection.execute(select(column).where(column == name)).scalars().all() == [name]
    engine.dispose()


def test_second_upgrade_has_nothing_to_do(database_url):
    assert migrate.revision_of(database_url) is None
    assert [migrate.upgrade(database_url) for _ in range(3)] == [True, False, False]
    assert migrate.revision_of(database_url) == migrate.HEAD


def test_database_of_a_newer_release_is_told_in_one_sentence(database_url):
    migrate.upgrade(database_url)
    engine = engines.open_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE ratekit_migrations SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(ConfigurationError, match="the database is at migration '9999', which only a newer release knows"):
        migrate.upgrade(database_url)


def test_ten_processes_that_start_at_once_migrate_once(database_url):
    code = f"import sys; from ratekit.database.migrate import upgrade; print(upgrade({database_url!r}))"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(10)]
    answers = [process.communicate(timeout=120)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0] * 10
    assert sorted(answers) == ["False"] * 9 + ["True"]


def test_threads_that_start_at_once_migrate_once(database_url):
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(migrate.upgrade, [database_url] * 6))
    assert sorted(answers) == [False] * 5 + [True]


def test_head_is_the_newest_file():
    configuration = Config()
    configuration.set_main_option("script_location", str(Path(ratekit.__file__).parent / "database/migrations"))
    configuration.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(configuration).get_heads() == [migrate.HEAD]


def test_start_on_a_current_database_does_not_load_alembic(tmp_path):
    url = f"sqlite:///{tmp_path}/ratekit.db"
    code = f"import sys; from ratekit.database.migrate import upgrade; upgrade({url!r}); print('alembic' in sys.modules)"
    answers = [subprocess.check_output([sys.executable, "-c", code], text=True).strip() for _ in range(2)]
    assert answers == ["True", "False"]


def test_database_that_does_not_answer_is_told_in_one_sentence_without_the_password():
    with pytest.raises(DatabaseUnavailable) as raised:
        migrate.upgrade(f"postgresql://somebody:hunter2@127.0.0.1:{free_port()}/nothing")
    assert "the database does not answer" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "waiting", "awaited"),
    [
        ("sqlite:///x.db", "sqlite+pysqlite", "sqlite+aiosqlite"),
        ("postgres://h/n", "postgresql+psycopg", "postgresql+psycopg"),
        ("postgresql://h/n", "postgresql+psycopg", "postgresql+psycopg"),
        ("postgresql+asyncpg://h/n", "postgresql+psycopg", "postgresql+asyncpg"),
        ("mysql://h/n", "mysql+pymysql", "mysql+aiomysql"),
        ("mariadb+pymysql://h/n", "mariadb+pymysql", "mariadb+aiomysql"),
    ],
)
def test_url_gets_a_driver_that_waits_or_one_that_is_awaited(url, waiting, awaited):
    assert urls.sync_url(url).drivername == waiting
    assert urls.async_url(url).drivername == awaited


@pytest.mark.parametrize("url", ["", "nothing", "oracle://h/n", "postgresql://u:hunter2@h:port/n"])
def test_url_that_is_none_is_an_error_that_does_not_show_it(url):
    with pytest.raises(ConfigurationError) as raised:
        urls.parsed(url)
    assert "hunter2" not in str(raised.value)


def test_shown_url_has_no_password_and_no_parameters():
    assert urls.shown("postgresql://u:hunter2@h/n?sslpassword=hunter3") == "postgresql://u:***@h/n"
