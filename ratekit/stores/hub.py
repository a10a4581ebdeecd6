"""The lines of one event loop: to the server, or to each node of a Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ratekit.breaker import Health
from ratekit.outage import Outage, StoreOutage
from ratekit.protocol import Call
from ratekit.stores.asking import ClientErrors, Command, deciding
from ratekit.stores.batch import Answer, Batch, Finish, Waiting
from ratekit.stores.cluster import SLOTS, SlotMap, slot_of
from ratekit.stores.line import Line
from ratekit.stores.locations import Address, sentinels_of
from ratekit.stores.patience import Patience
from ratekit.stores.wires import Wire


class Hub:
    """Hands each call to the line of its server. by_slot: what goes out together must share a slot."""

    def __init__(
        self,
        wire: Callable[[Address | None], Wire],
        client: Callable[[], Any] | None,
        deadline: float,
        label: str,
        slots: SlotMap | None = None,
        *,
        by_slot: bool = False,
    ) -> None:
        self._wire = wire
        self._make_client = client
        self._client: Any = None
        self._deadline = deadline
        self._label = label
        self._slots = slots
        self._by_slot = by_slot or slots is not None
        self._lines: dict[Address | None, Line] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def client(self) -> Any:
        """A client for this event loop, for what is not a decision."""
        if self._client is None and self._make_client is not None:
            self._client = self._make_client()
        return self._client

    @property
    def is_ready(self) -> bool:
        """Whether it is known which server decides which call."""
        return self._slots is None or not self._slots.is_empty

    def submit(self, call: Call, finish: Finish | None = None) -> Answer:
        """Let the server of a call decide it."""
        return self._line(None if self._slots is None else self._slots.address_of([call])).submit(call, finish)

    async def submit_when_ready(self, call: Call) -> Sequence[int]:
        """Find out first where the slots are."""
        await self._look()
        figures: Sequence[int] = await self.submit(call)
        return figures

    def health(self) -> list[Health]:
        """Return what is known of each server."""
        return [line.breaker.health for line in self._lines.values()]

    def doubt(self, outage: Outage) -> None:
        """A server that is away, or not the primary any more, may have a successor."""
        if outage.reason == "readonly":
            for line in self._lines.values():
                line.reconnect()
        if self._slots is not None:
            self._slots.is_stale = True
            self._look_soon(self._slots)

    def warm(self) -> None:
        """Connect in the background."""
        if self._slots is None:
            self._line(None).warm()
        else:
            self._look_soon(self._slots)

    def connections(self) -> Iterator[Any]:
        """Return the connections that are open, those of the client among them."""
        yield from getattr(getattr(self._client, "connection_pool", None), "_available_connections", ())
        for line in self._lines.values():
            connection = getattr(line.wire, "connection", None)
            if connection is not None:
                yield connection

    async def aclose(self) -> None:
        """Let what is under way end, and close the lines."""
        for line in list(self._lines.values()):
            await line.aclose()
        self._lines.clear()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
            if hasattr(client, "connection_pool"):  # that of a cluster has one for each node, and closes them
                await client.connection_pool.disconnect()
            for sentinel in sentinels_of(client):
                await sentinel.aclose()

    def _line(self, address: Address | None) -> Line:
        line = self._lines.get(address)
        if line is None:
            wire = self._wire(address)
            label = self._label if address is None else f"{address[0]}:{address[1]}"
            at_once = 1 if self._by_slot else wire.most_exchanges  # a slot may move between two of them
            line = Line(wire, self._deadline, label, lambda waiting: self._batches(waiting, wire.errors), at_once)
            line.redirect = lambda batch: self._line(batch.ask.address).resume(batch)
            self._lines[address] = line
        return line

    def _batches(self, waiting: Sequence[Waiting], errors: ClientErrors) -> Iterator[Batch]:
        """Make batches of the calls that go out together: one, but one for each slot in a Cluster."""
        if not waiting:
            return
        groups: dict[int, list[Waiting]] = {}
        if not self._by_slot:
            groups[0] = list(waiting)
        else:
            for one in waiting:
                groups.setdefault(slot_of(one.call), []).append(one)
        for group in groups.values():
            yield Batch(deciding([call for call, _, _ in group], errors, self._slots), group, errors)

    def _look_soon(self, slots: SlotMap) -> None:
        if slots.is_due():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Ask the nodes where the slots are, until one knows."""
        for address in self._slots.nodes() if self._slots is not None else ():
            wire = self._wire(address)
            try:
                async with Patience(self._deadline):
                    reply = await _reply_to(SLOTS, wire)
            except (StoreOutage, TimeoutError, OSError, wire.errors.every):
                continue
            finally:
                wire.close()
            if self._slots is not None:
                self._slots.load(reply, address)
                await self._forget_all_but(self._slots.nodes())
                return

    async def _forget_all_but(self, nodes: Sequence[Address]) -> None:
        """Do not look for nodes that the cluster has parted with."""
        for address in [address for address in self._lines if address not in nodes]:
            await self._lines.pop(address).aclose()


async def _reply_to(command: Command, wire: Wire) -> Any:
    """Connect, and return the reply to one command."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    await wire.open()
    wire.send([command], answer.set_result)
    replies = await answer
    reply = replies if isinstance(replies, Exception) else replies[0]
    if isinstance(reply, Exception):
        raise reply
    return reply
