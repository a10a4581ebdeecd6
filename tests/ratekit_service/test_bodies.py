"""Bodies of requests: those that are there at once, those that come later, and those that never end."""

from __future__ import annotations

import asyncio

import pytest

from ratekit_service.checks.bodies import BodyReader, ClientGone, within
from ratekit_service.problems import Problem


def receiving(*parts: bytes | None, pause: float | None = None):
    """Return a `receive` that gives parts of a body, None for a client that is gone; pausing before each, if it shall."""
    left = list(parts)

    async def receive():
        if pause is not None:
            await asyncio.sleep(pause)
        part = left.pop(0)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    return receive


@pytest.mark.parametrize("pause", [None, 0, 0.001])
async def test_body_is_whole_however_it_comes(pause):
    reader = BodyReader(10, 5)
    assert await reader.read(None, receiving(b"abc", pause=pause)) == b"abc"
    assert await reader.read(b"6", receiving(b"ab", b"", b"cdef", pause=pause)) == b"abcdef"
    with pytest.raises(ClientGone):
        await reader.read(None, receiving(b"ab", None, pause=pause))
    for parts in ([b"x" * 11], [b"x" * 6, b"x" * 6]):
        with pytest.raises(Problem, match="larger than 10 bytes"):
            await reader.read(None, receiving(*parts, pause=pause))


async def test_body_that_is_said_to_be_too_large_is_not_read():
    with pytest.raises(Problem, match="larger than 10 bytes"):
        await BodyReader(10, 5).read(b"11", receiving())
    with pytest.raises(Problem, match="larger than 10 bytes"):
        await BodyReader(10, 5).read(b"9" * 5000, receiving())


async def test_body_that_does_not_come_ends_in_a_408():
    with pytest.raises(Problem, match=r"within 0\.01 s") as raised:
        await BodyReader(10, 0.01).read(None, receiving(b"late", pause=5))
    assert raised.value.status == 408
    assert (b"connection", b"close") in raised.value.headers  # or the rest might come for ever


async def test_work_that_is_cancelled_while_it_waits_knows_it():
    ended = []

    async def work():
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            ended.append("cancelled")
            await asyncio.sleep(0)  # it may even wait once more
            raise

    task = asyncio.create_task(within(5, work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


async def test_work_within_a_time_raises_what_it_raises():
    async def work(pause: bool):
        if pause:
            await asyncio.sleep(0)
        raise LookupError("mine")

    for pause in (False, True):
        with pytest.raises(LookupError, match="mine"):
            await within(5, work(pause))
