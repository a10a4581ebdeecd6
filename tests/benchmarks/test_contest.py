"""The contest with the peers, with real servers and processes, for a moment each."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest

from benchmarks import pages, plots, report
from benchmarks.contest.contestants import CONTESTANTS, Colour, Contestant, Role
from benchmarks.contest.crowd import fill
from benchmarks.contest.loads import Block, Load
from benchmarks.contest.plan import FULL, Plan
from benchmarks.contest.process import Lost, Worker
from benchmarks.contest.referee import Seat, contend, seated
from benchmarks.contest.standings import Standing, best_peer, rate
from benchmarks.contest.verdicts import verdicts
from benchmarks.peers import Contest
from benchmarks.rounds import Gap, Row
from benchmarks.settings import Settings
from ratekit import RateLimiter
from support.servers import free_port

ROOT = Path(__file__).parents[2]
FEW = Load(concurrency=2, subjects=3)
ONE_BY_ONE = Load(concurrency=1, subjects=3, refused=True)  # two at once are more than one peer can count
TINY = Plan("tiny", rounds=2, seconds=0.02, tasks=(1,), threads=(1,), tiers=(1, 4), subjects=(20,), remembered=20)
HAS_CACHE = "refusal_cache" in signature(RateLimiter).parameters


@pytest.fixture
def worker(request, redis_server):
    started = Worker(CONTESTANTS.index(request.param), redis_server.url)
    yield started
    started.stop()


def contestants(*, cached: bool = False) -> list:
    chosen = [one for one in CONTESTANTS if one.only_refused is cached]
    return [pytest.param(one, id=f"{one.name}, {one.colour}") for one in chosen]


@pytest.mark.parametrize("worker", contestants(), indirect=True)
def test_contestant_admits_below_its_limits_and_refuses_above(worker, redis_server):
    role = CONTESTANTS[worker.number].role
    for tiers in (1, 4):
        block = worker.run(replace(FEW, tiers=tiers), 0.02)
        assert 0 < block.checks == block.admitted
    with redis_server.client() as client:
        client.flushall()
    refused = worker.run(ONE_BY_ONE, math.inf, most=12)
    assert refused.checks == 12
    assert refused.admitted == (12 if role is Role.BARE else FEW.subjects)


@pytest.mark.parametrize("worker", contestants(cached=True), indirect=True)
def test_refusal_cache_refuses_or_is_told_to_be_missing(worker):
    if not HAS_CACHE:
        with pytest.raises(Lost, match="not available: .* has no refusal_cache"):
            worker.run(replace(FEW, refused=True), 0.02)
        return
    assert worker.run(ONE_BY_ONE, math.inf, most=12).admitted == FEW.subjects


def test_contestant_that_crashes_is_told_and_the_others_go_on(redis_server):
    ours, bare = (Contestant.named(name, Colour.ASYNC) for name in ("ratekit", "bare INCR"))
    dead = Seat(bare, Worker(CONTESTANTS.index(bare), f"redis://127.0.0.1:{free_port()}"), redis_server.client())
    with seated(redis_server.url, Colour.ASYNC, [ours]) as [alive]:
        standings = contend([dead, alive], [[FEW]], TINY, "test")
    assert "ConnectionError" in standings[0].fault
    assert "Connection refused" in standings[0].fault or "Connect call failed" in standings[0].fault
    assert standings[1].fault is None
    assert len(standings[1].blocks) == TINY.rounds


def test_peer_that_is_not_installed_is_told(redis_server, monkeypatch, tmp_path):
    (tmp_path / "throttled.py").write_text("raise ModuleNotFoundError(\"No module named 'throttled'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = Worker(CONTESTANTS.index(Contestant.named("throttled-py", Colour.ASYNC)), redis_server.url)
    with pytest.raises(Lost, match="No module named 'throttled'"):
        worker.run(FEW, 0.02)


def test_contest_becomes_rows_tables_plots_and_a_document_without_traces_of_the_machine(redis_server, tmp_path):
    contest = small_contest(redis_server)
    found = json.loads(report.as_json(report.document(contest.rows, contest, Settings(2, redis_server.executable, TINY))))
    assert [row["name"].partition(":")[0] for row in found["rows"] if row["target"]] == [
        "64 at once", "four tiers, beside one", "refused, by the refusal cache",
    ]  # fmt: skip
    assert all(row["reached"] in (True, False) or row["reason"] for row in found["rows"] if row["target"])
    assert str(ROOT) not in json.dumps(found)
    assert f'"{platform.node()}"' not in json.dumps(found)
    assert found["machine"]["cores"] > 0
    tables = pages.all_tables(found)
    assert "| ratekit " in tables["ranking-async"]
    assert [cell.strip() for cell in tables["growth-async-tiers"].splitlines()[0].split("|")[2:4]] == ["1", "4"]
    drawn = plots.draw(found, tmp_path)
    assert [path.name for path in drawn] == ["peers.svg", "peers.png", "growth.svg", "growth.png"]
    assert all(path.stat().st_size > 5000 for path in drawn)


def small_contest(server) -> Contest:
    names = ("ratekit", "ratekit, refusal cache", "limits (redis-py)", "bare INCR")
    with seated(server.url, Colour.ASYNC, [Contestant.named(name, Colour.ASYNC) for name in names]) as seats:
        standings = contend(seats, TINY.groups(Colour.ASYNC), TINY, "test")
        size = seats[0].bytes_of_a_subject(Load(4, subjects=20))
    assert 50 < size < 1000
    memory = [{"name": "ratekit", "colour": "async", "bytes": size, "fault": None}]
    return Contest(verdicts(standings, Colour.ASYNC), standings, memory)


def test_crowd_is_as_large_as_told_and_is_met_by_the_contestant(redis_server):
    with seated(redis_server.url, Colour.THREADS, [Contestant.named("ratekit", Colour.THREADS)]) as [seat]:
        seat.client.flushdb()
        fill(seat.client, seat.worker, Load(1, subjects=12_345))
        keys = seat.client.dbsize()
        life = seat.client.pttl(next(key for key in seat.client.keys("*") if b"subject-0012344" in key))
        seat.worker.run(Load(1, subjects=12_345), math.inf, most=50)
        assert keys == seat.client.dbsize() == 12_345
        assert 3_500_000 < life < 3_700_000


def test_groups_cover_the_whole_range_and_name_each_load_once():
    loads = [load for group in FULL.groups(Colour.ASYNC) for load in group]
    assert len(set(loads)) == len(loads)
    assert {load.concurrency for load in loads} == {1, 4, 16, 64, 256, 1000}
    assert {load.tiers for load in loads} == {1, 2, 3, 4}
    assert {load.subjects for load in loads} == {1, 100, 10_000, 1_000_000}


def block(checks: int, admitted: int | None = None) -> Block:
    return Block(checks, checks if admitted is None else admitted, 1.0, 0.5, 0.001, 0.002, 0.003)


def standing(name: str, *rates: int, admitted: int | None = None) -> Standing:
    return Standing(Contestant.named(name, Colour.ASYNC), Load(64), [block(number, admitted) for number in rates])


def test_best_peer_is_the_fastest_that_answers_as_it_should():
    wrong, lost = (
        standing("slowapi", 900, 900, admitted=500),
        Standing(Contestant.named("pyrate-limiter", Colour.ASYNC), Load(64)),
    )
    peers = [
        standing("throttled-py", 100, 300),
        standing("limits (redis-py)", 150, 170),
        wrong,
        lost,
        standing("bare INCR", 999),
    ]
    assert wrong.fault == "44% refused below the limit"
    assert best_peer(peers).contestant.name == "throttled-py"
    assert best_peer(peers).median(rate) == 200


def test_verdict_compares_round_by_round_and_needs_at_least_the_target():
    standings = [standing("ratekit", 500, 1200, 600), standing("throttled-py", 100, 200, 100)]
    row, *_, cached = verdicts(standings, Colour.ASYNC)
    assert isinstance(row, Row)
    assert row.name == "64 at once: ratekit / throttled-py"
    assert row.figures == [5, 6, 6]
    assert row.is_reached is True
    assert replace(row, target=6.5).is_reached is False
    assert isinstance(cached, Gap)
    assert cached.target == 20
