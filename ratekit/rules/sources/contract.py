"""What a source of rules is. Implement `Source`, and give it to `ratekit.rules.Rules`, to keep rules anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ratekit.rules.formats import Format

Stop = Callable[[], None]


class Text(NamedTuple):
    """A document that is not yet read: a text that makes no sense is refused by its version, and not read at every look."""

    content: str | bytes
    form: Format


class Loaded(NamedTuple):
    """A document as a source has it, and what tells this state of it from another."""

    values: Any  # what Document.parse takes, or a Text
    version: str


class SourceFacts(Protocol):
    """What every source says of itself."""

    @property
    def origin(self) -> str:
        """Where the rules come from, for people and metrics: without secrets."""

    @property
    def is_trusted(self) -> bool:
        """Whether documents may name functions of the application: whoever can write them can run code."""

    @property
    def interval(self) -> float:
        """Seconds between two looks, on average. Each wait is drawn anew, so that processes do not look in step."""


@runtime_checkable
class Source(SourceFacts, Protocol):
    """Where documents are kept. Its methods block, and are called in one thread at a time."""

    def load(self, known: str | None, pace: Callable[[], None]) -> Loaded | None:
        """Return the document, None if it is still the one of the known version.

        Raises SourceUnavailable if the source does not answer or has no document, and DocumentError if what it has cannot
        be read. pace is called between pieces of work: it lets requests go on.
        """

    def watch(self, changed: Callable[[], None]) -> Stop | None:
        """Call `changed` whenever something may have changed, until the answer is called. None: it is only looked at.

        Messages get lost, so they only make a change faster: `load` at every interval is the guarantee.
        """

    def close(self) -> None:
        """Close what was opened. A later call opens it again."""


@runtime_checkable
class AsyncSource(SourceFacts, Protocol):
    """Where documents are kept. Its methods are awaited on one event loop."""

    async def aload(self, known: str | None, pace: Callable[[], None]) -> Loaded | None:
        """Do what `Source.load` does."""

    async def awatch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever something may have changed, until it is cancelled; return if there is no way to know."""

    async def aclose(self) -> None:
        """Close what was opened."""


@runtime_checkable
class ServiceSource(Protocol):
    """A source that keeps one document for each service."""

    def for_service(self, service: str) -> Any:
        """Return the source of a service's document, unless it is that of one already."""


@runtime_checkable
class WritableSource(Protocol):
    """A source that documents can be written to."""

    def save(self, values: dict[str, Any]) -> str:
        """Write a document whole, and return its version. Raises SourceUnavailable."""
