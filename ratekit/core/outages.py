"""What went wrong with a store, and what to do then: pure functions over errors and their texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from ratekit.core.errors import ConfigurationError

Answer = TypeVar("Answer")

# States in which a server cannot decide now, and will be able to later.
_STATES = (
    "LOADING", "READONLY", "OOM", "MISCONF", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNKILLABLE",
    "MOVED", "ASK",
)  # fmt: skip
# Faults of how the server or the client is set up, which waiting does not mend.
_FAULTS = ("NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "DENIED", "NOPROTO")
_WORD = r"(?<![A-Z])-?(" + "|".join(_STATES + _FAULTS) + r")\b"  # compiled when there is an outage, not at import


# A right that a script's user lacks is told without a word in capitals, and in other words by each release.
_NO_RIGHT = r"user executing the script can't|ACL failure in script|has no permissions to (?:run|access)"
# The script names its own line in its errors. A command that the server does not have is no bug of the script, though.
_BUG = r"user_script:\s*\d"
_NO_COMMAND = r"Unknown Redis command|command is not allowed from script"


_REFUSALS = ("noauth", "wrongpass", "noperm", "denied")


class OnOutage(StrEnum):
    """What a limiter does when the store cannot tell: let pass, refuse, or count a share of the limit itself."""

    OPEN = "open"
    CLOSED = "closed"
    LOCAL = "local"


def as_on_outage(value: str) -> OnOutage:
    """Return the choice of that name, or raise ConfigurationError."""
    try:
        return OnOutage(value)
    except ValueError:
        raise ConfigurationError(f"on_outage {value!r} is unknown: it is one of {', '.join(OnOutage)}") from None


class Outage(NamedTuple):
    """Why a store could not decide. `reason` is one word, fit for a metric's label."""

    reason: str
    message: str
    is_fault: bool = False  # of configuration: an operator has to mend it
    is_in_doubt: bool = False  # the call was sent and not answered: the store may have decided it

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


def sentence(who: str, reason: str) -> str:
    """Return what is wrong with a server: that it does not answer, or that it has answered, and refuses."""
    verb = "refuses" if reason.partition(":")[0] in _REFUSALS else "does not answer"
    return f"{who} {verb}: {reason}"


class StoreOutage(Exception):
    """The store could not decide a call. Does not leave the limiters."""

    def __init__(self, outage: Outage) -> None:
        super().__init__(str(outage))
        self.outage = outage


def or_outage(run: Callable[[Any], Answer], call: Any) -> Answer | StoreOutage:
    """Return what a store answers to a call, or the outage that it raises."""
    try:
        return run(call)
    except StoreOutage as outage:
        return outage


# Client libraries cut the word off and raise a class instead.
_CLASSES = {
    "AskError": "ASK",
    "AuthenticationError": "NOAUTH",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


def classify_error(error: Exception) -> Outage | None:
    """Return the outage that a client's exception means by its class or its text; None if neither says so."""
    for kind in type(error).__mro__:
        word = _CLASSES.get(kind.__name__)
        if word is not None:
            return Outage(word.lower(), str(error), is_fault=word in _FAULTS)
    return classify_reply(str(error))


def classify_reply(message: str) -> Outage | None:
    """Return the outage that a server's error reply means, or None if it is neither a state nor a known fault.

    Redis 6.2 wraps errors met inside a script in text, so the word is looked for anywhere.
    """
    match = re.search(_WORD, message)
    if not match and re.search(_NO_RIGHT, message):
        return Outage("noperm", message, is_fault=True)
    if not match:
        return Outage("max_clients", message) if "max number of clients" in message else None
    word = match[1]
    return Outage(word.lower(), message, is_fault=word in _FAULTS)


def is_bug(message: str) -> bool:
    """Whether an error reply comes from a bug in the script, and not from a server, a proxy, or how they are set up."""
    return re.search(_BUG, message) is not None and re.search(_NO_COMMAND, message) is None


def unknown_error(message: str) -> Outage:
    """Return the outage of an error reply of no known kind: a quota, a proxy, a renamed command. An operator has to look."""
    shown, _, _ = message.partition(", with args beginning with")  # which are the keys: subjects are nobody's business
    return Outage("error", shown, is_fault=True)


def outage_in(message: str) -> StoreOutage:
    """Return the outage that a server's error on one call means; an error of no known kind is a fault to be mended."""
    return StoreOutage(classify_reply(message) or unknown_error(message))
