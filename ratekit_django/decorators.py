"""`rate_limit` for function views and methods, and the mixin for class views, in both colours."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http.response import HttpResponseBase

from ratekit.core.errors import ConfigurationError
from ratekit.web.view_decorator import LimitDecorator, decorating, limits_on, marked
from ratekit.web.view_limit import ViewLimit, view_limit
from ratekit_django import logins as _logins  # noqa: F401 - it adds the outcomes that Django's signals tell of
from ratekit_django import responses, settling
from ratekit_django.decisions import adecide, decide
from ratekit_django.requests import Dispatch, RequestState


class RateLimit(LimitDecorator):
    """A limit as a decorator. Several on one view are decided together, all or nothing."""

    in_place_of_a_class = "use RateLimitMixin"

    @staticmethod
    def limited(view: Callable[..., Any], limits: tuple[ViewLimit, ...]) -> Callable[..., Any]:
        """Return a view that decides each request by some limits first, of the colour of the view."""
        return marked(_awaiting(view, limits) if _is_async(view) else _waiting(view, limits), view, limits)


rate_limit = decorating(view_limit, RateLimit)


class RateLimitMixin:
    """Limits a class view, sync or async: rate_limits is what rate_limit returns, a rate, or a list of them.

    Stands before View and its kind: `class Search(RateLimitMixin, View)`.
    """

    rate_limits: RateLimit | str | Iterable[RateLimit | str] = ()
    _ratekit_limits: tuple[ViewLimit, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        given = [cls.rate_limits] if isinstance(cls.rate_limits, RateLimit | str) else cls.rate_limits
        cls._ratekit_limits = tuple(_as_limit(one) for one in given)

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Decide the request, then let the view answer it."""
        view: Callable[..., Any] = super().dispatch  # type: ignore[misc]
        limits = self._ratekit_limits
        return (RateLimit.limited(view, limits) if limits else view)(request, *args, **kwargs)


def limits_of_view(view: Any) -> tuple[ViewLimit, ...]:
    """Return the limits that are declared on a view, whatever decorates it, or on its class."""
    on_class: tuple[ViewLimit, ...] = getattr(getattr(view, "view_class", None), "_ratekit_limits", ())
    return on_class + limits_on(view)


def _waiting(view: Callable[..., Any], limits: tuple[ViewLimit, ...]) -> Callable[..., Any]:
    name = _name_of(view)

    def limited_view(request: Any, *args: Any, **kwargs: Any) -> Any:
        with _dispatch_of(request, limits, name) as dispatch:
            response: Any = responses.respond(request, decide(limits, request, name))
            if response is None:
                try:
                    response = view(request, *args, **kwargs)
                except Exception as error:
                    if _ends_here(request, dispatch):
                        settling.conclude_exception(dispatch, request, error)
                        settling.settle_now(dispatch.ledger, dispatch.depth)
                    raise
            if inspect.isawaitable(response):
                return _finished(request, response, dispatch)
            response = _headed(request, response, dispatch)
            if _is_over(response, dispatch):
                settling.settle_now(dispatch.ledger, dispatch.depth)
            return response

    return limited_view


def _awaiting(view: Callable[..., Any], limits: tuple[ViewLimit, ...]) -> Callable[..., Any]:
    name = _name_of(view)

    async def limited_view(request: Any, *args: Any, **kwargs: Any) -> Any:
        with _dispatch_of(request, limits, name) as dispatch:
            response: Any = responses.respond(request, await adecide(limits, request, name))
            if response is None:
                return await _answered(request, partial(view, request, *args, **kwargs), dispatch)
            return _headed(request, response, dispatch)

    return limited_view


def _dispatch_of(request: Any, limits: tuple[ViewLimit, ...], name: str) -> Dispatch:
    """Begin the dispatch of a view: known by its limits, as a method is decorated anew for each call, and its name."""
    return RequestState.of(request).dispatch.inner((id(limits[0]), name))


async def _finished(request: Any, response: Awaitable[Any], dispatch: Dispatch) -> Any:
    with dispatch:
        return await _answered(request, lambda: response, dispatch)


async def _answered(request: Any, view: Callable[[], Any], dispatch: Dispatch) -> Any:
    """Let a view answer, awaiting, and end what is held for the request, unless the middleware will."""
    try:
        response = view()
        response = await response if inspect.isawaitable(response) else response
    except BaseException as error:
        if _ends_here(request, dispatch):
            if isinstance(error, Exception):
                settling.conclude_exception(dispatch, request, error)
            await settling.asettle_now(dispatch.ledger, dispatch.depth, request)
        raise
    response = _headed(request, response, dispatch)
    if _is_over(response, dispatch):
        await settling.asettle_now(dispatch.ledger, dispatch.depth, request)
    return response


def _ends_here(request: Any, dispatch: Dispatch) -> bool:
    """Whether no middleware sees the response of a view: there is none, or another view has called this one."""
    return dispatch.is_called_within or not RequestState.of(request).has_middleware


def _is_over(response: Any, dispatch: Dispatch) -> bool:
    """Whether a view that another one has called is over with its response: nobody closes it."""
    return dispatch.is_called_within and not getattr(response, "streaming", False)


def _headed(request: Any, response: Any, dispatch: Dispatch) -> Any:
    """Take note of what a view has answered: what calls it may answer something else. Then write the headers.

    The middleware writes them if there is one: it stands outside of what caches responses.
    """
    if not isinstance(response, HttpResponseBase):
        return response
    if not _ends_here(request, dispatch):
        settling.conclude_response(dispatch, request, response)
        return response
    if RequestState.of(request).has_middleware:
        settling.conclude_response(dispatch, request, response)
        settling.settle_on_close(dispatch, request, response)
        return response
    return responses.ended(request, response)


def _is_async(view: Callable[..., Any]) -> bool:
    """Whether a view is awaited. dispatch of an async class view is: a plain function that returns a coroutine."""
    if iscoroutinefunction(view) or iscoroutinefunction(getattr(view, "__call__", None)):  # noqa: B004 - not whether it can
        return True
    method = getattr(view, "func", view)  # method_decorator binds by a partial
    owner = getattr(method, "__self__", None)
    return getattr(method, "__name__", "") == "dispatch" and getattr(owner, "view_is_async", False) is True


def _name_of(view: Callable[..., Any]) -> str:
    return f"{getattr(view, '__module__', '')}.{getattr(view, '__qualname__', type(view).__qualname__)}"


def _as_limit(given: RateLimit | str) -> ViewLimit:
    if isinstance(given, str):
        return view_limit(limits=given)
    if not isinstance(given, RateLimit):
        raise ConfigurationError(f"rate_limits {given!r} is neither a rate nor what rate_limit returns")
    return given.limit
