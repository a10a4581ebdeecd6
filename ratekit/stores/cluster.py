"""Which node of a Redis Cluster has which slot, as the nodes say."""

from __future__ import annotations

import time
from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ratekit.outage import Outage, StoreOutage
from ratekit.protocol import Call
from ratekit.stores.asking import Command
from ratekit.stores.locations import Address

SLOTS: Command = ("CLUSTER", "SLOTS")
_PAUSE = 0.25  # seconds between two looks at a map that has proved wrong


def slot_of(call: Call) -> int:
    """Return the slot of a call, by the tag that all of its keys have."""
    key = call.keys[0]
    tag = key.partition(b"{")[2].partition(b"}")[0]
    return crc_hqx(tag or key, 0) % 16384


class SlotMap:
    """The address of each slot's primary: ranges, and what redirections have said since they were read."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = tuple(seeds)
        self._starts: list[int] = []
        self._addresses: list[Address] = []
        self._moved: dict[int, Address] = {}
        self._looked_at = float("-inf")
        self.is_stale = True

    def address_of(self, calls: Sequence[Call]) -> Address:
        """Return the address of the server that has the slot of some calls."""
        slot = slot_of(calls[0])
        known = self._moved.get(slot)
        if known is not None:
            return known
        if not self._starts:
            raise StoreOutage(Outage("connection", "no node of the cluster has answered yet"))
        return self._addresses[max(bisect_right(self._starts, slot) - 1, 0)]

    def moved(self, calls: Sequence[Call], address: Address) -> None:
        """Take note that the slot of some calls lives elsewhere now."""
        self._moved[slot_of(calls[0])] = address
        self.is_stale = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known yet."""
        return not self._starts

    def nodes(self) -> list[Address]:
        """Return every node that may be asked for the map, each once."""
        return list(dict.fromkeys([*self._addresses, *self._seeds]))

    def is_due(self) -> bool:
        """Whether it is time to look at the map again; then someone does, and nobody else for a while."""
        if not self.is_stale or time.monotonic() < self._looked_at + _PAUSE:
            return False
        self._looked_at = time.monotonic()
        return True

    def load(self, reply: Any, asked: Address) -> None:
        """Read what a node has said. A node that does not know its own name is the one that was asked."""
        ranges = sorted(_ranges(reply, asked))
        self._starts, self._addresses = [start for start, _ in ranges], [address for _, address in ranges]
        self._moved, self.is_stale = {}, False


def _ranges(reply: Iterable[Any], asked: Address) -> Iterator[tuple[int, Address]]:
    for start, _, primary, *_ in reply:
        host = primary[0].decode() if isinstance(primary[0], bytes) else primary[0]
        yield int(start), (host if host and host != "?" else asked[0], int(primary[1]))
