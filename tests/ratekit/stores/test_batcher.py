"""Requests to one server: how many in flight, of what size, and what becomes of their calls when the server is lost."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Connection

from ratekit import Limit, Policy
from ratekit.core.outages import StoreOutage
from ratekit.core.protocol import encode
from ratekit.stores.redis.batcher import Batcher
from ratekit.stores.redis.client_errors import errors_of
from ratekit.stores.redis.evalsha import MOST_KEYS

POLICY = Policy("batched", Limit(1000, 60))  # two keys: that of its override, that of its state
FULL = MOST_KEYS // 3
ADMITTED = [1, 1000, 1, 999, 0, 60_000_000]


class FakeConnection:
    """Sends nothing: a test replies."""

    is_open = True

    def __init__(self, most_in_flight=3):
        self.errors = errors_of(Connection())
        self.most_in_flight = most_in_flight
        self.in_flight = []
        self.is_closed = False
        self.opened = 0

    async def open(self):
        self.opened += 1

    def send(self, commands, received):
        self.in_flight.append((commands, received))

    def close(self):
        self.is_closed = True

    def sizes(self):
        """How many calls each command in flight has."""
        return [int(command[2]) // 3 for commands, _ in self.in_flight for command in commands]

    def reply(self):
        """Reply to the first request in flight."""
        commands, received = self.in_flight.pop(0)
        received([ADMITTED * (int(command[2]) // 3) for command in commands])

    def fail(self):
        """Lose the connection."""
        (_, received), *_ = self.in_flight
        self.in_flight.clear()
        received(self.errors.connection("gone"))


def batcher_on(connection, deadline=60):
    return Batcher(connection, deadline, "fake")


def submit(batcher, count, first=0):
    return [batcher.submit(encode(POLICY, f"u{number}")) for number in range(first, first + count)]


async def test_only_full_requests_are_sent_while_another_is_in_flight():
    connection = FakeConnection()
    batcher = batcher_on(connection)
    futures = submit(batcher, FULL)
    assert connection.sizes() == [1]  # nothing to wait for; the others are not enough for a second request
    futures += submit(batcher, 1, FULL)
    assert connection.sizes() == [1, FULL]
    futures += submit(batcher, 3 * FULL, FULL + 1)
    assert connection.sizes() == [1, FULL, FULL]  # no more than three
    connection.reply()
    assert connection.sizes() == [FULL, FULL, FULL]
    assert [future.done() for future in futures[:3]] == [True, False, False]
    while connection.in_flight:
        connection.reply()
    assert all(future.result() == ADMITTED for future in futures)


async def test_one_request_is_in_flight_where_no_more_is_allowed():
    connection = FakeConnection(most_in_flight=1)
    batcher = batcher_on(connection)
    futures = submit(batcher, 3 * FULL)
    assert connection.sizes() == [1]
    while connection.in_flight:
        assert len(connection.in_flight) == 1
        connection.reply()
    assert all(future.done() for future in futures)


async def test_lost_connection_is_one_failure_for_all_requests_in_flight():
    connection = FakeConnection()
    batcher = batcher_on(connection)
    futures = submit(batcher, 1 + 2 * FULL)
    waiting = submit(batcher, 1, 1 + 2 * FULL)
    assert len(connection.in_flight) == 3
    connection.fail()
    for future in futures:
        with pytest.raises(StoreOutage):
            await future
    assert batcher.breaker.failures == 1
    assert connection.sizes() == [1]  # the call that was not sent yet goes out now
    connection.reply()
    assert (await waiting[0]) == ADMITTED
    assert batcher.breaker.failures == 0


async def test_silence_after_the_first_reply_is_noticed():
    connection = FakeConnection()
    batcher = batcher_on(connection, deadline=0.05)
    futures = submit(batcher, 1 + FULL)
    connection.reply()
    assert futures[0].done()
    with pytest.raises(StoreOutage, match=r"no answer within 0\.05 s"):
        await asyncio.wait_for(futures[1], 5)
    assert {type(future.exception()) for future in futures[1:]} == {StoreOutage}
    assert connection.is_closed


async def test_batch_that_is_sent_again_goes_before_the_rest_and_alone():
    connection = FakeConnection()
    batcher = batcher_on(connection)
    futures = submit(batcher, 1 + FULL)
    no_script = [connection.errors.response("NOSCRIPT no matching script")]
    connection.in_flight.pop(0)[1](no_script)
    futures += submit(batcher, FULL, 1 + FULL)
    assert connection.sizes() == [FULL]  # nothing overtakes what has to be sent again
    connection.in_flight.pop(0)[1](no_script)
    sent = [[command[0] for command in commands] for commands, _ in connection.in_flight]
    assert sent == [["EVAL", "EVAL"], ["EVALSHA"]]
    assert connection.sizes() == [1, FULL, FULL]
    while connection.in_flight:
        connection.reply()
    assert all(future.result() == ADMITTED for future in futures)


async def test_wrong_server_is_left_once_the_requests_in_flight_are_answered_however_much_waits():
    connection = FakeConnection()
    batcher = batcher_on(connection)
    futures = submit(batcher, 1 + 4 * FULL)
    assert connection.sizes() == [1, FULL, FULL]
    batcher.reconnect()
    for left in (2, 1, 0):
        connection.reply()
        assert len(connection.in_flight) == left  # nothing more goes to it
    batcher.reconnect()  # too late: the next connection is being made already, and that is not undone
    await asyncio.sleep(0.01)
    assert (connection.opened, connection.sizes()) == (1, [FULL, FULL])
    while connection.in_flight:
        connection.reply()
    assert all(future.result() == ADMITTED for future in futures)


@pytest.mark.parametrize("whole", [True, False])
async def test_server_that_is_a_replica_now_is_left_by_itself(whole):
    """READONLY is the error of the whole request, or of one call of it, as releases of the server differ."""
    connection, message = FakeConnection(), "READONLY You can't write against a read only replica."
    batcher = batcher_on(connection)
    (first,) = submit(batcher, 1)
    connection.in_flight.pop(0)[1]([connection.errors.response(message) if whole else [message.encode()]])
    assert first.exception().outage.reason == "readonly"
    (second,) = submit(batcher, 1)
    await asyncio.sleep(0.01)
    assert connection.opened == 1
    connection.reply()
    assert await second == ADMITTED


async def test_finish_runs_where_the_reply_arrives_and_in_order():
    connection, finished = FakeConnection(), []
    batcher = batcher_on(connection)
    futures = [
        batcher.submit(encode(POLICY, f"u{number}"), lambda _, number=number: finished.append(number)) for number in range(5)
    ]
    while connection.in_flight:
        connection.reply()
    assert finished == list(range(5))  # and nobody has awaited anything
    assert [future.result() for future in futures] == [None] * 5


async def test_finish_gets_the_outage():
    connection, finished = FakeConnection(), []
    batcher = batcher_on(connection)
    futures = [batcher.submit(encode(POLICY, f"u{number}"), finished.append) for number in range(1 + FULL)]
    connection.fail()
    assert [outage.outage.reason for outage in finished] == ["connection"] * (1 + FULL)
    assert all(future.result() is None for future in futures)


async def test_finish_gets_the_outage_when_the_breaker_is_open():
    connection, finished = FakeConnection(), []
    batcher = batcher_on(connection)
    while batcher.breaker.outage is None:
        submit(batcher, 1)[0].add_done_callback(lambda future: future.exception())
        connection.fail()
    await batcher.submit(encode(POLICY, "u"), finished.append)
    assert [outage.outage.reason for outage in finished] == ["connection"]
    assert not connection.in_flight
    await batcher.aclose()


async def test_finish_that_raises_harms_no_other_call():
    connection = FakeConnection()
    batcher = batcher_on(connection)

    def divide(figures):
        return figures[0] // 0

    first, failing, last = (batcher.submit(encode(POLICY, "u"), finish) for finish in (None, divide, len))
    while connection.in_flight:
        connection.reply()
    assert first.result() == ADMITTED
    assert isinstance(failing.exception(), ZeroDivisionError)
    assert last.result() == len(ADMITTED)


async def test_finish_is_not_called_for_a_cancelled_call():
    connection, finished = FakeConnection(), []
    batcher = batcher_on(connection)
    futures = [batcher.submit(encode(POLICY, f"u{number}"), finished.append) for number in range(3)]
    futures[0].cancel()
    while connection.in_flight:
        connection.reply()
    assert finished == [ADMITTED, ADMITTED]
