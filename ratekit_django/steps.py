"""The waiting: deciding a request is written once, as a generator of steps, and these are what drives it in both colours."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from ratekit.decisions import Wanted
from ratekit.errors import RatekitError
from ratekit.results import RateLimitResult
from ratekit_django.conf import conf
from ratekit_django.requests import is_asgi

Answer = TypeVar("Answer")
_log = logging.getLogger("ratekit_django")
_need_a_thread: set[Any] = set()  # callables of the project's that may not run on an event loop


class Ask(NamedTuple):
    """A question to the project's own code about a request. What it answers may have to be awaited."""

    function: Callable[[Any], Any]
    request: Any
    awaited: Callable[[Any], Any] | None = None  # to be asked instead where there is an event loop

    def wait(self) -> Any:
        """Ask, and wait."""
        value = self.function(self.request)
        return _waited(value) if inspect.isawaitable(value) else value

    async def get(self) -> Any:
        """Ask, and await; in a thread what must not run on the event loop."""
        function = self.awaited or self.function
        if function not in _need_a_thread:
            try:
                value = function(self.request)
                return await value if inspect.isawaitable(value) else value
            except SynchronousOnlyOperation:
                _need_a_thread.add(function)
                _log.warning("%r uses the database, and runs in a thread for async views: make it async", function)
        return await sync_to_async(self.function)(self.request)


class Decide(NamedTuple):
    """A call for the store to decide."""

    wanted: Wanted
    request: Any

    def wait(self) -> RateLimitResult:
        """Decide, and wait."""
        one = self.wanted
        return conf.limiter(one.on_outage).decide(one.call, one.mode)

    async def get(self) -> RateLimitResult:
        """Decide, and await. A loop of one request keeps no connections: there, the limiter that waits has a thread."""
        one = self.wanted
        if is_asgi(self.request):
            return await conf.async_limiter(one.on_outage).decide(one.call, one.mode)
        return self.wait() if conf.limiter(one.on_outage).store.is_local else await sync_to_async(self.wait)()


Step = Ask | Decide
Steps = Generator[Step, Any, Answer]


def run(steps: Steps[Answer]) -> Answer:
    """Take every step, waiting."""
    try:
        step = next(steps)
        while True:
            try:
                value = step.wait()
            except (RatekitError, ValueError) as error:
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(steps: Steps[Answer]) -> Answer:
    """Take every step, awaiting."""
    try:
        step = next(steps)
        while True:
            try:
                value = await step.get()
            except (RatekitError, ValueError) as error:
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _waited(value: Any) -> Any:
    """Wait for something that has to be awaited; in a thread if an event loop runs in this one."""

    async def finish() -> Any:
        return await value

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return async_to_sync(finish)()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, finish()).result()
