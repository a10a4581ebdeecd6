"""Flights of calls to one server: how many at once, of what size, and what becomes of them when the server is lost."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Connection

from ratekit import Limit, Policy
from ratekit.outage import StoreOutage
from ratekit.protocol import encode
from ratekit.stores.asking import deciding, errors_of
from ratekit.stores.batch import Batch
from ratekit.stores.line import MOST_KEYS, Line

POLICY = Policy("flights", Limit(1000, 60))  # two keys: that of its override, that of its state
FULL = MOST_KEYS // 2
ADMITTED = [1, 1000, 1, 999, 0, 60_000_000]


class FakeWire:
    """Sends nothing: a test answers."""

    is_open, most_exchanges = True, 3

    def __init__(self):
        self.errors = errors_of(Connection())
        self.sent = []
        self.is_closed = False
        self.opened = 0

    async def open(self):
        self.opened += 1

    def send(self, commands, done):
        self.sent.append((commands, done))

    def close(self):
        self.is_closed = True

    def sizes(self):
        """How many calls each command has that is under way."""
        return [int(command[2]) // 2 for commands, _ in self.sent for command in commands]

    def answer(self):
        """Answer the first exchange."""
        commands, done = self.sent.pop(0)
        done([ADMITTED * (int(command[2]) // 2) for command in commands])

    def fail(self):
        """Lose the connection."""
        (_, done), *_ = self.sent
        self.sent.clear()
        done(self.errors.connection("gone"))


def line_of(wire, most_flights=3, deadline=60):
    def batches(waiting):
        yield Batch(deciding([one.call for one in waiting], wire.errors), waiting, wire.errors)

    return Line(wire, deadline, "fake", batches, most_flights)


def submit(line, count, first=0):
    return [line.submit(encode(POLICY, f"u{number}")) for number in range(first, first + count)]


async def test_only_full_flights_depart_while_another_is_under_way():
    wire = FakeWire()
    line = line_of(wire)
    answers = submit(line, FULL)
    assert wire.sizes() == [1]  # nobody to wait for; the others are not enough for a second one
    answers += submit(line, 1, FULL)
    assert wire.sizes() == [1, FULL]
    answers += submit(line, 3 * FULL, FULL + 1)
    assert wire.sizes() == [1, FULL, FULL]  # no more than three
    wire.answer()
    assert wire.sizes() == [FULL, FULL, FULL]
    assert [answer.done() for answer in answers[:3]] == [True, False, False]
    while wire.sent:
        wire.answer()
    assert all(answer.result() == ADMITTED for answer in answers)


async def test_one_flight_at_a_time_where_no_more_is_allowed():
    wire = FakeWire()
    line = line_of(wire, most_flights=1)
    answers = submit(line, 3 * FULL)
    assert wire.sizes() == [1]
    while wire.sent:
        assert len(wire.sent) == 1
        wire.answer()
    assert all(answer.done() for answer in answers)


async def test_lost_connection_is_one_failure_for_all_flights():
    wire = FakeWire()
    line = line_of(wire)
    answers = submit(line, 1 + 2 * FULL)
    waiting = submit(line, 1, 1 + 2 * FULL)
    assert len(wire.sent) == 3
    wire.fail()
    for answer in answers:
        with pytest.raises(StoreOutage):
            await answer
    assert line.breaker.failures == 1
    assert wire.sizes() == [1]  # who was not yet asked for goes out now
    wire.answer()
    assert (await waiting[0]) == ADMITTED
    assert line.breaker.failures == 0


async def test_silence_after_the_first_landing_is_noticed():
    wire = FakeWire()
    line = line_of(wire, deadline=0.05)
    answers = submit(line, 1 + FULL)
    wire.answer()
    assert answers[0].done()
    with pytest.raises(StoreOutage, match=r"no answer within 0\.05 s"):
        await asyncio.wait_for(answers[1], 5)
    assert {type(answer.exception()) for answer in answers[1:]} == {StoreOutage}
    assert wire.is_closed


async def test_what_is_asked_again_goes_before_the_rest_and_alone():
    wire = FakeWire()
    line = line_of(wire)
    answers = submit(line, 1 + FULL)
    no_script = [wire.errors.response("NOSCRIPT no matching script")]
    wire.sent.pop(0)[1](no_script)
    answers += submit(line, FULL, 1 + FULL)
    assert wire.sizes() == [FULL]  # nothing overtakes what has to be asked again
    wire.sent.pop(0)[1](no_script)
    assert [[command[0] for command in commands] for commands, _ in wire.sent] == [["EVAL", "EVAL"], ["EVALSHA"]]
    assert wire.sizes() == [1, FULL, FULL]
    while wire.sent:
        wire.answer()
    assert all(answer.result() == ADMITTED for answer in answers)


async def test_wrong_server_is_left_when_what_is_under_way_has_landed_however_much_waits():
    wire = FakeWire()
    line = line_of(wire)
    answers = submit(line, 1 + 4 * FULL)
    assert wire.sizes() == [1, FULL, FULL]
    line.reconnect()
    for left in (2, 1, 0):
        wire.answer()
        assert len(wire.sent) == left  # nothing more goes to it
    line.reconnect()  # who hears of it late, when the next connection is being made, does not undo that
    await asyncio.sleep(0.01)
    assert (wire.opened, wire.sizes()) == (1, [FULL, FULL])
    while wire.sent:
        wire.answer()
    assert all(answer.result() == ADMITTED for answer in answers)


async def test_finish_makes_the_answer_where_it_lands_and_in_order():
    wire, made = FakeWire(), []
    line = line_of(wire)
    answers = [
        line.submit(encode(POLICY, f"u{number}"), lambda _, number=number: made.append(number)) for number in range(5)
    ]
    while wire.sent:
        wire.answer()
    assert made == list(range(5))  # and nobody has awaited anything
    assert [answer.result() for answer in answers] == [None] * 5


async def test_finish_is_told_of_an_outage():
    wire, told = FakeWire(), []
    line = line_of(wire)
    answers = [line.submit(encode(POLICY, f"u{number}"), told.append) for number in range(1 + FULL)]
    wire.fail()
    assert [outage.outage.reason for outage in told] == ["connection"] * (1 + FULL)
    assert all(answer.result() is None for answer in answers)


async def test_finish_that_fails_harms_no_neighbour():
    wire = FakeWire()
    line = line_of(wire)

    def divide(figures):
        return figures[0] // 0

    first, failing, last = (line.submit(encode(POLICY, "u"), finish) for finish in (None, divide, len))
    while wire.sent:
        wire.answer()
    assert first.result() == ADMITTED
    assert isinstance(failing.exception(), ZeroDivisionError)
    assert last.result() == len(ADMITTED)


async def test_finish_is_not_called_for_who_does_not_wait_any_more():
    wire, made = FakeWire(), []
    line = line_of(wire)
    answers = [line.submit(encode(POLICY, f"u{number}"), made.append) for number in range(3)]
    answers[0].cancel()
    while wire.sent:
        wire.answer()
    assert made == [ADMITTED, ADMITTED]
