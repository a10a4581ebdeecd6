"""The exchange with a server that runs the script: EVALSHA, and what follows NOSCRIPT, MOVED, ASK and TRYAGAIN. No I/O.

An error that the server replies with is a reply here: an exception that is not raised.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Protocol

from ratekit.core import clock
from ratekit.core.outages import Outage, StoreOutage, outage_in
from ratekit.core.protocol import Call, keeping_overrides, override_keys, pack, pack_one, unpack
from ratekit.stores import script
from ratekit.stores.contract import Answer, Command, Figures
from ratekit.stores.redis.client_errors import ClientErrors, raise_outage
from ratekit.stores.redis.url import Address

MOST_KEYS = 96  # of the calls of one exchange, three for a limit: Redis decides them in a fraction of a millisecond
_MOST_REDIRECTIONS = 16
_WORDS = {"NoScriptError": "NOSCRIPT", "MovedError": "MOVED", "AskError": "ASK", "TryAgainError": "TRYAGAIN"}


class Routes(Protocol):
    """The primaries of a Cluster's slots."""

    def address_of(self, calls: Sequence[Call]) -> Address:
        """Return the address of the server that has the slot of some calls. Raises StoreOutage if it is not known."""

    def moved(self, calls: Sequence[Call], address: Address) -> None:
        """Note that the slot of some calls is on another server now."""


class Request(NamedTuple):
    """Commands to send together to one server; only the last reply matters. The address is None unless it is a Cluster's."""

    address: Address | None
    commands: tuple[Command, ...]


_Steps = Generator[Request, Sequence[Any], list[Answer]]
_Replied = Generator[Request, Sequence[Any], Any]


def first_request(calls: Sequence[Call], routes: Routes | None = None) -> Request:
    """Return the request that begins every exchange: EVALSHA with some calls that share a slot."""
    return Request(None if routes is None else routes.address_of(calls), (_evalsha(calls),))


def check_sendable(call: Call) -> None:
    """Raise UnicodeEncodeError for a call that cannot be sent, so that it fails alone and not with the calls around it."""
    if call.slot is not None:  # the only text in a call that is not encoded yet
        call.slot.encode()


class Exchange:
    """Decides calls that share a slot. Nothing is sent again that the server may have done.

    `request` is what to send next. `receive` takes the replies to it, and returns the answers once there are any. Nearly
    every exchange ends with its first reply, so the generator for the others is made only when it is needed.
    """

    __slots__ = ("_calls", "_errors", "_routes", "_steps", "request")

    def __init__(self, calls: Sequence[Call], errors: ClientErrors, routes: Routes | None = None) -> None:
        self._calls = calls
        self._errors = errors
        self._routes = routes
        self._steps: _Steps | None = None
        self.request = first_request(calls, routes)

    def receive(self, replies: Sequence[Any]) -> list[Answer] | None:
        """Return the answer to each call, or None if there is another request to send.

        Raises StoreOutage, or the client's own error if the script has a bug.
        """
        if self._steps is None:
            if not isinstance(replies[-1], Exception):
                return _answers(self._calls, replies[-1])
            self._steps = self._decide()
            next(self._steps)
        try:
            self.request = self._steps.send(replies)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        return None

    def _decide(self) -> _Steps:
        reply = yield from self._evaluate(self._calls, self.request)
        if isinstance(reply, Exception):
            return (yield from self._decide_one_by_one())
        return _answers(self._calls, reply)

    def _evaluate(self, calls: Sequence[Call], request: Request) -> _Replied:
        """Run the script by its digest, and by its text if the server does not know it."""
        reply = yield from self._redirected(request)
        if isinstance(reply, Exception) and _word_of(reply) == "NOSCRIPT":
            arguments = request.commands[-1][2:]
            reply = yield from self._redirected(self._request(("EVAL", script.read("ratekit"), *arguments)))
        return reply

    def _redirected(self, request: Request) -> _Replied:
        """Send a request, and follow the redirections of a Cluster. Returns the reply, or an error that has a remedy."""
        command = request.commands[-1]
        for _ in range(_MOST_REDIRECTIONS):
            reply = (yield request)[-1]
            if not isinstance(reply, Exception):
                return reply
            word = _word_of(reply)
            if word == "NOSCRIPT" or (word == "TRYAGAIN" and self._routes is not None):
                return reply
            if self._routes is None or word not in ("MOVED", "ASK"):
                raise_outage(reply, self._errors)
            request = Request(_address_in(reply), (("ASKING",), command) if word == "ASK" else (command,))
            if word == "MOVED":
                self._routes.moved(self._calls, _address_in(reply))
        raise StoreOutage(Outage("moved", f"the slot was not found after {_MOST_REDIRECTIONS} redirections"))

    def _decide_one_by_one(self) -> _Steps:
        """Decide calls singly while their slot moves to another server.

        Meanwhile no server runs a script on two keys of which one does not exist there. An override usually does not exist:
        a call is decided with those of its overrides that do. A merged call may bring several.
        """
        answers: list[Answer] = []
        for call in self._calls:
            kept = []
            for at, key in override_keys(call).items():
                kept += [at] if (yield from self._redirected(self._request(("EXISTS", key)))) else []
            one = [keeping_overrides(call, kept)]
            reply = yield from self._evaluate(one, self._request(_evalsha(one)))
            if isinstance(reply, Exception):
                answers.append("TRYAGAIN the slot is being moved, and the keys of this call are not in one place")
            else:
                answers += _answers(one, reply)
        return answers

    def _request(self, command: Command) -> Request:
        return Request(None if self._routes is None else self._routes.address_of(self._calls), (command,))


def figures_in(answer: Answer) -> Figures:
    """Return the figures of an answer. Raises StoreOutage if it is the server's error."""
    if isinstance(answer, str):
        raise outage_in(answer)
    return answer


def _evalsha(calls: Sequence[Call]) -> Command:
    time_us = clock.override_us()
    keys, items = pack_one(calls[0], time_us) if len(calls) == 1 else pack(calls, time_us)
    return ("EVALSHA", script.digest(), len(keys), *keys, *items)


def _answers(calls: Sequence[Call], reply: Any) -> list[Answer]:
    """Split a reply into the answer to each call. A reply that is not the script's comes from a proxy: it is an outage."""
    if len(calls) == 1 and type(reply) is list and len(reply) == calls[0].size and type(reply[0]) is int:
        return [reply]
    try:
        return unpack(calls, reply)
    except (TypeError, IndexError) as error:
        raise StoreOutage(Outage("protocol", f"the reply {str(reply)[:100]!r} is not one of the script")) from error


def _word_of(error: Exception) -> str:
    """Return the first word of a server's error. Client libraries cut it off and raise a class of its own instead."""
    return _WORDS.get(type(error).__name__) or str(error).partition(" ")[0]


def _address_in(error: Exception) -> Address:
    """Return the address in "MOVED <slot> <host>:<port>", or in the same text without its first word."""
    host, _, port = str(error).rpartition(" ")[2].rpartition(":")
    return host, int(port)
