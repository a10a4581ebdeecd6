"""Work of many requests, done in one go.

Between two steps of one request a server does much else, and by then the processor has forgotten the code and the data of a
decision: alone, it takes several times as long as right after another one. So what is asked for in one turn of an event loop
is done in the next one, all of it one after the other. Nothing waits for a timer, nor for anything outside the process.
"""

from __future__ import annotations

import types
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Generator
from typing import Any

Item = list[Any]  # what the work is about, and where it leaves what came of it
Asked = list[Item]


class Gathering:
    """Does the work of one kind that is asked for in one turn of an event loop."""

    def __init__(self, work: Callable[[Asked], None]) -> None:
        self._work = work
        self._asked: dict[AbstractEventLoop, Asked] = {}  # what is not yet done, in each event loop

    @types.coroutine
    def do(self, item: Item) -> Generator[None, None, None]:
        """Do the work on an item with that of others, in the context of any of them. An error is left as the last part of
        each, with where it came from.

        It is not done for who is cancelled before anybody's turn. Where there is no event loop of asyncio, it is done at
        once.
        """
        try:
            loop = get_running_loop()
        except RuntimeError:
            self._do([item])
            return
        asked = self._asked.get(loop)
        if asked is None:
            self._asked[loop] = asked = [item]
        else:
            asked.append(item)
        try:
            yield  # to all that is ready to run, and may ask too
        except BaseException:
            self._withdraw(loop, asked, item)
            raise
        if self._asked.get(loop) is asked:
            del self._asked[loop]
            self._do(asked)

    def _withdraw(self, loop: AbstractEventLoop, asked: Asked, item: Item) -> None:
        asked[:] = [one for one in asked if one is not item]
        if not asked and self._asked.get(loop) is asked:
            del self._asked[loop]

    def _do(self, asked: Asked) -> None:
        try:
            self._work(asked)
        except Exception as error:  # noqa: BLE001 - who has asked is told
            for item in asked:
                item[-1] = error, error.__traceback__
