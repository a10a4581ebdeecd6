"""Calls that are asked for together, and those who wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ratekit.outage import Outage, StoreOutage
from ratekit.protocol import Call
from ratekit.stores.asking import Ask, ClientErrors, Conversation, figures_in

Answer = asyncio.Future[Sequence[int]]
Waiting = tuple[Call, Answer]


class Batch:
    """One conversation with a server, for some who wait. Who does not wait any more is left out."""

    __slots__ = ("_answers", "_conversation", "_errors", "ask")

    def __init__(self, conversation: Conversation, answers: Sequence[Answer], errors: ClientErrors) -> None:
        self._conversation = conversation
        self._answers = answers
        self._errors = errors
        self.ask: Ask = next(conversation)

    def take(self, replies: Sequence[Any]) -> bool:
        """Go on with the replies to what was asked; whether that was the end."""
        try:
            self.ask = self._conversation.send(replies)
        except StopIteration as end:
            for answer, figures in zip(self._answers, end.value, strict=True):
                if not answer.done():
                    _resolve(answer, figures)
        except StoreOutage as error:
            self.fail(error.outage)
        except self._errors.every as bug:
            for answer in self._answers:
                if not answer.done():
                    answer.set_exception(bug)
        else:
            return False
        return True

    def fail(self, outage: Outage) -> None:
        """Tell all who wait that there will be no answer."""
        for answer in self._answers:
            fail(answer, outage)


def fail(answer: Answer, outage: Outage) -> None:
    """Tell one who waits that there will be no answer."""
    if not answer.done():
        answer.set_exception(StoreOutage(outage))


def _resolve(answer: Answer, figures: Sequence[int] | str) -> None:
    if isinstance(figures, str):
        try:
            figures_in(figures)
        except StoreOutage as error:
            answer.set_exception(error)
    else:
        answer.set_result(figures)
