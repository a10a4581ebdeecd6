"""Work of many requests, done in one go.

Between two steps of one request a server does much else, and by then the processor has forgotten the code and the data of a
decision: alone, it takes several times as long as right after another one. So what is asked for in one turn of an event loop
is done in the next one, all of it one after the other. Nothing waits for a timer, nor for anything outside the process.
"""

from __future__ import annotations

import types
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Generator
from typing import Any, TypeVar

Made = TypeVar("Made")
_UNDONE: Any = object()
_asked: dict[AbstractEventLoop, list[list[Any]]] = {}  # what is not yet done, in each event loop


@types.coroutine
def gathered(work: Callable[..., Made], *arguments: Any) -> Generator[None, None, Made]:
    """Do some work with that of others, in the context of any of them, and return what it has made.

    It is not done for who is cancelled before. Where there is no event loop of asyncio, it is done at once.
    """
    try:
        loop = get_running_loop()
    except RuntimeError:
        return work(*arguments)
    mine: list[Any] = [work, arguments, _UNDONE, None]
    if loop in _asked:
        _asked[loop].append(mine)
    else:
        _asked[loop] = [mine]
    try:
        yield  # to all that is ready to run, and may ask too
    except BaseException:
        _withdraw(loop, mine)
        raise
    if mine[2] is _UNDONE:
        _do(_asked.pop(loop, [mine]))
    if mine[3] is not None:
        raise mine[3]
    made: Made = mine[2]
    return made


def _withdraw(loop: AbstractEventLoop, mine: list[Any]) -> None:
    if rest := [one for one in _asked.pop(loop, ()) if one is not mine]:
        _asked[loop] = rest


def _do(asked: list[list[Any]]) -> None:
    for one in asked:
        one[2] = None
        try:
            one[2] = one[0](*one[1])
        except Exception as error:  # noqa: BLE001 - who has asked is told
            one[3] = error
