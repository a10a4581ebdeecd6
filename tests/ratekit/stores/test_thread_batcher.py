"""Threads that share requests: who sends, how many calls at once, and what becomes of them when a request fails."""

from __future__ import annotations

import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Connection

from ratekit import Limit, Policy
from ratekit.core.outages import Outage, StoreOutage
from ratekit.core.protocol import encode
from ratekit.stores.circuit_breaker import Breaker
from ratekit.stores.redis import leader_queue
from ratekit.stores.redis.client_errors import errors_of
from ratekit.stores.redis.evalsha import MOST_KEYS
from ratekit.stores.redis.leader_queue import Waiter, wake_up
from ratekit.stores.redis.pool import NoneLeft
from ratekit.stores.redis.thread_batcher import ThreadBatcher

POLICY = Policy("batched", Limit(1000, 60))  # two keys: that of its override, that of its state
FULL = MOST_KEYS // 3
ADMITTED = [1, 1000, 1, 999, 0, 60_000_000]
PING = [("PING",)]


def calls_of(command: tuple[Any, ...]) -> int:
    return int(command[2]) // 3 if command[0].startswith("EVAL") else 0


class FakePool:
    """Sends nothing: each request waits until the test has said what comes of it."""

    def __init__(self) -> None:
        self.errors = errors_of(Connection())
        self.breaker = Breaker("fake")
        self.sent: list[tuple[Any, ...]] = []
        self.in_flight: queue.Queue[tuple[Any, queue.Queue[Any]]] = queue.Queue()
        self.forgotten = 0

    def begin(self) -> None:
        pass

    def forget(self) -> None:
        self.forgotten += 1

    def send(self, commands: Any) -> list[Any]:
        outcome: queue.Queue[Any] = queue.Queue()
        self.in_flight.put((commands, outcome))
        self.sent += commands
        replies = outcome.get(timeout=20)
        if isinstance(replies, BaseException):
            raise replies
        return replies

    @property
    def calls(self) -> int:
        """How many calls, or commands past the script, were sent, those that were sent twice counted twice."""
        return sum(max(calls_of(command), 1) for command in self.sent)

    def next(self) -> tuple[Any, Callable[[Any], None]]:
        """Wait for the next request: its commands, and a function that ends it."""
        commands, outcome = self.in_flight.get(timeout=20)
        return commands, outcome.put

    def reply(self, change: Callable[[list[Any]], Any] = lambda replies: replies) -> int:
        """Admit all calls of the next request, and return how many there were."""
        commands, end = self.next()
        sizes = [calls_of(command) for command in commands]
        end(change([ADMITTED * size if size else True for size in sizes]))
        return sum(sizes)


class Threads:
    """Runs functions in threads, and keeps what they return or raise."""

    def __init__(self, batcher: ThreadBatcher) -> None:
        self.batcher = batcher
        self.threads: list[threading.Thread] = []
        self.outcomes: list[Any] = []

    def start(self, count: int = 1, work: Callable[[], Any] | None = None) -> None:
        """Start threads, each with a call of its own; each when the call of the one before is in the queue, or sent."""
        for number in range(count):
            call = encode(POLICY, f"u{number}")
            thread = threading.Thread(target=self._run, args=(work or (lambda call=call: self.batcher.run(call)),))
            before = self._known()
            thread.start()
            self.threads.append(thread)
            wait_until(lambda before=before: self._known() > before)

    def _known(self) -> int:
        return len(self.batcher.queue) + self.batcher.pool.calls

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self.outcomes.append(work())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.outcomes.append(error)

    def join(self) -> list[Any]:
        for thread in self.threads:
            thread.join(timeout=20)
            assert not thread.is_alive()
        return self.outcomes

    def reasons(self) -> list[str | None]:
        """Why each call failed, in some order; None for those that did not."""
        found = [outcome.outage.reason if isinstance(outcome, StoreOutage) else None for outcome in self.join()]
        return sorted(found, key=str)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def threads(pool) -> Threads:
    return Threads(ThreadBatcher(pool, 4))


def is_idle(threads: Threads) -> bool:
    """Whether a new thread leads at once, and is answered."""
    pool = threads.batcher.pool
    after = Threads(threads.batcher)
    after.start()
    return pool.reply() == 1 and after.join() == [ADMITTED]


def test_lone_thread_sends_its_call_at_once(pool, threads):
    threads.start()
    assert pool.reply() == 1
    assert threads.join() == [ADMITTED]
    assert [command[0] for command in pool.sent] == ["EVALSHA"]


def test_threads_that_come_while_a_request_is_in_flight_share_the_next_one(pool, threads):
    threads.start(10)
    assert pool.in_flight.qsize() == 1
    assert [pool.reply(), pool.reply()] == [1, 9]
    assert threads.join() == [ADMITTED] * 10
    assert is_idle(threads)


def test_second_request_is_in_flight_only_if_it_is_full(pool, threads):
    threads.start(FULL)
    assert pool.in_flight.qsize() == 1
    threads.start(1)
    assert pool.in_flight.qsize() == 2
    threads.start(FULL + 3)
    assert pool.in_flight.qsize() == 3
    assert sorted(pool.reply() for _ in range(4)) == [1, 3, FULL, FULL]
    assert threads.join() == [ADMITTED] * (2 * FULL + 4)
    assert is_idle(threads)


def test_no_more_requests_are_in_flight_than_connections(pool, threads):
    threads.start(8 * FULL)
    assert pool.in_flight.qsize() == 4
    answered = 0
    while answered < 8 * FULL:
        assert pool.in_flight.qsize() <= 4
        answered += pool.reply()
    assert threads.join() == [ADMITTED] * (8 * FULL)


def test_calls_are_sent_in_the_order_in_which_threads_came(pool, threads):
    threads.start(20)
    (first,), end = pool.next()
    end([ADMITTED])
    (second,), end = pool.next()
    end([ADMITTED * 19])
    threads.join()
    subjects = [key for command in (first, second) for key in command[3 : 3 + int(command[2])] if b"override" not in key]
    assert subjects == [encode(POLICY, f"u{number}").state_keys[0] for number in range(20)]


def test_error_of_one_call_stays_with_that_call(pool, threads):
    threads.start(4)
    pool.reply()
    pool.reply(lambda replies: [[*ADMITTED, b"WRONGTYPE Operation against a key", *ADMITTED]])
    assert threads.reasons() == [None, None, None, "wrongtype"]


def test_lost_connection_fails_its_calls_and_no_others(pool, threads):
    threads.start(5)
    _, end = pool.next()
    end(StoreOutage(Outage("connection", "gone")))
    assert pool.reply() == 4
    assert threads.reasons() == [None] * 4 + ["connection"]
    assert len(pool.sent) == 2  # nothing is sent again


def test_followers_of_a_leader_that_fails_get_its_outage_and_are_not_sent_again(pool, threads):
    threads.start(5)
    pool.reply()
    _, end = pool.next()
    end(StoreOutage(Outage("connection", "gone")))
    assert threads.reasons() == [None] + ["connection"] * 4
    assert len(pool.sent) == 2
    assert is_idle(threads)


def test_silent_server_fails_those_who_wait_as_well(pool, threads):
    threads.start(6)
    threads.start(1, lambda: threads.batcher.send(PING))
    _, end = pool.next()
    _, end_of_ping = pool.next()  # which needs a connection of its own
    end(StoreOutage(Outage("timeout", "no answer")))
    end_of_ping([b"PONG"])
    assert threads.reasons() == [None] + ["timeout"] * 6
    assert is_idle(threads)


def test_open_breaker_refuses_before_anything_is_sent(pool, threads):
    pool.breaker.outage = Outage("timeout", "no answer")
    with pytest.raises(StoreOutage):
        threads.batcher.run(encode(POLICY, "u"))
    assert pool.sent == []


def test_interrupted_leader_fails_its_followers_and_raises(pool, threads):
    threads.start(5)
    pool.reply()
    _, end = pool.next()
    end(KeyboardInterrupt())
    outcomes = threads.join()
    assert [type(outcome) for outcome in outcomes].count(KeyboardInterrupt) == 1
    assert [outcome.outage.reason for outcome in outcomes if isinstance(outcome, StoreOutage)] == ["interrupted"] * 3
    assert is_idle(threads)


def test_bug_surfaces_in_all_threads_of_its_request(pool, threads):
    threads.start(4)
    pool.reply()
    pool.reply(lambda replies: [pool.errors.response("user_script:1: attempt to index a nil value")])
    outcomes = threads.join()
    assert sum(isinstance(outcome, pool.errors.response) for outcome in outcomes) == 3
    assert is_idle(threads)


def test_forgotten_script_is_sent_again_with_its_calls(pool, threads):
    threads.start(4)
    sizes = []
    for _ in range(4):
        (command,), end = pool.next()
        sizes.append((command[0], calls_of(command)))
        no_script = pool.errors.response("NOSCRIPT No matching script")
        end([no_script if command[0] == "EVALSHA" else ADMITTED * calls_of(command)])
    assert threads.join() == [ADMITTED] * 4
    assert sorted(sizes) == [("EVAL", 1), ("EVAL", 3), ("EVALSHA", 1), ("EVALSHA", 3)]


def test_replica_is_left_for_the_primary(pool, threads):
    threads.start(2)
    for _ in range(2):
        pool.reply(lambda replies: [pool.errors.response("READONLY You can't write against a read only replica.")])
    assert threads.reasons() == ["readonly"] * 2
    assert pool.forgotten == 2


def test_call_that_cannot_be_sent_fails_alone(pool, threads):
    slots = Policy("slots", Limit(100, 60, algorithm="concurrency"))
    call = encode(slots, "u", operation="acquire", slot="\ud800")
    threads.start(3)
    with pytest.raises(UnicodeEncodeError):
        threads.batcher.run(call)
    assert [pool.reply(), pool.reply()] == [1, 2]
    assert threads.join() == [ADMITTED] * 3


def test_server_without_another_connection_leaves_the_calls_to_those_that_are_open(pool, threads):
    """A full request would use a second connection, and the server has none left: its calls go by the first one."""
    threads.start(FULL + 1)
    _, end_first = pool.next()
    _, end_second = pool.next()
    end_second(NoneLeft())
    wait_until(lambda: len(threads.batcher.queue) == FULL)
    threads.start(FULL)
    assert pool.in_flight.empty()  # nobody tries again for a while
    end_first([ADMITTED])
    assert sorted([pool.reply(), pool.reply()]) == [FULL, FULL]
    assert threads.join() == [ADMITTED] * (2 * FULL + 1)
    assert is_idle(threads)


def test_call_of_a_lone_thread_is_left_to_others_if_the_server_has_no_connection_for_it(pool, threads):
    threads.start(FULL + 1)
    _, end_first = pool.next()
    _, end_second = pool.next()
    end_first(NoneLeft())
    wait_until(lambda: len(threads.batcher.queue) == 1)
    end_second([ADMITTED * FULL])
    assert pool.reply() == 1
    assert threads.join() == [ADMITTED] * (FULL + 1)
    assert is_idle(threads)


def test_only_leader_tries_again_if_the_server_had_no_connection(pool, threads):
    threads.start()
    pool.next()[1](NoneLeft())
    assert pool.reply() == 1
    assert threads.join() == [ADMITTED]


def test_commands_past_the_script_wait_for_a_connection_in_the_queue(pool):
    threads = Threads(ThreadBatcher(pool, 1))
    threads.start(2)
    threads.start(1, lambda: threads.batcher.send(PING))
    threads.start(2)
    assert pool.reply() == 1
    assert pool.reply() == 1  # calls that came later do not overtake the command
    commands, end = pool.next()
    assert commands == PING
    end([b"PONG"])
    assert pool.reply() == 2
    assert sorted(map(str, threads.join())) == sorted(map(str, [ADMITTED] * 4 + [[b"PONG"]]))


def test_thread_that_waits_in_vain_leaves_no_trace(pool, threads, monkeypatch):
    monkeypatch.setattr(leader_queue, "_QUEUE_SECONDS", 0.02)
    threads.start(1)
    with pytest.raises(StoreOutage, match="no connection was free"):
        threads.batcher.run(encode(POLICY, "late"))
    assert pool.reply() == 1
    assert threads.join() == [ADMITTED]
    assert is_idle(threads)


class Interruption(Exception):
    """What a handler of a signal raises."""


@pytest.fixture
def interrupt() -> Any:
    """Interrupts the main thread."""

    def handle(*_: Any) -> None:
        raise Interruption

    before = signal.signal(signal.SIGUSR1, handle)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_interrupted_thread_leaves_the_queue(pool, threads, interrupt):
    threads.start(1)
    other = threading.Thread(target=lambda: (wait_until(lambda: len(threads.batcher.queue) == 1), interrupt()))
    other.start()
    with pytest.raises(Interruption):
        threads.batcher.run(encode(POLICY, "main"))
    other.join()
    assert pool.reply() == 1
    assert threads.join() == [ADMITTED]
    assert is_idle(threads)


def test_interrupted_thread_whose_call_was_sent_wakes_up_its_followers_first(pool, threads, interrupt):
    """The main thread is the first that the leader wakes up, and has to wake up others."""
    threads.start(2)
    ended = []

    def others() -> None:
        wait_until(lambda: len(threads.batcher.queue) == 2)  # one that will lead, and the main thread
        threads.start(9)
        pool.reply()
        commands, end = pool.next()
        interrupt()
        time.sleep(0.05)
        ended.append(len(commands))
        end([ADMITTED * 11])

    other = threading.Thread(target=others)
    other.start()
    with pytest.raises(Interruption):
        threads.batcher.run(encode(POLICY, "main"))
    assert ended == [1]  # it was raised only when the reply was there
    other.join()
    assert threads.join() == [ADMITTED] * 11
    assert is_idle(threads)


def test_nobody_is_forgotten_whenever_a_waiting_thread_is_interrupted(pool, threads, interrupt):
    """Before it is to lead, while it is woken up for that, or when it leads."""
    draw = random.Random(1)
    for _ in range(100):
        some = Threads(threads.batcher)
        some.start(1)

        def others(some: Threads = some) -> None:
            wait_until(lambda: len(threads.batcher.queue) == 1)
            some.start(3)
            first, second = draw.sample([interrupt, pool.reply], 2)
            first()
            time.sleep(draw.random() / 2000)
            second()
            answered = 1
            while answered < 4:
                answered += min(pool.reply(), 3)

        other = threading.Thread(target=others)
        other.start()
        with pytest.raises(Interruption):
            (threads.batcher.run(encode(POLICY, "main")), other.join())  # or in the moment after its answer
        other.join()
        assert set(some.reasons()) <= {None, "interrupted"}
    assert is_idle(threads)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 6, 7, 15, 31, 40])
def test_everybody_is_woken_up(count):
    waiters, woken = [Waiter() for _ in range(count)], []
    for one in waiters:
        one.prepare()

    def wait(one: Waiter) -> None:
        assert one.wakeup.acquire(timeout=20)
        one.wake_followers()
        woken.append(one)

    threads = [threading.Thread(target=wait, args=(one,)) for one in waiters]
    for thread in threads:
        thread.start()
    wake_up(waiters)
    for thread in threads:
        thread.join(timeout=20)
    assert len(woken) == count
