"""Batches the calls of many threads to one server, by leaders and followers.

A thread that finds no request in flight leads: it sends its call, and all calls that wait, in one request, and hands out the
answers. A thread that finds a request in flight leaves its call in the queue and waits. It gets its answer from a leader, or
becomes the next leader itself. So a lone thread does no more than send its call, many threads need few requests, and there
is no thread that only sends. As in an event loop, a second request is in flight only if it is full.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ratekit.core.outages import Outage, StoreOutage, outage_in
from ratekit.core.protocol import Call
from ratekit.stores.contract import Answer, Command, Figures
from ratekit.stores.redis.batch import Batch
from ratekit.stores.redis.cluster import SlotMap, by_slot
from ratekit.stores.redis.evalsha import Exchange, Request, check_sendable, figures_in
from ratekit.stores.redis.leader_queue import LeaderQueue, PendingCall, Waiter, wake_up
from ratekit.stores.redis.pool import ConnectionPool, NoneLeft
from ratekit.stores.redis.url import Address

_INTERRUPTED = Outage("interrupted", "the thread that sent the request was interrupted", is_in_doubt=True)


class ThreadBatcher:
    """Decides the calls of threads by a few connections to one server, in the order in which the threads came.

    In a Cluster (`slots`), calls of one batch share a slot, and `batcher_at` finds the batcher of the node that a
    redirection names.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        most_connections: int,
        slots: SlotMap | None = None,
        batcher_at: Callable[[Address | None], ThreadBatcher] | None = None,
    ) -> None:
        self.pool = pool
        self.queue = LeaderQueue(most_connections)
        self._slots = slots
        self._batcher_at = batcher_at
        _batchers.add(self)

    def begin(self) -> None:
        """Start anew in a forked process: locks, waiting threads and connections are the parent's."""
        self.queue.begin()
        self.pool.begin()

    def run(self, call: Call) -> Figures:
        """Decide a call. Raises StoreOutage if the server cannot."""
        outage = self.pool.breaker.outage
        if outage is not None:
            self._suspect(outage)
            raise StoreOutage(outage)
        check_sendable(call)
        own, queue = PendingCall(call), self.queue
        try:
            if not queue.leaders and queue.lead_alone(own):
                return self._decide_alone(own)
            queue.enter(own)
            return self._decide_with_others(own)
        finally:
            if own.leads:
                queue.hand_over(own)

    def run_many(self, calls: Sequence[Call]) -> list[Answer]:
        """Decide calls in one request; in a Cluster they have to share a slot. Raises StoreOutage if the server cannot."""
        return self._decide(calls, self.send)

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together, and return their replies, errors among them. Raises StoreOutage if there are none."""
        own = Waiter()
        try:
            self.queue.enter(own)
            while own.leads:
                try:
                    return self._send(commands, own, [own])
                except NoneLeft:
                    self.queue.wait(own)
        finally:
            if own.leads:
                self.queue.hand_over(own)
        raise own.answer  # type: ignore[misc]

    def _decide_alone(self, own: PendingCall) -> Figures:
        def send(commands: Sequence[Command]) -> list[Any]:
            replies = self._send(commands, own, [own])
            self.queue.hand_over(own)
            return replies

        try:
            return figures_in(self._decide((own.call,), send)[0])
        except NoneLeft:
            self.queue.wait(own)
            return self._decide_with_others(own)

    def _decide_with_others(self, own: PendingCall) -> Figures:
        while own.leads and own.answer is None:
            self._lead(own)
        if isinstance(own.answer, Exception):
            raise own.answer
        return own.answer  # type: ignore[return-value]

    def _decide(self, calls: Sequence[Call], send: Callable[[Sequence[Command]], list[Any]]) -> list[Answer]:
        """Decide calls without those of other threads."""
        exchange = Exchange(calls, self.pool.errors, self._slots)
        try:
            answers = exchange.receive(send(exchange.request.commands))
            while answers is None:
                answers = exchange.receive(self._send_again(exchange.request))
        except StoreOutage as error:
            self._suspect(error.outage)
            raise
        for answer in answers:
            if isinstance(answer, str):
                self._suspect(outage_in(answer).outage)
        return answers

    def _lead(self, own: PendingCall) -> None:
        """Send a request with the own call and those that wait, and hand out the answers."""
        pending = [own]
        try:
            self.queue.take_into(pending)
            groups = [pending] if self._slots is None else by_slot(pending)
            batches = [Batch(group, self.pool.errors, self._slots) for group in groups]
            replies = self._send([command for batch in batches for command in batch.request.commands], own, pending)
            self._finish(own, batches, replies)
        except NoneLeft:
            self.queue.wait(own)
        except StoreOutage as error:
            self._fail(pending, error.outage)
        except BaseException:
            for one in pending:
                self.queue.leave(one)
            self._fail(pending, _INTERRUPTED)
            raise

    def _finish(self, own: PendingCall, batches: Sequence[Batch[PendingCall]], replies: Sequence[Any]) -> None:
        """Hand out answers, and hand over; then go on with the batches that need another request.

        In this order, since a leader that is woken up first finds fewer calls to send.
        """
        at, unfinished = 0, []
        for batch in batches:
            end = at + len(batch.request.commands)
            if batch.receive(replies[at:end]):
                self._hand_out(own, batch)
            else:
                unfinished.append(batch)
            at = end
        self.queue.hand_over(own)
        for batch in unfinished:
            self._resume(batch)
            self._hand_out(own, batch)

    def _resume(self, batch: Batch[PendingCall]) -> None:
        try:
            while not batch.receive(self._send_again(batch.request)):
                pass
        except StoreOutage as error:
            batch.fail(error.outage)

    def _send_again(self, request: Request) -> list[Any]:
        """Send the next request of an exchange, to the server that a redirection names."""
        batcher = self if self._batcher_at is None else self._batcher_at(request.address)
        return batcher.send(request.commands)

    def _hand_out(self, own: PendingCall, batch: Batch[PendingCall]) -> None:
        """Wake up the threads of a batch that has its answers."""
        wake_up([one for one in batch.pending if one is not own])
        if batch.outage is not None:
            self._suspect(batch.outage)

    def _fail(self, pending: Sequence[PendingCall], outage: Outage) -> None:
        """Fail the calls of a request that have no answer yet. They are not sent again: the server may have decided them."""
        self._suspect(outage)
        for one in pending:
            one.resolve(StoreOutage(outage))
        wake_up([one for one in pending[1:] if one.followers is None])

    def _suspect(self, outage: Outage) -> None:
        """Look for a successor of the server: it may be away, or not the primary any more."""
        if outage.reason == "readonly":
            self.pool.forget()
        if self._slots is not None and not outage.is_fault:
            self._slots.is_stale = True

    def _send(self, commands: Sequence[Command], own: Waiter, waiters: Sequence[Waiter]) -> list[Any]:
        """Send commands as a leader. Raises NoneLeft if the waiters are in the queue again instead.

        If the server is silent, all that wait fail as well: each of them would find that out by itself, a deadline later.
        """
        while True:
            try:
                return self.pool.send(commands)
            except NoneLeft:
                if self.queue.park(own, waiters):
                    raise
            except StoreOutage as error:
                if error.outage.reason == "timeout":
                    self.queue.fail(error.outage)
                raise


_batchers: weakref.WeakSet[ThreadBatcher] = weakref.WeakSet()


def _begin_anew() -> None:
    for batcher in list(_batchers):
        batcher.begin()


os.register_at_fork(after_in_child=_begin_anew)
