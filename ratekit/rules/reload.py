"""Rules that change while requests are decided: loaded from a source, compiled beside those in force, and swapped.

A document that makes no sense is refused whole. While it is, and while the source does not answer, the rules in force stay;
the fault is logged once, counted, and shown in the status.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ratekit.core import clock, events
from ratekit.core.errors import ConfigurationError, DocumentError, SourceUnavailable
from ratekit.core.events import RuleLookups, RulesChange, RulesOutcome
from ratekit.core.poller import Poller
from ratekit.rules.compiled import CompiledRules, DocumentRule, compile_document
from ratekit.rules.document import Document
from ratekit.rules.formats import Pace, parse, paused_collector
from ratekit.rules.sources import source as open_source
from ratekit.rules.sources.contract import AsyncSource, Loaded, ServiceSource, Source, SourceFacts, Text
from ratekit.web.plans import NO_PLAN_OF
from ratekit.web.requests import FrontRequest

RulesGiven = str | os.PathLike[str] | Source | AsyncSource | Document | Mapping[str, Any]
_TICK = 2.0  # seconds between two reports of lookups
_log = logging.getLogger("ratekit.rules")


@dataclass(frozen=True, slots=True)
class RulesStatus:
    """Which rules are in force, since when and from where, and what is wrong with their source. Times are epoch seconds."""

    origin: str
    version: str | None  # None: the default
    rules: int
    loaded_at: float
    checked_at: float  # when the source has answered last
    trouble: str | None  # why the newest document is not in force
    refused: int  # how many documents were refused
    unavailable: int  # how often the source went away

    @property
    def age(self) -> float:
        """Seconds since the rules in force were loaded."""
        return clock.now() - self.loaded_at

    def as_dict(self) -> dict[str, Any]:
        """Return the status as values for JSON."""
        return asdict(self) | {"age": self.age, "is_healthy": self.trouble is None}


class _InForce(NamedTuple):
    """What one assignment swaps."""

    compiled: CompiledRules
    version: str | None
    loaded_at: float


class Rules:
    """The rules of an application, kept up to date.

    given is a path, the URL of a source, a source, a document, or the values of one. service is whose document it is, and
    the endpoint of rules that name none. functions names the functions that a document of a source that is not trusted may
    refer to. default is in force if the source does not answer at the start; without it, that is an error. holds_slots: the
    front frees the slots of concurrency limits. asks_plans: the front has a plan_of, so that limits can be "plan".
    """

    def __init__(
        self,
        given: RulesGiven,
        *,
        service: str | None = None,
        functions: Collection[str] = (),
        default: RulesGiven | None = None,
        holds_slots: bool = True,
        asks_plans: bool = True,
    ) -> None:
        self.service = service
        self._asks_plans = asks_plans
        self._holds_slots = holds_slots
        self._functions = functions
        self._source: SourceFacts | None = None
        self._waited: Source | None = None  # the source, if it is one that this object looks at in a thread
        self._poller: Poller | None = None
        self._stop_watching: Callable[[], None] | None = None
        self._starting = threading.Lock()
        self._is_closed = False
        self._trouble: str | None = None
        self._seen: str | None = None  # the version that was read last, in force or refused
        self._refused = self._unavailable = 0
        self._due = self._checked_at = 0.0
        self._counted = (0, 0)
        self._begin(given, default)

    @classmethod
    def load(
        cls,
        given: RulesGiven,
        *,
        service: str | None = None,
        functions: Collection[str] = (),
        default: RulesGiven | None = None,
    ) -> Rules:
        """Load rules now, and keep them up to date from the first request on."""
        return cls(given, service=service, functions=functions, default=default)

    def refuse_plans(self) -> None:
        """Refuse rules that ask for the plan of a request, now and later: a front that uses them has no plan_of."""
        if any(rule.asks_plan for rule in self._in_force.compiled.rules):
            raise ConfigurationError(NO_PLAN_OF)
        self._asks_plans = False

    def find(self, request: FrontRequest, endpoints: tuple[str, ...] = ()) -> tuple[DocumentRule, ...]:
        """Return the rules of a request, in the order in which they are asked."""
        self.follow()
        return self._in_force.compiled.find(request, endpoints)

    @property
    def compiled(self) -> CompiledRules:
        """The rules in force. They do not change: the next ones are another object."""
        if self._waited is not None:
            self.follow()
        return self._in_force.compiled

    @property
    def compiled_once(self) -> CompiledRules:
        """The rules in force, for who does not want them followed."""
        return self._in_force.compiled

    @property
    def status(self) -> RulesStatus:
        """Which rules are in force."""
        compiled, version, loaded_at = self._in_force
        return RulesStatus(
            self.origin, version, len(compiled.rules), loaded_at, self._checked_at, self._trouble, self._refused,
            self._unavailable,
        )  # fmt: skip

    @property
    def origin(self) -> str:
        """Where the rules come from, without secrets."""
        return "code" if self._source is None else self._source.origin

    @property
    def source(self) -> SourceFacts | None:
        """The source, None if the rules were given in code."""
        return self._source

    def follow(self) -> None:
        """Begin to look at the source, in a thread. It begins again after a fork."""
        if self._poller is not None:
            self._poller.revive()
        elif self._waited is not None:
            with self._starting:
                if self._poller is None:
                    self._due = 0.0 if self._trouble else clock.steady() + self._wait()  # the source may be back
                    self._poller = Poller(self._tick, self._until_tick, "ratekit-rules")
                    self._stop_watching = self._waited.watch(self.changed)

    def changed(self) -> None:
        """Let the thread look at the source now."""
        self._due = 0.0
        if self._poller is not None:
            self._poller.wake()

    def refresh(self) -> RulesStatus:
        """Look at the source now, in this thread, and return the status."""
        if self._poller is not None and not self._is_closed:
            self._due = 0.0
            self._poller.run_now()
        elif self._waited is not None:
            self._look(self._waited)
        return self.status

    def close(self) -> None:
        """Look no more, once the look that may be under way has ended. The rules stay in force."""
        self._is_closed = True
        if self._stop_watching is not None:
            self._stop_watching()
        if self._poller is not None:
            self._poller.close()
            self._poller.run_now()
        elif self._waited is not None:
            self._waited.close()

    def _begin(self, given: RulesGiven, default: RulesGiven | None) -> None:
        """Put the first rules in force."""
        if isinstance(given, Document | Mapping):
            self._put(self._compile(_as_document(given)), None)
            return
        source = open_source(given, service=self.service) if isinstance(given, str | os.PathLike) else given
        if self.service is not None and isinstance(source, ServiceSource):
            source = source.for_service(self.service)
        if not isinstance(source, Source | AsyncSource):
            raise ConfigurationError(f"rules {given!r:.80} are neither a path, nor a URL, nor a source, nor a document")
        self._source = source
        if isinstance(source, Source):
            self._waited = source
            self._first(source, default)
        elif default is not None:
            self._put(self._compile(_default_document(default, self.service)), None)
        else:
            self._put(self._compile(Document()), None)

    def _first(self, source: Source, default: RulesGiven | None) -> None:
        try:
            loaded = source.load(None, Pace())
            self._accept(loaded)
        except (SourceUnavailable, DocumentError) as error:
            if default is None:
                source.close()
                raise _with_origin(error, source.origin) from None
            self._put(self._compile(_default_document(default, self.service)), None)
            self._note_trouble(error)

    def _tick(self) -> None:
        self._report_lookups()
        if self._is_closed:
            if self._waited is not None:
                self._waited.close()  # here, where nobody looks at it meanwhile
            return
        if clock.steady() >= self._due and self._waited is not None:
            self._look(self._waited)
            self._due = clock.steady() + self._wait()

    def _until_tick(self) -> float:
        return max(0.0, min(_TICK, self._due - clock.steady()))

    def _wait(self) -> float:
        """Return the seconds to the next look: two to four thirds of the interval, so that processes do not look in step."""
        interval = 1.0 if self._source is None else self._source.interval
        return interval * random.uniform(2 / 3, 4 / 3)

    def _look(self, source: Source) -> None:
        try:
            self._accept(source.load(self._seen, Pace()))
        except (SourceUnavailable, DocumentError, ConfigurationError) as error:
            self._note_trouble(error)
        except Exception as error:  # noqa: BLE001 - a source of the application may raise anything; looks go on
            self._note_trouble(failure(self.origin, error))

    def _accept(self, loaded: Loaded | None) -> None:
        """Put a document in force. None: the source has what was read last, be it in force or refused."""
        self._checked_at = clock.now()
        if loaded is not None:
            self._seen = loaded.version
            with paused_collector():
                compiled = self._compile(Document.parse(_read(loaded.values), functions=self._allowed(), pace=Pace()))
            self._put(compiled, loaded.version)
        elif self._seen != self._in_force.version:
            return
        elif self._trouble is not None:
            self._tell(RulesOutcome.RECOVERED)
            _log.info("rules from %s can be read again", self.origin)
        self._trouble = None

    def _allowed(self) -> Collection[str] | None:
        return None if self._source is None or self._source.is_trusted else self._functions

    def _compile(self, document: Document) -> CompiledRules:
        return compile_document(document, self.service, Pace(), holds_slots=self._holds_slots, asks_plans=self._asks_plans)

    def _put(self, compiled: CompiledRules, version: str | None) -> None:
        self._report_lookups()
        self._in_force = _InForce(compiled, version, clock.now())
        self._counted = (0, 0)
        self._tell(RulesOutcome.LOADED)
        _log.info("%d rules from %s are in force, version %s", len(compiled.rules), self.origin, version)

    def _note_trouble(self, error: Exception) -> None:
        """Keep the rules in force, and say why: in the log once, until the reason is another."""
        is_refusal = not isinstance(error, SourceUnavailable)
        text = str(error)
        if text == self._trouble:
            return
        self._trouble = text
        self._refused += is_refusal
        self._unavailable += not is_refusal
        self._tell(RulesOutcome.REFUSED if is_refusal else RulesOutcome.UNAVAILABLE, text)
        version = self._in_force.version
        what = f"from {self.origin} are refused" if is_refusal else "cannot be read"  # that reason names the source itself
        _log.error(
            "rules %s: %s; %s in force", what, text, "the default is" if version is None else f"version {version} stays"
        )

    def _tell(self, outcome: RulesOutcome, reason: str = "") -> None:
        compiled, version, _ = self._in_force
        events.rules_changes.notify(RulesChange(self.origin, outcome, version, len(compiled.rules), reason))

    def _report_lookups(self) -> None:
        """Tell listeners how often rules were looked up since the last report."""
        in_force: _InForce | None = getattr(self, "_in_force", None)
        if in_force is None or not events.rule_lookups.listeners:
            return
        lookups, misses = in_force.compiled.lookups, in_force.compiled.misses
        before_lookups, before_misses = self._counted
        self._counted = (lookups, misses)
        hits = (lookups - before_lookups) - (misses - before_misses)
        if lookups != before_lookups:
            events.rule_lookups.notify(RuleLookups(self.origin, max(hits, 0), misses - before_misses))


def _read(values: Any) -> Any:
    return parse(values.content, values.form, Pace()) if isinstance(values, Text) else values


def _as_document(given: Document | Mapping[str, Any]) -> Document:
    return given if isinstance(given, Document) else Document.parse(given)


def read_once(where: RulesGiven, service: str | None = None) -> tuple[Loaded, str]:
    """Return the values of a document, its version and where it comes from, of a source that is read once."""
    source = open_source(where, service=service) if isinstance(where, str | os.PathLike) else where
    if not isinstance(source, Source):
        raise ConfigurationError(f"{where!r:.80} is no source that can be read at once: give a path, or a URL")
    try:
        loaded = source.load(None, Pace())
    finally:
        source.close()
    if loaded is None:
        raise SourceUnavailable(f"{source.origin} has no document")
    return Loaded(_read(loaded.values), loaded.version), source.origin


def _default_document(default: RulesGiven, service: str | None) -> Document:
    """Return the document of a default, which is read once."""
    if isinstance(default, Document | Mapping):
        return _as_document(default)
    return Document.parse(read_once(default, service)[0].values)


def failure(origin: str, error: Exception) -> SourceUnavailable:
    """Return the error of a source that raised what no source should."""
    _log.debug("the source of rules has raised", exc_info=error)
    return SourceUnavailable(f"{origin} raised {type(error).__name__}: {' '.join(str(error).split()):.200}")


def _with_origin(error: Exception, origin: str) -> Exception:
    return DocumentError(error.problems, origin) if isinstance(error, DocumentError) else error
