"""Batches of pending calls, whoever waits for them: tasks of an event loop, or threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from ratekit.core.outages import Outage, StoreOutage, outage_in
from ratekit.core.protocol import Call
from ratekit.stores.contract import Figures
from ratekit.stores.redis.client_errors import ClientErrors
from ratekit.stores.redis.evalsha import Exchange, Request, Routes


class Pending(Protocol):
    """A call that waits for its answer."""

    @property
    def call(self) -> Call:
        """The call."""

    def resolve(self, answer: Figures | StoreOutage) -> None:
        """Hand over the answer."""

    def crash(self, bug: Exception) -> None:
        """Let the caller raise an exception that is not an outage."""


Waiting = TypeVar("Waiting", bound=Pending)


class Batch(Generic[Waiting]):
    """Pending calls that one exchange decides. In a Cluster they share a slot."""

    __slots__ = ("_errors", "_exchange", "outage", "pending")

    def __init__(self, pending: Sequence[Waiting], errors: ClientErrors, routes: Routes | None) -> None:
        self.pending = pending
        self._errors = errors
        self._exchange = Exchange([one.call for one in pending], errors, routes)
        self.outage: Outage | None = None  # of the whole batch, or of one of its calls

    @property
    def request(self) -> Request:
        """What to send next."""
        return self._exchange.request

    def receive(self, replies: Sequence[Any]) -> bool:
        """Take the replies to the request, and resolve the calls. Returns False if there is another request to send."""
        try:
            answers = self._exchange.receive(replies)
        except StoreOutage as error:
            self.fail(error.outage)
            return True
        except self._errors.every as bug:
            for one in self.pending:
                one.crash(bug)
            return True
        if answers is None:
            return False
        for one, answer in zip(self.pending, answers, strict=True):
            if isinstance(answer, str):
                self.outage = outage_in(answer).outage
                one.resolve(StoreOutage(self.outage))
            else:
                one.resolve(answer)
        return True

    def fail(self, outage: Outage) -> None:
        """Resolve all calls with an outage."""
        self.outage = outage
        for one in self.pending:
            one.resolve(StoreOutage(outage))
