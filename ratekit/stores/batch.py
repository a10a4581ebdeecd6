"""Calls that are asked for together, and those who wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ratekit.outage import Outage, StoreOutage, outage_in
from ratekit.protocol import Call
from ratekit.stores.asking import Ask, ClientErrors, Conversation

Answer = asyncio.Future[Any]  # of the figures, or of what a finish makes of them
Finish = Callable[[Sequence[int] | StoreOutage], Any]


class Waiting(NamedTuple):
    """Somebody who waits for a call.

    A finish makes the answer of the figures, or of why there are none, where they arrive: one after the other for all of a
    batch, which is faster than by each when its turn comes, with other work in between.
    """

    call: Call
    answer: Answer
    finish: Finish | None = None


class Batch:
    """One conversation with a server, for some who wait. Who does not wait any more is left out."""

    __slots__ = ("_conversation", "_errors", "_waiting", "ask")

    def __init__(self, conversation: Conversation, waiting: Sequence[Waiting], errors: ClientErrors) -> None:
        self._conversation = conversation
        self._waiting = waiting
        self._errors = errors
        self.ask: Ask = next(conversation)

    def take(self, replies: Sequence[Any]) -> bool:
        """Go on with the replies to what was asked; whether that was the end."""
        try:
            self.ask = self._conversation.send(replies)
        except StopIteration as end:
            for (_, answer, finish), figures in zip(self._waiting, end.value, strict=True):
                if not answer.done():
                    _resolve(answer, figures, finish)
        except StoreOutage as error:
            self.fail(error.outage)
        except self._errors.every as bug:
            for _, answer, _ in self._waiting:
                if not answer.done():
                    answer.set_exception(bug)
        else:
            return False
        return True

    def fail(self, outage: Outage) -> None:
        """Tell all who wait that there will be no answer."""
        for waiting in self._waiting:
            fail(waiting, outage)


def fail(waiting: Waiting, outage: Outage) -> None:
    """Tell one who waits that there will be no answer."""
    _, answer, finish = waiting
    if not answer.done():
        _resolve(answer, StoreOutage(outage), finish)


def _resolve(answer: Answer, figures: Sequence[int] | str | StoreOutage, finish: Finish | None) -> None:
    if isinstance(figures, str):
        figures = outage_in(figures)
    try:
        if finish is not None:
            answer.set_result(finish(figures))
        elif isinstance(figures, StoreOutage):
            answer.set_exception(figures)
        else:
            answer.set_result(figures)
    except Exception as error:  # noqa: BLE001 - who waits is told of a finish that fails, and nobody else
        answer.set_exception(error)
