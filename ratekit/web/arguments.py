"""Arguments that the limiters of every front take, checked when a limiter is declared."""

from __future__ import annotations

import difflib
import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ratekit.core.errors import ConfigurationError, UnusableRequestError, WrongTypeError
from ratekit.core.limits import MOST_REQUESTS
from ratekit.core.modes import RateLimitMode, as_mode, get_rate_limit_mode, weakest
from ratekit.core.outages import OnOutage, as_on_outage

_log = logging.getLogger("ratekit.web")


def is_awaited(function: object) -> bool:
    """Whether a callable is known to answer with something that has to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(vars(type(function)).get("__call__"))


def check_endpoint(endpoint: str | None) -> str | None:
    """Return an endpoint that was given, or raise ConfigurationError if it is no name."""
    if endpoint is not None and (not isinstance(endpoint, str) or not endpoint):
        raise ConfigurationError(f"endpoint {endpoint!r} is not a text with something in it")
    return endpoint


def checked_counter(counter: str | Callable[[Any], Any] | None) -> str | Callable[[Any], Any] | None:
    """Return what several limits are counted under, or raise ConfigurationError if it neither is a name nor says one."""
    if counter is None or callable(counter) or (isinstance(counter, str) and counter):
        return counter
    raise ConfigurationError(f"counter {counter!r} is neither a name nor a callable of the request")


def counter_answered(answer: object) -> str:
    """Return what a callable has answered as the name of a counter; anything but a text is a bug of the application."""
    if isinstance(answer, str) and answer:
        return answer
    raise wrong_type("counter", answer, "a text with something in it")


def refuse_unknown(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a TypeError that names the argument that was probably meant, if one is unknown."""
    choices = sorted(known)
    for name in given:
        if name not in choices:
            close = difflib.get_close_matches(name, choices, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(choices)}"
            raise TypeError(f"{function}() got an unexpected argument {name!r}: {hint}")


def checked_mode(mode: str | RateLimitMode | None) -> RateLimitMode | None:
    """Return a limiter's own mode, if it has one; read the global one too, so that a wrong one is an error at start."""
    get_rate_limit_mode()
    return None if mode is None else as_mode(mode)


def mode_reader(own: RateLimitMode | None) -> Callable[[], RateLimitMode]:
    """Return a function that reads the mode of a limiter: the weaker of the global one and its own."""
    return get_rate_limit_mode if own is None else partial(current_mode, own)


def current_mode(own: RateLimitMode | None = None) -> RateLimitMode:
    """Return the mode of a limiter now: the weaker of the global one and its own."""
    mode = get_rate_limit_mode()
    return mode if own is None else weakest(mode, own)


def checked_on_outage(on_outage: str | None) -> OnOutage | None:
    """Return what a limiter does in an outage, if it says so itself."""
    return None if on_outage is None else as_on_outage(on_outage)


def checked_block(block: bool) -> bool:
    """Return whether a limiter refuses, or raise ConfigurationError if it is neither True nor False."""
    return _checked_switch("block", block)


def checked_per_route(per_route: bool) -> bool:
    """Return whether each route counts for itself, or raise ConfigurationError if it is neither True nor False."""
    return _checked_switch("per_route", per_route)


def _checked_switch(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} {value!r} is neither True nor False")
    return value


def blocking_mode(mode: RateLimitMode, *, block: bool) -> RateLimitMode:
    """Return the mode of a limiter: one that does not block is monitored where others are enforced."""
    return mode if block or mode is not RateLimitMode.ON else RateLimitMode.MONITOR


def checked_cost(cost: Any, name: str = "cost") -> Any:
    """Return a cost as it was given, or raise ConfigurationError if it is no number, no numbers by unit, and no callable."""
    numbers = [] if callable(cost) else list(cost.values()) if isinstance(cost, Mapping) else [cost]
    if any(type(number) is not int or not 0 <= number <= MOST_REQUESTS for number in numbers) or cost == {}:
        raise ConfigurationError(
            f"{name} {cost!r} is neither a whole number of 0 or more, nor one for each unit, nor a callable of the request"
        )
    return dict(cost) if isinstance(cost, Mapping) else cost


def cost_of(
    cost: int | Mapping[str, int] | Callable[[Any], Any], request: Any, name: str = "cost"
) -> int | Mapping[str, int]:
    """Return the cost of a request. A number that cannot be spent refuses the request; another type is a bug.

    name is the argument that says what it costs.
    """
    try:
        value = cost(request) if callable(cost) else cost
    except ValueError as error:
        raise untold("what it costs", error) from None
    numbers = list(value.values()) if isinstance(value, Mapping) else [value]
    for number in numbers:
        if type(number) is not int:
            raise wrong_type(name, number, "an integer, or one for each unit")
        if not 0 <= number <= MOST_REQUESTS:
            raise UnusableRequestError(f"the {name} of the request is {number}, not a whole number of 0 to {MOST_REQUESTS}")
    return value


_told: set[str] = set()  # where errors were raised that were logged
_MOST_TOLD = 1000


def _place(error: Exception) -> str:
    """Return the line of code that has raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "an unknown place"


def untold(what: str, error: ValueError) -> UnusableRequestError:
    """Return the 400 for a request of which a callable of the application can make nothing.

    Neither clients nor logs see the words of the error, which may have a secret in them; the level DEBUG has its traceback.
    Where it was raised is logged once: it may be a bug, and not the client's fault.
    """
    _log.debug("%s cannot be told from a request", what, exc_info=error)
    place = _place(error)
    if place not in _told and len(_told) < _MOST_TOLD:
        _told.add(place)
        _log.warning(
            "%s cannot be told from a request, which is a 400: %s in %s; said once", what, type(error).__name__, place
        )
    return UnusableRequestError(f"{what} cannot be told from the request")


def wrong_type(what: str, answer: object, wanted: str) -> WrongTypeError:
    """Return the error for an answer of a callable of the application that is a bug. It is logged, without the value."""
    error = WrongTypeError(f"{what} gave a value of the type {type(answer).__name__}: it has to be {wanted}")
    _log.error("%s", error)
    return error
