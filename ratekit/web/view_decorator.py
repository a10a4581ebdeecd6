"""`rate_limit`, as far as it is the same in Django and Flask: a limit as a decorator, and what a limited view is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ratekit.core.errors import ConfigurationError
from ratekit.web.view_limit import ViewLimit

Arguments = ParamSpec("Arguments")
View = TypeVar("View", bound=Callable[..., Any])
_MARK = "_ratekit_limited"


class Limited(NamedTuple):
    """What a decorated view is made of. Other decorators copy it; own_id tells whose it is."""

    own_id: int
    view: Callable[..., Any]
    limits: tuple[ViewLimit, ...]


class LimitDecorator(ABC):
    """A limit as a decorator. Several on one view are decided together, all or nothing."""

    in_place_of_a_class: str  # what to do where somebody decorates a class

    def __init__(self, limit: ViewLimit) -> None:
        self.limit = limit

    def __call__(self, view: View) -> View:
        """Return the view, limited. Directly on a view that is limited already, it joins the limits of that one."""
        if isinstance(view, type):
            raise ConfigurationError(f"rate_limit cannot decorate the class {view.__qualname__}: {self.in_place_of_a_class}")
        inner = getattr(view, _MARK, None)
        if inner is not None and inner.own_id == id(view):
            return self.limited(inner.view, (self.limit, *inner.limits))  # type: ignore[return-value]
        return self.limited(view, (self.limit,))  # type: ignore[return-value]

    @staticmethod
    @abstractmethod
    def limited(view: Callable[..., Any], limits: tuple[ViewLimit, ...]) -> Callable[..., Any]:
        """Return a view that decides each request by some limits first."""


Decorator = TypeVar("Decorator", bound=LimitDecorator)


def decorating(make: Callable[Arguments, ViewLimit], kind: type[Decorator]) -> Callable[Arguments, Decorator]:
    """Return `rate_limit`: the arguments make a limit, and that a decorator."""

    @wraps(make)
    def rate_limit(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Decorator:
        return kind(make(*args, **kwargs))

    rate_limit.__name__ = rate_limit.__qualname__ = "rate_limit"
    return rate_limit


def marked(wrapper: Callable[..., Any], view: Callable[..., Any], limits: tuple[ViewLimit, ...]) -> Callable[..., Any]:
    """Return the wrapper of a view, with the view's name and the mark that says what it is made of."""
    wrapper = wraps(view)(wrapper)
    setattr(wrapper, _MARK, Limited(id(wrapper), view, limits))
    return wrapper


def limits_on(view: Any) -> tuple[ViewLimit, ...]:
    """Return the limits that are declared on a view, whatever decorates it."""
    mark: Limited | None = getattr(view, _MARK, None)
    return () if mark is None else mark.limits
