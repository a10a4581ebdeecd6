"""The queue of threads that wait for a connection or for an answer, and which of them leads.

Leaders use a connection; all others wait. A leader takes calls from the queue, answers them, and wakes up their threads.
When its request is answered, the thread that has waited for longest leads next. Nobody overtakes.

The queue and the number of leaders change only under the lock. A signal handler may raise an exception at any call, so
`leads` of a leader changes together with that number, with no call in between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

from ratekit.core.outages import Outage, StoreOutage
from ratekit.core.protocol import Call
from ratekit.stores.contract import Figures
from ratekit.stores.redis.evalsha import MOST_KEYS

_QUEUE_SECONDS = 5.0  # how long a thread waits in the queue, which is no fault of the store
_LONGEST_SECONDS = 60.0  # how long a thread waits for the leader that has its call: longer than any leader takes
_PARKED_SECONDS = 1.0  # how long there are fewer leaders after the server had no more connections to give
_INTERRUPTED_SECONDS = 0.01  # how often an interrupted thread looks whether its call is answered


class Waiter:
    """A thread that waits for a connection of its own."""

    __slots__ = ("answer", "followers", "keys", "leads", "wakeup")

    def __init__(self, keys: int = MOST_KEYS) -> None:
        self.keys = keys  # a request is full when it has MOST_KEYS
        self.answer: Figures | Exception | None = None
        self.leads = False  # whether the thread may use a connection
        self.wakeup: Any = None  # a lock, held as long as the thread has to wait
        self.followers: Sequence[Waiter] | None = None  # to be woken up by this thread; None until there is an answer

    def prepare(self) -> None:
        """Prepare to wait."""
        self.wakeup = threading.Lock()
        self.wakeup.acquire()

    def resolve(self, answer: Figures | Exception) -> None:
        """Keep an answer; the first one counts. `wake_up` then wakes up the thread."""
        if self.answer is None:
            self.answer = answer

    def wake_followers(self) -> None:
        """Wake up the threads that this one has to wake up."""
        for one in self.followers or ():
            one.wakeup.release()


class PendingCall(Waiter):
    """A thread that waits for the answer to a call, which another thread may get."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        super().__init__(len(call.keys))
        self.call = call

    crash = Waiter.resolve


def wake_up(waiters: Sequence[Waiter]) -> None:
    """Wake up threads that have their answers: two of them here, and each of these wakes up two more.

    Threads that are woken up all at once queue for the interpreter's lock, which puts them to sleep again: that way, 16
    threads decide a quarter fewer calls in the same time.
    """
    for index, one in enumerate(waiters):
        one.followers = waiters[2 * index + 2 : 2 * index + 4]
    for one in waiters[:2]:
        one.wakeup.release()


class LeaderQueue:
    """Says which threads lead: one, or more if the calls that wait fill another request, up to a bound."""

    def __init__(self, most_leaders: int) -> None:
        self._most = most_leaders
        self.begin()

    def begin(self) -> None:
        """Start with nobody waiting, and a lock that nobody holds: when made, and in a forked process."""
        self._lock = threading.Lock()
        self._waiting: deque[Waiter] = deque()
        self._keys = 0  # of all that wait
        self._limit = self._most
        self._parked_until = 0.0
        self.leaders = 0

    def __len__(self) -> int:
        """How many threads wait."""
        return len(self._waiting)

    def lead_alone(self, own: Waiter) -> bool:
        """Become the only leader, if there is none and nobody waits."""
        with self._lock:
            if self.leaders or self._waiting:
                return False
            self.leaders, own.leads = 1, True
            return True

    def enter(self, own: Waiter) -> None:
        """Become a leader where that is possible; else wait for an answer, or to lead."""
        with self._lock:
            if self._may_lead(own.keys):
                self.leaders, own.leads = self.leaders + 1, True
                return
            own.prepare()
            self._waiting.append(own)
            self._keys += own.keys
        self.wait(own)

    def _may_lead(self, keys: int) -> bool:
        if self.leaders == 0:
            return True
        if self._limit < self._most and monotonic() > self._parked_until:
            self._limit = self._most
        return self.leaders < self._limit and self._keys + keys >= MOST_KEYS

    def wait(self, own: Waiter) -> None:
        """Wait in the queue, for an answer or to lead."""
        until = monotonic() + _LONGEST_SECONDS
        try:
            while not own.wakeup.acquire(timeout=_QUEUE_SECONDS):
                if self.leave(own) or monotonic() > until:
                    own.resolve(StoreOutage(Outage("queue", f"no connection was free for {_QUEUE_SECONDS} s")))
                    return
        except BaseException:
            self._give_up(own, until)
            raise
        own.wake_followers()

    def _give_up(self, own: Waiter, until: float) -> None:
        """Stop waiting after an interruption; but if a leader has the call, others rely on this thread to wake them up."""
        if self.leave(own):
            return
        while not own.leads and own.followers is None and monotonic() < until:
            own.wakeup.acquire(timeout=_INTERRUPTED_SECONDS)
        own.wake_followers()

    def leave(self, own: Waiter) -> bool:
        """Leave the queue; whether the thread was still in it."""
        with self._lock:
            if own not in self._waiting:
                return False
            self._waiting.remove(own)
            self._keys -= own.keys
            return True

    def take_into(self, pending: list[PendingCall]) -> None:
        """Move calls from the queue to a request that has room, up to a thread that waits for a connection of its own."""
        keys = pending[0].keys
        with self._lock:
            while self._waiting and keys < MOST_KEYS:
                one = self._waiting[0]
                if not isinstance(one, PendingCall):
                    return
                pending.append(one)
                self._waiting.popleft()
                self._keys -= one.keys
                keys += one.keys

    def hand_over(self, own: Waiter) -> None:
        """End the lead: let the thread that has waited for longest lead next, unless other leaders can do with the rest."""
        with self._lock:
            if self._waiting and (self.leaders == 1 or (self._keys >= MOST_KEYS and self.leaders <= self._limit)):
                one = self._waiting[0]
                self._keys -= one.keys
                own.leads, one.leads = False, True
                self._waiting.popleft()
                one.wakeup.release()
            else:
                self.leaders, own.leads = self.leaders - 1, False

    def fail(self, outage: Outage) -> None:
        """Fail all that wait."""
        with self._lock:
            failed, self._keys = list(self._waiting), 0
            self._waiting.clear()
        for one in failed:
            one.resolve(StoreOutage(outage._replace(is_in_doubt=False)))  # none of it was sent
        wake_up(failed)

    def park(self, own: Waiter, waiters: Sequence[Waiter]) -> bool:
        """End the lead, have fewer leaders for a while, and put waiters back into the queue. Not for the only leader."""
        with self._lock:
            if self.leaders == 1:
                return False  # the others have ended meanwhile, and left their connections
            own.prepare()
            self.leaders, own.leads = self.leaders - 1, False
            self._limit, self._parked_until = self.leaders, monotonic() + _PARKED_SECONDS
            self._waiting.extendleft(reversed(waiters))
            self._keys += sum(one.keys for one in waiters)
            return True
