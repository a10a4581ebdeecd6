"""`rate_limit` for view functions, methods of class views, and blueprints."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flask import Blueprint, current_app
from flask.views import MethodView

from ratekit.flask.extension import enforce
from ratekit.web.view_decorator import LimitDecorator, decorating, marked
from ratekit.web.view_limit import ViewLimit, view_limit

Limitable = TypeVar("Limitable", bound="Callable[..., Any] | Blueprint")
_LIMITS = "_ratekit_limits"  # of a blueprint


class RateLimit(LimitDecorator):
    """A limit as a decorator. Several on one view, or on one blueprint, are decided together, all or nothing."""

    in_place_of_a_class = "put it into its list `decorators`"

    def __call__(self, view: Limitable) -> Limitable:
        """Return the view, limited; or limit every route of a blueprint, each by itself unless endpoint= names one."""
        if not isinstance(view, Blueprint):
            return super().__call__(view)
        _limit_blueprint(view, self.limit)
        return view

    @staticmethod
    def limited(view: Callable[..., Any], limits: tuple[ViewLimit, ...]) -> Callable[..., Any]:
        """Return a view that decides each request first. Flask has the async ones awaited, here by ensure_sync."""
        is_async = inspect.iscoroutinefunction(view)

        def limited_view(*args: Any, **kwargs: Any) -> Any:
            enforce(limits, _methods_of(view, args))
            return (current_app.ensure_sync(view) if is_async else view)(*args, **kwargs)

        return marked(limited_view, view, limits)


rate_limit = decorating(view_limit, RateLimit)


def _methods_of(view: Callable[..., Any], args: Sequence[Any]) -> list[str] | None:
    """Return the method that a view is for, if it is a method of a class view: get, post and so on."""
    return [view.__name__.upper()] if args and isinstance(args[0], MethodView) else None


def _limit_blueprint(blueprint: Blueprint, limit: ViewLimit) -> None:
    limits: list[ViewLimit] | None = getattr(blueprint, _LIMITS, None)
    if limits is None:
        limits = []
        setattr(blueprint, _LIMITS, limits)
        blueprint.before_request(lambda: enforce(limits) and None)
    limits.append(limit)


def limits_of_blueprint(blueprint: object) -> Sequence[ViewLimit]:
    """Return the limits of a blueprint."""
    return getattr(blueprint, _LIMITS, ())
