"""The slots of a Redis Cluster, and the node that has each of them."""

from __future__ import annotations

import time
from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ratekit.core.outages import Outage, StoreOutage
from ratekit.core.protocol import Call
from ratekit.stores.contract import Answer, Command
from ratekit.stores.redis.url import Address

CLUSTER_SLOTS: Command = ("CLUSTER", "SLOTS")
_REFRESH_PAUSE = 0.25  # seconds between two refreshes of a map that has proved wrong


class _HasCall(Protocol):
    @property
    def call(self) -> Call: ...


Pending = TypeVar("Pending", bound=_HasCall)


def slot_of(call: Call) -> int:
    """Return the slot of a call, by the hash tag that all of its keys share."""
    key = call.keys[0]
    tag = key.partition(b"{")[2].partition(b"}")[0]
    return crc_hqx(tag or key, 0) % 16384


def by_slot(pending: Iterable[Pending]) -> list[list[Pending]]:
    """Group pending calls by their slots: a server runs the script on one slot at a time."""
    groups: dict[int, list[Pending]] = {}
    for one in pending:
        groups.setdefault(slot_of(one.call), []).append(one)
    return list(groups.values())


class SlotMap:
    """The address of each slot's primary: ranges as CLUSTER SLOTS replies, and the redirections since then.

    The map is stale once a redirection or an outage has proved it wrong. Whoever finds that it is due refreshes it.
    """

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = tuple(seeds)
        self._starts: list[int] = []
        self._addresses: list[Address] = []
        self._moved: dict[int, Address] = {}
        self._refreshed_at = float("-inf")
        self.is_stale = True

    def address_of(self, calls: Sequence[Call]) -> Address:
        """Return the address of the server that has the slot of some calls. Raises StoreOutage if the map is empty."""
        slot = slot_of(calls[0])
        known = self._moved.get(slot)
        if known is not None:
            return known
        if not self._starts:
            raise StoreOutage(Outage("connection", "no node of the cluster has answered yet"))
        return self._addresses[max(bisect_right(self._starts, slot) - 1, 0)]

    def moved(self, calls: Sequence[Call], address: Address) -> None:
        """Note that the slot of some calls is on another server now."""
        self._moved[slot_of(calls[0])] = address
        self.is_stale = True

    @property
    def is_empty(self) -> bool:
        """Whether no node has answered yet."""
        return not self._starts

    def nodes(self) -> list[Address]:
        """Return every node that can be asked for the map, each once."""
        return list(dict.fromkeys([*self._addresses, *self._seeds]))

    def is_due(self) -> bool:
        """Whether the caller has to refresh the map. It is not due again for a moment, so that one caller does."""
        if not self.is_stale or time.monotonic() < self._refreshed_at + _REFRESH_PAUSE:
            return False
        self._refreshed_at = time.monotonic()
        return True

    def load(self, reply: Any, node: Address) -> None:
        """Load a node's reply to CLUSTER SLOTS. A node that does not know its own name has the address of `node`."""
        ranges = sorted(_ranges(reply, node))
        if not ranges:  # the node has left the Cluster
            return
        self._starts, self._addresses = [start for start, _ in ranges], [address for _, address in ranges]
        self._moved, self.is_stale = {}, False


def _ranges(reply: Iterable[Any], node: Address) -> Iterator[tuple[int, Address]]:
    for start, _, primary, *_ in reply:
        host = primary[0].decode() if isinstance(primary[0], bytes) else primary[0]
        yield int(start), (host if host and host != "?" else node[0], int(primary[1]))


def decide_by_slot(calls: Sequence[Call], decide: Callable[[Sequence[Call]], list[Answer]]) -> list[Answer]:
    """Decide the calls of each slot together. Those of a slot that fails have its error; raises StoreOutage if all fail."""
    answers: dict[int, Answer] = {}
    outages: list[StoreOutage] = []
    groups: dict[int, list[int]] = {}
    for index, call in enumerate(calls):
        groups.setdefault(slot_of(call), []).append(index)
    for indexes in groups.values():
        try:
            found = decide([calls[index] for index in indexes])
        except StoreOutage as outage:
            outages.append(outage)
            found = [str(outage)] * len(indexes)
        answers.update(zip(indexes, found, strict=True))
    if outages and len(outages) == len(groups):
        raise outages[0]
    return [answers[index] for index in range(len(calls))]
