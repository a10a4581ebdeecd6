"""Arguments that the limiters of every front take, checked when a limiter is declared."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ratekit.core.errors import ConfigurationError, UnusableRequestError, WrongTypeError
from ratekit.core.limits import MOST_REQUESTS, UNNAMED_POLICY, Limit, Policy
from ratekit.core.modes import RateLimitMode, as_mode, get_rate_limit_mode, weakest
from ratekit.core.outages import OnOutage, as_on_outage
from ratekit.web.table import RuleLimits, as_rule_policy

_log = logging.getLogger("ratekit.web")


def policy_of(
    max_requests: int | None, expiry: float | None, limits: RuleLimits | None, policy: Policy | Limit | None
) -> Policy:
    """Make the policy of a limiter that is declared on a route, of the one way in which it was given."""
    policy = _policy_given(max_requests, expiry, limits, policy)
    if policy.has_slots:
        raise ConfigurationError(
            "a concurrency limit has to hold its slot until the response has ended: use ratekit.asgi or ratekit.wsgi"
        )
    return policy


def check_endpoint(endpoint: str | None) -> str | None:
    """Return an endpoint that was given, or raise ConfigurationError if it is no name."""
    if endpoint is not None and (not isinstance(endpoint, str) or not endpoint):
        raise ConfigurationError(f"endpoint {endpoint!r} is not a text with something in it")
    return endpoint


def _policy_given(
    max_requests: int | None, expiry: float | None, limits: RuleLimits | None, policy: Policy | Limit | None
) -> Policy:
    given = [max_requests is not None or expiry is not None, limits is not None, policy is not None]
    if sum(given) != 1:
        raise ConfigurationError("give exactly one of max_requests with expiry, limits, or policy")
    if policy is not None and not isinstance(policy, Policy | Limit):
        raise ConfigurationError(f"policy {policy!r} is neither a Policy nor a Limit")
    if policy is not None or limits is not None:
        return as_rule_policy(UNNAMED_POLICY, policy if policy is not None else limits)  # type: ignore[arg-type]
    if max_requests is None or expiry is None:
        raise ConfigurationError(f"max_requests {max_requests!r} and expiry {expiry!r} have to be given together")
    try:
        return Policy(UNNAMED_POLICY, [Limit(max_requests, expiry)])
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("window", "expiry", 1)) from None


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


def checked_cost(cost: int | Callable[[Any], Any]) -> int | Callable[[Any], Any]:
    """Return a cost as it was given, or raise ConfigurationError if it is neither a number nor a callable."""
    if not callable(cost) and (type(cost) is not int or not 0 <= cost <= MOST_REQUESTS):
        raise ConfigurationError(f"cost {cost!r} is neither a whole number of 0 or more nor a callable of the request")
    return cost


def cost_of(cost: int | Callable[[Any], Any], request: Any) -> int:
    """Return the cost of a request. A number that cannot be spent refuses the request; another type is a bug."""
    try:
        value = cost(request) if callable(cost) else cost
    except ValueError as error:
        raise untold("what it costs", error) from None
    if type(value) is not int:
        raise wrong_type("cost", value, "an integer")
    if not 0 <= value <= MOST_REQUESTS:
        raise UnusableRequestError(f"the cost of the request is {value}, not a whole number of 0 to {MOST_REQUESTS}")
    return value


def untold(what: str, error: ValueError) -> UnusableRequestError:
    """Return the 400 for a request of which a callable of the application can make nothing.

    Neither clients nor logs see the words of the error, which may have a secret in them; the level DEBUG has its traceback.
    """
    _log.debug("%s cannot be told from a request", what, exc_info=error)
    return UnusableRequestError(f"{what} cannot be told from the request")


def wrong_type(what: str, answer: object, wanted: str) -> WrongTypeError:
    """Return the error for an answer of a callable of the application that is a bug. It is logged, without the value."""
    error = WrongTypeError(f"{what} gave a value of the type {type(answer).__name__}: it has to be {wanted}")
    _log.error("%s", error)
    return error
