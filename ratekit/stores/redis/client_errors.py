"""The exceptions of a client library, and the outages that they mean."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import NoReturn

from ratekit.core.errors import ConfigurationError
from ratekit.core.outages import Outage, StoreOutage, classify_error, is_bug, unknown_error

_EXCEPTION = r"\b[A-Z]\w*(?:Error|Exception)\((['\"])(.*?)\1,?\)"  # ConnectionError('Connection refused')


@dataclass(frozen=True, slots=True)
class ClientErrors:
    """The exceptions of redis-py or valkey-py that ratekit tells apart."""

    every: tuple[type[Exception], ...]  # that a client raises for an outage or an error reply
    connection: type[Exception]
    timeout: type[Exception]
    response: type[Exception]
    invalid: type[Exception]


def errors_of(client: object) -> ClientErrors:
    """Return the exceptions that a client or a connection raises. Raises ConfigurationError if it is of another library."""
    roots = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
    root = next((root for root in roots if root in {"redis", "valkey"}), None)
    if root is None:
        raise ConfigurationError(
            f"store of type {type(client).__name__!r} is neither a URL nor a client of redis-py or valkey-py"
        )
    module = importlib.import_module(f"{root}.exceptions")
    own = [getattr(module, f"{root.title()}{name}") for name in ("Error", "ClusterException")]
    return ClientErrors(
        (*own, OSError), module.ConnectionError, module.TimeoutError, module.ResponseError, module.InvalidResponse
    )


def outage_of(error: Exception, errors: ClientErrors) -> Outage | None:
    """Return the outage that an exception of the client means, or None for a bug in the script, which has to surface."""
    if isinstance(error, errors.response) and classify_error(error) is None and is_bug(str(error)):
        return None
    return any_outage_of(error, errors)


def any_outage_of(error: Exception, errors: ClientErrors) -> Outage:
    """Return the outage that an exception means where there is nobody to raise a bug to: then it is a fault to be mended.

    The exception came after a call was sent: silence, or a connection that was cut, leaves in doubt whether it was decided.
    """
    outage = _outage_of(error, errors)
    return outage._replace(message=_sentence(outage.message))


def _outage_of(error: Exception, errors: ClientErrors) -> Outage:
    if isinstance(error, errors.timeout | TimeoutError):
        return Outage("timeout", str(error), is_in_doubt=True)
    known = classify_error(error)
    if known is not None:
        return known
    if isinstance(error, errors.response):
        return unknown_error(str(error))
    if isinstance(error, errors.invalid):
        return Outage("protocol", str(error), is_in_doubt=True)
    return Outage("connection", f"{type(error).__name__}: {error}", is_in_doubt=True)


def _sentence(message: str) -> str:
    """Return a client's message on one line, without the objects and the exceptions that it prints as Python does."""
    line = re.sub(_EXCEPTION, r"\2", _without_objects(" ".join(message.split())))
    return re.sub(r"\s*([:,])\s+-\s", r"\1 ", line)


def _without_objects(text: str) -> str:
    """Return a text without the likes of "<redis.client.Redis(<redis.connection.ConnectionPool(…)>)>"."""
    parts, kept, depth = re.split("([<>])", text), [], 0
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        depth += part == "<" and (depth > 0 or re.match(r"[a-z_]+\.", following) is not None)
        if not depth:
            kept.append(part)
        depth -= part == ">" and depth > 0
    return "".join(kept)


def raise_outage(error: Exception, errors: ClientErrors) -> NoReturn:
    """Raise the outage that an exception of the client means, or the exception itself if it is a bug."""
    outage = outage_of(error, errors)
    if outage is None:
        raise error
    raise StoreOutage(outage) from error


def greeting_outage(error: Exception, errors: ClientErrors) -> Outage | None:
    """Return why a new connection cannot be used, or None if only the greeting (PING) is forbidden."""
    outage = connecting_outage(error, errors)
    return None if outage.reason == "noperm" else outage


def connecting_outage(error: Exception, errors: ClientErrors) -> Outage:
    """Return why there is no connection. No call was sent, so nothing is in doubt."""
    return any_outage_of(error, errors)._replace(is_in_doubt=False)
