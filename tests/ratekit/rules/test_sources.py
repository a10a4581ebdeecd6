"""One suite for every source, on real servers: load, change, refuse, go away and come back, ten thousand rules."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text

from benchmarks.server import wait_until
from ratekit.core import events
from ratekit.core.errors import ConfigurationError, DocumentError, SourceUnavailable
from ratekit.rules.reload import Rules
from ratekit.rules.sources import source, split_options
from ratekit.rules.sources.contract import Loaded, Text
from ratekit.rules.sources.file import FileSource
from support.rule_documents import ROWS
from support.rule_documents import SERVICE as SERVICE_DOCUMENT
from support.rule_sources import INVALID, KINDS, SERVICE, Place, document, place_of

MANY = 10_000


# pymongo 4.20 leaves a socket open when an asynchronous attempt to connect fails.
LEAVES_SOCKETS = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(params=[pytest.param(kind, marks=LEAVES_SOCKETS) if kind == "async-mongo" else kind for kind in KINDS])
def place(request, tmp_path) -> Iterator[Place]:
    made = place_of(request.param, tmp_path)
    yield made
    made.close()
    if request.param == "async-mongo":
        gc.collect()  # here, where it is expected


@pytest.fixture
def following(place):
    """Rules of one rule, followed, and closed after the test."""
    place.put(document(1))
    rules = place.rules()
    rules.follow()
    yield rules
    rules.close()


def in_force(rules, count: int, within: float) -> None:
    wait_until(lambda: rules.status.rules == count, f"{rules.status}: not {count} rules", within)


def test_first_load_and_a_change_in_time(place, following):
    before = following.status
    assert (before.rules, before.trouble, before.age < 5) == (1, None, True)
    place.put(document(3))
    in_force(following, 3, place.latency)
    assert following.status.version != before.version
    place.put(document(2))
    in_force(following, 2, place.latency)


def test_invalid_change_is_refused_whole_logged_once_and_shown(place, following, caplog):
    seen = []
    events.on_rules_change(seen.append)
    before = following.status
    with caplog.at_level(logging.ERROR, "ratekit.rules"):
        place.put(INVALID)
        wait_until(lambda: following.status.trouble is not None, "the fault is not told", place.latency)
        for _ in range(3):
            following.refresh()
    now = following.status
    assert (now.version, now.rules, now.refused) == (before.version, 1, 1)
    assert "rules[1].limits: rate 'many' is not a limit" in now.trouble
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert [change.outcome for change in seen] == ["refused"]
    place.put(document(4))
    in_force(following, 4, place.latency)
    assert following.status.trouble is None


def test_source_that_is_away_at_the_start_is_an_error_or_the_default(place):
    place.put(document(1))
    place.take_away()
    try:
        with pytest.raises(SourceUnavailable):
            place.rules()
        rules = place.rules(default={"rules": [{"limits": "1/s"}] * 2})
        assert (rules.status.rules, rules.status.version, rules.status.unavailable) == (2, None, 1)
        rules.follow()
    finally:
        place.bring_back()
    in_force(rules, 1, 20)
    rules.close()


def test_source_that_was_away_at_the_start_is_looked_at_with_the_first_request(tmp_path, caplog):
    path = tmp_path / "rules.json"
    with caplog.at_level(logging.ERROR, "ratekit.rules"):
        rules = Rules(FileSource(path, interval=600), default={"rules": [{"limits": "1/s"}] * 2})
    assert "cannot be read" in caplog.text
    assert caplog.text.endswith("; the default is in force\n")
    path.write_text(json.dumps(document(1)))
    rules.follow()
    in_force(rules, 1, 20)
    rules.close()


def test_rules_stay_in_force_while_the_source_is_away_and_follow_it_again(place, following, caplog):
    seen = []
    events.on_rules_change(seen.append)
    place.take_away()
    try:
        with caplog.at_level(logging.ERROR, "ratekit.rules"):
            wait_until(lambda: following.status.trouble is not None, "the outage is not told", 20)
            following.refresh()
        assert (following.status.rules, following.status.unavailable >= 1) == (1, True)
        assert following.compiled.rules
    finally:
        place.bring_back()
    wait_until(lambda: following.status.trouble is None, f"{following.status} is not back", 20)
    place.put(document(5))
    in_force(following, 5, 20)
    assert {change.outcome for change in seen} >= {"unavailable", "loaded"}


def test_ten_thousand_rules_are_loaded_and_replaced(place, following):
    place.put(document(MANY))
    in_force(following, MANY, 60)
    place.put(document(MANY - 1))
    in_force(following, MANY - 1, 60)


def test_published_service_document_is_read_from_every_source(place):
    place.put({key: value for key, value in SERVICE_DOCUMENT.items() if key not in ("_id", "last_updated")})
    rules = place.rules()
    (rule,) = rules.compiled.of_endpoint(SERVICE)
    assert [limit.name for limit in rule.limits_of("user:1234", 0).own] == ["rps", "rpm", "rpd"]
    assert [limit.name for limit in rule.limits_of("anybody", 0).own] == ["rps", "rpm", "rph", "rpd"]
    rules.close()


def test_function_is_refused_from_a_source_that_is_not_trusted(place):
    place.put({"rules": [{"limits": "1/s", "by": "function:os:getcwd"}]})
    if place_is_trusted(place):
        place.rules().close()
        return
    with pytest.raises(DocumentError, match=r"rules\[0\].by: the function 'os:getcwd' is not allowed"):
        place.rules()
    place.rules(functions=["os:getcwd"]).close()


def place_is_trusted(place: Place) -> bool:
    return type(place).__name__ == "File"


# Files


def test_file_replaced_as_kubernetes_does_is_in_force_within_two_seconds(tmp_path):
    """A volume is a link ..data to a folder; the file is a link into ..data; an update swaps ..data."""
    for name, rate in (("first", "1/s"), ("second", "2/s")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rules.yaml").write_text(f"rules: [{{limits: {rate}}}]")
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "rules.yaml").symlink_to("..data/rules.yaml")
    rules = Rules.load(tmp_path / "rules.yaml")
    rules.follow()
    (tmp_path / "..data_tmp").symlink_to("second")
    started = time.monotonic()
    os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
    wait_until(lambda: rules.compiled.rules[0].own.own[0].max_requests == 2, "the swap is not seen", 2)
    assert time.monotonic() - started < 2
    rules.close()


def test_file_of_a_hundred_megabytes_is_refused_and_the_rules_stay(tmp_path):
    path = tmp_path / "rules.json"
    path.write_text('{"rules": [{"limits": "1/s"}]}')
    rules = Rules.load(path)
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    assert "has 104857600 bytes: at most" in rules.refresh().trouble
    assert rules.status.rules == 1


# SQL


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb"])
def test_published_rows_are_read_and_seen_when_they_are_changed_by_hand(kind, tmp_path):
    place = place_of(kind, tmp_path)
    url, _ = split_options(place.given)
    engine = create_engine(url)
    with engine.begin() as connection:
        for table, rows in ROWS.items():
            for row in rows:
                values = {key: bool(value) if key == "enabled" else value for key, value in row.items()}
                names = ", ".join(values)
                places = ", ".join(f":{name}" for name in values)
                connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({places})"), values)
    rules = Rules(url)
    search, general = rules.compiled.rules
    assert search.limits_of("user:9", 0).own[0].max_requests == 500
    assert general.limits_of("user:42", 0).own[0].max_requests == 1000
    with engine.begin() as connection:
        connection.execute(text("UPDATE rate_limit_rules SET max_requests = 77 WHERE rule_id = 2"))
    wait_until(lambda: rules.refresh() and _general(rules) == 77, "a change by hand is not seen")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM rate_limit_rules WHERE rule_id = 1"))
    rules.refresh()
    assert rules.compiled.rules[0].limits_of("user:42", 0).own[0].max_requests == 10, "a deletion is seen at the next look"
    rules.close()
    engine.dispose()


def _general(rules: Rules) -> int:
    return rules.compiled.rules[-1].limits_of("user:42", 0).own[0].max_requests


# What a reload does to requests


class Changing:
    """A source that has another document at every look."""

    origin, is_trusted, interval = "test", True, 3600.0

    def __init__(self, *texts: str) -> None:
        self._texts, self._looks = texts, 0

    def load(self, known, pace):
        text = self._texts[min(self._looks, len(self._texts) - 1)]
        self._looks += 1
        return Loaded(Text(text, "json"), str(self._looks))

    def watch(self, changed):
        return None

    def close(self):
        pass


def test_no_full_collection_of_garbage_runs_while_ten_thousand_rules_are_reloaded():
    large = json.dumps(document(MANY))
    rules = Rules(Changing(large))
    full = []
    gc.callbacks.append(lambda phase, info: full.append(info["generation"]) if info["generation"] == 2 else None)
    try:
        rules.refresh()
    finally:
        gc.callbacks.pop()
    assert (full, gc.isenabled(), rules.status.version) == ([], True, "2")


def test_collector_of_garbage_runs_again_after_a_document_was_refused():
    rules = Rules(Changing(json.dumps(document(1)), json.dumps(INVALID), "no json"))
    assert (rules.refresh().refused, gc.isenabled()) == (1, True)
    assert (rules.refresh().refused, gc.isenabled()) == (2, True)


# Several services, many clients


class Counting:
    """A source that counts what is asked of it, around another."""

    def __init__(self, inner) -> None:
        self.inner, self.loads, self.full = inner, 0, 0
        self.origin, self.is_trusted, self.interval = inner.origin, inner.is_trusted, inner.interval

    def load(self, known, pace):
        self.loads += 1
        loaded = self.inner.load(known, pace)
        self.full += loaded is not None
        return loaded

    def watch(self, changed):
        return self.inner.watch(changed)

    def close(self):
        self.inner.close()


@pytest.mark.parametrize("kind", ["mongo", "postgres", "redis"])
def test_change_of_one_service_causes_no_read_of_another_beyond_its_poll(kind, tmp_path):
    place = place_of(kind, tmp_path)
    url = place.given.replace("interval=0.2", "interval=3600")
    sources = {name: source(url, service=name) for name in ("one", "two")}
    for opened in sources.values():
        opened.save(document(1))
    counting = {name: Counting(opened) for name, opened in sources.items()}
    rules = {name: Rules(opened) for name, opened in counting.items()}
    for one in rules.values():
        one.follow()
    time.sleep(0.5)  # a subscription and a change stream each look once when they are open
    before = counting["two"].loads
    for count in (2, 3, 4):
        sources["one"].save(document(count))
        rules["one"].refresh()
    assert rules["one"].status.rules == 4
    assert (counting["two"].loads, counting["two"].full) == (before, 1)
    for one in rules.values():
        one.close()
    place.close()


def test_two_hundred_clients_do_not_look_in_step():
    looks: list[float] = []
    started = time.monotonic()

    class Recorded:
        origin, is_trusted, interval = "test", True, 3.0

        def load(self, known, pace):
            looks.append(time.monotonic() - started)
            return None if known else Loaded({"rules": [{"limits": "1/s"}]}, "1")

        def watch(self, changed):
            return None

        def close(self):
            pass

    clients = [Rules(Recorded()) for _ in range(200)]
    begun = len(looks)
    threads_before = threading.active_count()
    for client in clients:
        client.follow()
    wait_until(lambda: len(looks) >= begun + 200, "they do not look", 20)
    for client in clients:
        client.close()
    assert threading.active_count() >= threads_before
    later = sorted(looks[begun : begun + 200])
    busiest = max(sum(start <= moment < start + 0.2 for moment in later) for start in later)
    assert busiest < 80, f"{busiest} of 200 looks fall into a fifth of a second"


# URLs


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://host/rules", "rules from ftp:// are unknown: "),
        ("mongodb://host", "name no database"),
        ("redis://host/0?interval=0", "interval '0' is not between 0.05 and 86400 seconds"),
        ("memory://", "rules are not kept in memory://"),
        ("rules.txt", "the file 'rules.txt' ends in none of"),
    ],
)
def test_source_that_makes_no_sense_is_told(url, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        source(url)


def test_own_parameters_of_a_url_are_not_given_to_the_driver():
    url, own = split_options("mongodb://u:p%40@h/db?collection=limits&replicaSet=rs0&interval=30&w=majority")
    assert url == "mongodb://u:p%40@h/db?replicaSet=rs0&w=majority"
    assert own == {"collection": "limits", "interval": "30"}


def test_origin_shows_no_password():
    origins = [
        source("mongodb://user:secret@host/db", service="s").origin,
        source("redis://user:secret@host/0").origin,
        source("postgresql://user:secret@host/db").origin,
    ]
    assert not any("secret" in origin for origin in origins), origins
