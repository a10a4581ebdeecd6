"""The end of a request: what was reserved for it is settled when its response is closed, after the last byte.

A view that another view calls makes no response of its own that a server closes: there, the end is when the view returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any

from asgiref.sync import async_to_sync
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import FileResponse, Http404
from django.http.multipartparser import MultiPartParserError

from ratekit.limiter.limiters import shielded
from ratekit.web.charging import ResponseHead, joined
from ratekit.web.drivers import arun, run
from ratekit.web.ledger import Ledger
from ratekit.web.settling import conclude, fail, finish
from ratekit_django.conf import conf
from ratekit_django.decisions import awaited_limiter
from ratekit_django.requests import Dispatch, RequestState

_BAD = (BadRequest, SuspiciousOperation, MultiPartParserError)


def conclude_response(dispatch: Dispatch, request: Any, response: Any) -> None:
    """Take note of a response, before headers are written on it, and remove those headers that only ratekit reads."""
    if not dispatch.ledger.is_held:
        return
    headers = joined(response.headers.items())
    head = ResponseHead(response.status_code, headers, response, request)
    for name in conclude(dispatch.ledger, head, dispatch.depth):
        del response.headers[name]


def settle_on_close(dispatch: Dispatch, request: Any, response: Any) -> _Closer | None:
    """Settle what was reserved when the server closes the response. Returns what settles; None if there is nothing."""
    if not dispatch.ledger.is_held:
        return None
    if response.streaming and not isinstance(response, FileResponse):
        content = response.streaming_content
        is_async = response.is_async
        response.streaming_content = _awaited(dispatch, request, content) if is_async else _watched(dispatch, content)
    closer = _Closer(dispatch.ledger, dispatch.depth, request)
    response._resource_closers.append(closer)  # noqa: SLF001 - as Django does with the files of a response
    return closer


def conclude_exception(dispatch: Dispatch, request: Any, error: Exception) -> None:
    """Take note of an exception that a view has raised, by the status that Django answers it with."""
    known = 404 if isinstance(error, Http404) else 403 if isinstance(error, PermissionDenied) else None
    status = 400 if isinstance(error, _BAD) else known
    if status is None:
        fail(dispatch.ledger, dispatch.depth, request)
    elif dispatch.ledger.is_held:
        conclude(dispatch.ledger, ResponseHead(status, request=request), dispatch.depth)


def settle_now(ledger: Ledger, depth: int) -> None:
    """Settle what was reserved, waiting."""
    if ledger.is_held:
        run(finish(ledger, conf.limiter().store.place, depth), conf.limiter())


async def asettle_now(ledger: Ledger, depth: int, request: Any) -> None:
    """Settle what was reserved, awaiting, even if the request is cancelled meanwhile."""
    if ledger.is_held:
        await shielded(arun(finish(ledger, conf.limiter().store.place, depth), awaited_limiter(request)))


class _Closer:
    """Settles when a response is closed. A copy of the response, as in a cache, has nothing to settle."""

    def __init__(self, ledger: Ledger, depth: int = 0, request: Any = None) -> None:
        self._ledger = ledger
        self._depth = depth
        self._request = request

    def __call__(self) -> None:
        if self._ledger.is_held and RequestState.of(self._request).is_awaited and not _runs_a_loop():
            async_to_sync(asettle_now)(
                self._ledger, self._depth, self._request
            )  # on the loop of the server, which waits in this thread
        else:
            settle_now(self._ledger, self._depth)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (Ledger(),)


def _runs_a_loop() -> bool:
    """Whether an event loop runs in this thread, which must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _watched(dispatch: Dispatch, content: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from content
    except Exception:
        fail(dispatch.ledger, dispatch.depth)
        raise


async def _awaited(dispatch: Dispatch, request: Any, content: AsyncIterable[Any]) -> AsyncIterator[Any]:
    try:
        async for part in content:
            yield part
    except Exception:
        fail(dispatch.ledger, dispatch.depth)
        await asettle_now(
            dispatch.ledger, dispatch.depth, request
        )  # Django does not close a response whose stream fails under ASGI
        raise
