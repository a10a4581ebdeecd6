"""Sources that go wrong in every way: whatever they have, the rules in force stay, and the status says why."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time

import pytest

from benchmarks.server import wait_until
from ratekit.core.errors import ConfigurationError, SourceUnavailable
from ratekit.database import migrate
from ratekit.rules.reload import Rules
from ratekit.rules.sources.contract import Loaded
from ratekit.rules.sources.redis import RedisSource

GOOD = "rules: [{limits: 5/s}, {name: b, limits: 6/s}]"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def of_file(file):
    rules = Rules.load(file)
    yield rules
    rules.close()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the document is empty"),
        (b"rules: \xff", "the document is not UTF-8"),
        (GOOD.encode("utf-16"), "the document is not UTF-8"),
        (b"a: &a [*a]", "the alias *a in line 1 stands for nothing, or for itself"),
        (b"!!python/object/apply:os.system ['id']", "is not allowed in a document of rules"),
        (b"? [a]\n: b", "the key in line 1 is not a text"),
        (b"a: " + b"[" * 500 + b"]" * 500, "nested more than 64 levels deep"),
        (
            b"rules: [{limits: 1/s, by: 'function:support.raises_on_import:key'}]",
            "cannot be imported: RuntimeError: on purpose",
        ),
        (b"rules: [{limits: 1/s, by: {a: 'function:json:loads'}}]", "a function names somebody alone"),
        (b"rules: [{limits: 1/s, valid_until: '0001-01-01T00:00:00+14:00'}]", "not between the years 1 and 9999"),
    ],
)
def test_file_with_nonsense_leaves_the_rules_in_force(file, of_file, content, why):
    version = of_file.status.version
    file.write_bytes(content)
    status = of_file.refresh()
    assert why in status.trouble
    assert (status.rules, status.version, status.refused) == (2, version, 1)


def test_file_that_becomes_something_else_leaves_the_rules_in_force(file, of_file):
    reasons = []
    file.unlink()
    reasons.append(of_file.refresh().trouble)
    file.mkdir()
    reasons.append(of_file.refresh().trouble)
    file.rmdir()
    file.symlink_to(file)
    reasons.append(of_file.refresh().trouble)
    file.unlink()
    file.symlink_to("/dev/null")
    reasons.append(of_file.refresh().trouble)
    file.unlink()
    file.symlink_to("/dev/zero")
    reasons.append(of_file.refresh().trouble)
    expected = ["No such file", "Is a directory", "Too many levels", "the document is empty", "more than 33554432 bytes"]
    assert [part in reason for part, reason in zip(expected, reasons, strict=True)] == [True] * 5
    assert of_file.status.rules == 2
    file.unlink()
    file.write_text("rules: [{limits: 7/s}]")
    assert (of_file.refresh().trouble, of_file.status.rules) == (None, 1)


def test_file_that_is_half_written_is_not_in_force(file, of_file):
    """Half of this document makes sense by itself."""
    whole = "rules:\n" + "".join(f"  - {{name: r{number}, limits: 5/s}}\n" for number in range(40))

    def write():
        with file.open("w") as out:
            for line in whole.splitlines(keepends=True):
                out.write(line)
                out.flush()
                time.sleep(0.005)

    writer = threading.Thread(target=write)
    seen = set()
    writer.start()
    while writer.is_alive():
        seen.add(of_file.refresh().rules)
    writer.join()
    seen.add(of_file.refresh().rules)
    assert seen <= {2, 40}


def test_source_that_flaps_is_always_one_of_its_documents(file, of_file):
    others = [GOOD, "rules: [{limits: 1/s}]", "rules: [{limits: many}]"]
    for _ in range(30):
        beside = file.with_suffix(".new")
        beside.write_text(random.choice(others))
        os.replace(beside, file)
        status = of_file.refresh()
        assert status.rules in (1, 2)
        assert (status.trouble is not None) == (file.read_text() == others[2])


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "rules.db"
    migrate.upgrade(f"sqlite:///{path}")
    with sqlite3.connect(path, isolation_level=None) as connection:
        names = (
            "tenant_id, client_key, endpoint, algorithm, max_requests, window_secs, burst_size, enabled, version, "
            "created_at, updated_at"
        )
        for key in ("user:1", "user:2"):
            row = ("", key, "*", "fixed_window", 5, 60, 0, 1, 1, "2026-01-01 00:00:00", "2026-01-01 00:00:00")
            connection.execute(f"INSERT INTO rate_limit_rules ({names}) VALUES ({', '.join('?' * len(row))})", row)
        yield connection
    connection.close()


@pytest.fixture
def of_rows(database, tmp_path):
    rules = Rules.load(f"sqlite:///{tmp_path}/rules.db")
    yield rules
    rules.close()


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("max_requests", -5, "rate_limit_rules[1].max_requests: -5 is wrong"),
        ("max_requests", "many", "rate_limit_rules[1].max_requests: 'many' is wrong"),
        ("window_secs", 10**15, "rate_limit_rules[1].window_secs: 1000000000000000 is wrong"),
        ("algorithm", "magic", "rate_limit_rules[1].algorithm: 'magic' is wrong"),
        ("client_key", "", "rate_limit_rules[1].client_key: '' is wrong"),
        ("client_key", b"\xff\xfe", "rate_limit_rules[1].client_key: b'\\xff\\xfe' is wrong"),
        ("endpoint", "", "rate_limit_rules[1].endpoint: '' is wrong"),
        ("updated_at", "garbage", "a row has a value that its column cannot have"),
    ],
)
def test_row_that_was_edited_to_nonsense_leaves_the_rules_in_force(database, of_rows, column, value, why):
    database.execute(f"UPDATE rate_limit_rules SET {column} = ?, version = 2 WHERE client_key = 'user:2'", (value,))
    status = of_rows.refresh()
    assert why in status.trouble
    assert status.refused == 1
    assert of_rows.compiled.of_endpoint("x")[0].limits_of("user:2", 0.0) is not None


DOCUMENT = "INSERT INTO rule_documents (service, document, version, updated_at) VALUES ('chat', ?, ?, '2026-01-01 00:00:00')"


@pytest.fixture
def of_document(database, tmp_path):
    database.execute(DOCUMENT, ('{"rules": [{"limits": "5/s"}]}', 1))
    rules = Rules.load(f"sqlite:///{tmp_path}/rules.db", service="chat")
    yield rules
    rules.close()


@pytest.mark.parametrize(
    ("document", "version", "why"),
    [
        ("{", 2, "the document is not JSON"),
        ("null", 2, "the document is empty"),
        ('{"rules": [], "rules": []}', 2, "the key 'rules' stands twice"),
        ("[" * 100_000, 2, "nested more than 64 levels deep"),
        ('{"by": "function:os:system"}', 2, "by: the function 'os:system' is not allowed in a document of this source"),
        ('{"rules": []}', "second", "a row has a value that its column cannot have"),
    ],
)
def test_document_in_a_table_with_nonsense_leaves_the_rules_in_force(database, of_document, document, version, why):
    database.execute("UPDATE rule_documents SET document = ?, version = ?", (document, version))
    status = of_document.refresh()
    assert why in status.trouble
    assert (status.rules, status.version) == (1, "document 1")


def test_document_that_is_deleted_is_not_replaced_by_rows(database, of_document):
    database.execute("DELETE FROM rule_documents")
    status = of_document.refresh()
    assert "has no document of that service any more" in status.trouble
    assert (status.rules, status.version, status.unavailable) == (1, "document 1", 1)


@pytest.mark.parametrize("service", [None, "shop"])
def test_database_that_has_documents_of_other_services_only_limits_nobody_silently(database, tmp_path, service):
    database.execute("DELETE FROM rate_limit_rules")
    assert Rules.load(f"sqlite:///{tmp_path}/rules.db").status.rules == 0  # nobody has set a rule yet
    database.execute(DOCUMENT, ('{"rules": [{"limits": "5/s"}]}', 1))
    with pytest.raises(SourceUnavailable, match="it has those of chat"):
        Rules.load(f"sqlite:///{tmp_path}/rules.db", service=service)


def test_redis_with_nonsense_leaves_the_rules_in_force(redis_server):
    where = RedisSource(redis_server.url, name="chat", interval=0.2)
    where.save({"rules": [{"limits": "5/s"}]})
    rules = Rules.load(f"{redis_server.url}?rules=chat&interval=0.2")
    rules.follow()
    (key,) = redis_server.client().keys("ratelimit_rules:*")
    client = redis_server.client()
    try:
        for message in (b"\xff\xfe", b"", b"x" * 100_000):
            client.publish(key, message)
        assert rules.refresh().trouble is None
        for document, why in ((b"\xff", "not UTF-8"), (b"{", "not JSON"), (b"x" * (33 * 2**20), "34603008 bytes")):
            client.hset(key, mapping={"version": why, "document": document})
            client.publish(key, b"?")
            wait_until(lambda why=why: why in (rules.status.trouble or ""), f"{rules.status}", 5)
        client.delete(key)
        client.set(key, "no hash")
        wait_until(lambda: "WRONGTYPE" in (rules.status.trouble or ""), f"{rules.status}", 5)
        client.delete(key)
        where.save({"rules": [{"limits": "7/s"}, {"name": "b", "limits": "1/s"}]})
        wait_until(lambda: rules.status.rules == 2 and rules.status.trouble is None, f"{rules.status}", 5)
    finally:
        rules.close()
        where.close()
        client.close()


class Raises:
    """A source that an application has written, and that raises what it likes."""

    origin, interval, is_trusted = "mine", 0.05, True

    def __init__(self) -> None:
        self.error: Exception | None = None

    def load(self, known, pace):
        if self.error is not None:
            raise self.error
        return None if known == "1" else Loaded({"rules": [{"limits": "5/s"}]}, "1")

    def watch(self, changed):
        return None

    def close(self):
        pass


@pytest.mark.parametrize(
    "error", [KeyError("x"), ZeroDivisionError("by zero"), OSError("gone"), ConfigurationError("wrong")]
)
def test_source_of_the_application_that_raises_anything_is_looked_at_again(error, caplog):
    mine = Raises()
    rules = Rules.load(mine)
    rules.follow()
    try:
        mine.error = error
        wait_until(lambda: rules.status.trouble is not None, "the trouble is not shown", 5)
        assert str(error) in rules.status.trouble
        mine.error = None
        wait_until(lambda: rules.status.trouble is None, "it is not looked at again", 5)
        assert caplog.text.count("in force") == 1
    finally:
        rules.close()
