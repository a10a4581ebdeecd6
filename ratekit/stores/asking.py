"""What is said to a server so that it decides a batch of calls, whoever carries it there: no I/O here.

A conversation is a generator: it yields what to ask, and is sent the replies. An error that the server replies with is a
reply here, an exception that is not raised.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

from ratekit import clock
from ratekit.errors import ConfigurationError
from ratekit.figures import FIGURES
from ratekit.outage import Outage, StoreOutage, classify_error, outage_in
from ratekit.plans import plan_of
from ratekit.protocol import Call, pack, pack_one, unpack
from ratekit.stores import script
from ratekit.stores.locations import Address

_MOST_TURNS = 16
_WORDS = {"NoScriptError": "NOSCRIPT", "MovedError": "MOVED", "AskError": "ASK", "TryAgainError": "TRYAGAIN"}
Command = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ClientErrors:
    """The exceptions of a client library that we tell apart."""

    every: type[Exception]
    connection: type[Exception]
    timeout: type[Exception]
    response: type[Exception]
    invalid: type[Exception]


def errors_of(client: object) -> ClientErrors:
    """Return the exceptions that a client or a connection raises: redis-py's, or those of a library of the same shape."""
    roots = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
    root = next((root for root in roots if root in {"redis", "valkey"}), None)
    if root is None:
        raise ConfigurationError(
            f"store of type {type(client).__name__!r} is neither a URL nor a client of redis-py or valkey-py"
        )
    module = importlib.import_module(f"{root}.exceptions")
    every = getattr(module, "RedisError", None) or module.ValkeyError
    return ClientErrors(every, module.ConnectionError, module.TimeoutError, module.ResponseError, module.InvalidResponse)


def outage_of(error: Exception, errors: ClientErrors) -> Outage | None:
    """Return the outage that an exception of the client means; None if it is a bug, which has to surface."""
    if isinstance(error, errors.timeout | TimeoutError):
        return Outage("timeout", str(error))
    known = classify_error(error)
    if known is not None or isinstance(error, errors.response):
        return known
    if isinstance(error, errors.invalid):
        return Outage("protocol", str(error))
    return Outage("connection", f"{type(error).__name__}: {error}")


def raise_outage(error: Exception, errors: ClientErrors) -> NoReturn:
    """Raise the outage that an exception of the client means, or the exception if it is a bug."""
    outage = outage_of(error, errors)
    if outage is None:
        raise error
    raise StoreOutage(outage) from error


class Routes(Protocol):
    """Where slots live, and what servers say about that."""

    def address_of(self, calls: Sequence[Call]) -> Address:
        """Return the address of the server that has the slot of some calls."""

    def moved(self, calls: Sequence[Call], address: Address) -> None:
        """Take note that the slot of some calls lives elsewhere now."""


class Ask(NamedTuple):
    """Commands for one server; the last one's reply counts. No address: the only server there is."""

    address: Address | None
    commands: tuple[Command, ...]


Conversation = Generator[Ask, Sequence[Any], list[Sequence[int] | str]]


def deciding(calls: Sequence[Call], errors: ClientErrors, routes: Routes | None = None) -> Conversation:
    """Let a server decide calls that share a slot. Nothing is said again that may have been done."""
    reply = yield from _evaluating(calls, errors, routes)
    if isinstance(reply, Exception):
        return (yield from _deciding_apart(calls, errors, routes))
    return _unpacked(calls, reply)


def _evaluating(calls: Sequence[Call], errors: ClientErrors, routes: Routes | None) -> Generator[Ask, Sequence[Any], Any]:
    """Run the script: by its name, and by its text if the server has forgotten it."""
    command = evaluation(calls)
    reply = yield from _redirected(command, calls, errors, routes)
    if isinstance(reply, Exception) and _word_of(reply) == "NOSCRIPT":
        reply = yield from _redirected(("EVAL", script.read("ratekit"), *command[2:]), calls, errors, routes)
    return reply


def _redirected(
    command: Command, calls: Sequence[Call], errors: ClientErrors, routes: Routes | None
) -> Generator[Ask, Sequence[Any], Any]:
    """Ask where a Cluster says that the slot is now. Returns the reply, or the error that another way may help against."""
    address = None if routes is None else routes.address_of(calls)
    before: tuple[Command, ...] = ()
    for _ in range(_MOST_TURNS):
        reply = (yield Ask(address, (*before, command)))[-1]
        word = _word_of(reply) if isinstance(reply, Exception) else ""
        if not word or word == "NOSCRIPT" or (word == "TRYAGAIN" and routes is not None):
            return reply
        if routes is None or word not in ("MOVED", "ASK"):
            raise_outage(reply, errors)
        address, before = _address_in(reply), (("ASKING",),) if word == "ASK" else ()
        if word == "MOVED":
            routes.moved(calls, address)
    raise StoreOutage(Outage("moved", f"the slot was not found in {_MOST_TURNS} places"))


def _deciding_apart(calls: Sequence[Call], errors: ClientErrors, routes: Routes | None) -> Conversation:
    """Decide calls one by one while their slot moves to another server.

    Then no server decides by two keys of which one is not there, which is what an override's usually is: a call whose
    override does not exist is decided without it.
    """
    answers: list[Sequence[int] | str] = []
    for call in calls:
        override = call.keys[0] if call.compiled.overrides else None
        exists = override is None or (yield from _redirected(("EXISTS", override), calls, errors, routes))
        reply = yield from _evaluating([call if exists else _without_overrides(call)], errors, routes)
        if isinstance(reply, Exception):
            answers.append("TRYAGAIN the slot is being moved, and the keys of this call are not in one place")
        else:
            answers += _unpacked([call], reply)
    return answers


def _unpacked(calls: Sequence[Call], reply: Any) -> list[Sequence[int] | str]:
    """Take a reply apart. What is none of the script's was said by somebody else, in between."""
    try:
        answers = unpack(calls, reply)
    except (TypeError, IndexError) as error:
        raise StoreOutage(Outage("protocol", f"the reply {str(reply)[:100]!r} is none of the script's")) from error
    for call, answer in zip(calls, answers, strict=True):
        if not isinstance(answer, str) and len(answer) != FIGURES * len(call.compiled.limits):
            raise StoreOutage(Outage("protocol", f"the reply has {len(answer)} figures for {call.compiled.policy!r}"))
    return answers


def figures_in(answer: Sequence[int] | str) -> Sequence[int]:
    """Return the figures of a call's answer; raise StoreOutage if the server failed this call."""
    if isinstance(answer, str):
        raise outage_in(answer)
    return answer


def _without_overrides(call: Call) -> Call:
    return call._replace(compiled=plan_of(call.compiled.policy, call.compiled.limits), keys=tuple(call.state_keys))


def _word_of(error: Exception) -> str:
    """Return the first word of a server's error. Client libraries cut it off and raise a class instead."""
    return _WORDS.get(type(error).__name__) or str(error).partition(" ")[0]


def _address_in(error: Exception) -> Address:
    """Return where "MOVED <slot> <host>:<port>", or the same without its first word, points to."""
    host, _, port = str(error).rpartition(" ")[2].rpartition(":")
    return host, int(port)


def evaluation(calls: Sequence[Call]) -> Command:
    """Return the command that runs the script by its name: what every conversation begins with."""
    time_us = clock.override_us()
    keys, items = pack_one(calls[0], time_us) if len(calls) == 1 else pack(calls, time_us)
    return ("EVALSHA", script.digest(), len(keys), *keys, *items)


def is_plain(call: Call, reply: Any) -> bool:
    """Whether a reply has the figures of one call and nothing else, so that the conversation ends where it began."""
    return type(reply) is list and len(reply) == FIGURES * len(call.compiled.limits) and type(reply[0]) is int
