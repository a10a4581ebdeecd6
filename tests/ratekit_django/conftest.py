"""A Django project, on an empty store, whose URLs and settings each test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils import translation

from ratekit.stores.memory import MemoryStore
from ratekit_django.conf import conf
from support import django_ready  # noqa: F401
from support.servers import Server

ADDRESS = "203.0.113.7"


@pytest.fixture(autouse=True)
def store(ratekit_store: MemoryStore) -> Iterator[MemoryStore]:
    """The empty memory:// store, with nothing left of other tests."""
    conf.reset()
    yield ratekit_store
    conf.reset()
    translation.deactivate()


@pytest.fixture
def keys(store: MemoryStore) -> Callable[[], list[str]]:
    """List the keys of the store: counters, without overrides."""
    return lambda: sorted(name.decode() for name in store.execute("KEYS", "ratelimit:"))


@pytest.fixture
def site(settings) -> Callable[..., Client]:
    """Set the URLs and RATEKIT of the project, and return a client of it."""

    def make(*patterns: Any, **ratekit: Any) -> Client:
        settings.ROOT_URLCONF = patterns
        settings.RATEKIT = ratekit
        return Client(raise_request_exception=False, REMOTE_ADDR=ADDRESS)

    return make


class Stack:
    """A colour of view in a colour of server: how a test writes a view, and how it sends a request."""

    def __init__(self, name: str, settings: Any) -> None:
        self.is_async_view = name.startswith("async view")
        self.is_asgi = name.endswith("ASGI")
        self._settings = settings

    def view(self, answer: Callable[..., Any] = lambda request: HttpResponse("hello")) -> Callable[..., Any]:
        """Return a view of this colour that answers like a plain function."""

        async def awaited(request, *args, **kwargs):
            return answer(request, *args, **kwargs)

        def waited(request, *args, **kwargs):
            return answer(request, *args, **kwargs)

        return awaited if self.is_async_view else waited

    def client(self, *patterns: Any, **ratekit: Any) -> Any:
        """Return something with get, post and so on, of a project with those URLs."""
        self._settings.ROOT_URLCONF = patterns
        self._settings.RATEKIT = ratekit
        if not self.is_asgi:
            return Client(raise_request_exception=False, REMOTE_ADDR=ADDRESS)
        return Waiting(AsyncClient(raise_request_exception=False))

    def limited(self, *decorators: Any, **ratekit: Any) -> Any:
        """Return a client of a project whose /x/ is decorated."""
        view = self.view()
        for decorator in reversed(decorators):
            view = decorator(view)
        return self.client(path("x/", view), **ratekit)


class Waiting:
    """An async client for tests that do not await: each request has an event loop of its own."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def __getattr__(self, method: str) -> Any:
        async def ask(*args: Any, **options: Any) -> Any:
            return await getattr(self._client, method)(*args, **options)

        return async_to_sync(ask)


@pytest.fixture(params=["view, WSGI", "async view, WSGI", "view, ASGI", "async view, ASGI"])
def stack(request, settings) -> Stack:
    """Views and servers of both colours."""
    return Stack(request.param, settings)


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """The server from the wheel, empty, with a generous deadline: these tests are about answers, not about time."""
    return f"{redis_server.url}?socket_timeout=5&socket_connect_timeout=5"
