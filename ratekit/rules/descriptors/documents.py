"""Documents of ratekit's own for descriptors: a descriptor is looked at as the request that its entries stand for.

    path, :path, method, :method, host, :authority     what a rule matches by
    remote_address                                     the client's address, `ip`
    any other key                                      the header of that name

So the document that limits an application limits what Envoy asks, with the same counters. As in a file of descriptors, a
rule is for a descriptor only if it looks at every entry, and finds all that it counts by. The first such rule decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from ratekit.core import clock
from ratekit.core.errors import DocumentError, UnusableRequestError
from ratekit.core.keys import whole_endpoint_subject
from ratekit.core.limits import Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.rules import formats
from ratekit.rules.compiled import DocumentRule, compile_document
from ratekit.rules.descriptors.file import UNITS, Unit
from ratekit.rules.document import Document, RuleModel
from ratekit.rules.identities import Identity, parts_of
from ratekit.rules.keys import subject_of_key
from ratekit.web.requests import FrontRequest

ADDRESS = "remote_address"
_PATHS, _METHODS, _HOSTS = ("path", ":path"), ("method", ":method"), ("host", ":authority")
_OTHER_WINDOW = Unit("unknown", 0, 0)
_UNIT_OF_SECONDS = {unit.seconds: unit for unit in UNITS}
Entry = tuple[str, str]


class Match(NamedTuple):
    """What a document says of a descriptor. No policy: it is unlimited."""

    name: str
    endpoint: str
    subject: str
    policy: Policy | None
    unit: Unit
    mode: RateLimitMode | None
    on_outage: OnOutage | None
    cost: int  # if the request says none


class DocumentDomain:
    """The rules of a document, for the descriptors of a domain: that of its `service`."""

    def __init__(self, document: Document) -> None:
        if not document.service:
            raise DocumentError(["service is missing: it is the domain of descriptors"])
        self.name = document.service
        every = document.model_copy(update={"apply": "all"})  # a rule that does not fit must not hide the next
        self._rules = compile_document(every, holds_slots=False, asks_plans=False)
        self.is_timed = any(model.overrides or model.valid_from or model.valid_until for model in document.rules)
        self._keys: dict[tuple[str, str], set[str]] = {}
        models = [model for model in document.rules if model.enabled]
        for rule, model in zip(self._rules.rules, models, strict=True):
            self._keys.setdefault((rule.name, rule.endpoint), set()).update(_keys_of(model, model.by or document.by))

    @classmethod
    def load(cls, path: str | Path) -> DocumentDomain:
        """Read a file. Raises DocumentError with every fault and its place."""
        try:
            return cls(Document.parse(formats.parse(Path(path).read_bytes(), formats.format_of(str(path)))))
        except OSError as error:
            raise DocumentError([f"the file cannot be read: {error.strerror}"], str(path)) from None
        except DocumentError as error:
            raise DocumentError(error.problems, str(path)) from None

    def match(self, entries: Sequence[Entry]) -> Match | None:
        """Return what decides a descriptor; None if nothing limits it."""
        request, now = _DescribedRequest(entries), clock.now()
        keys = {key.lower() for key, _ in entries}
        for rule in self._rules.find(request):
            if keys <= self._keys.get((rule.name, rule.endpoint), set()) and rule.is_valid(now):
                found = _matched(rule, request, now)
                if found is not None:
                    return found
        return None


def _matched(rule: DocumentRule, request: FrontRequest, now: float) -> Match | None:
    key = _key(rule, request)
    limits = None if key is None else rule.limits_of(key, now)
    if key is None or limits is None:
        return None
    policy = None if rule.is_unlimited(limits) else rule.policy_of(limits)
    unit = _OTHER_WINDOW if policy is None else _UNIT_OF_SECONDS.get(int(policy.limits[0].window), _OTHER_WINDOW)
    cost = rule.cost if isinstance(rule.cost, int) else 1
    return Match(rule.name, rule.endpoint, subject_of_key(key), policy, unit, rule.mode, rule.on_outage, cost)


def _key(rule: DocumentRule, request: FrontRequest) -> str | None:
    """Return who is counted; None if the descriptor does not say."""
    if rule.by is None:
        return request.address() or whole_endpoint_subject(rule.endpoint)
    try:
        key: str | None = rule.by.read(request)
    except UnusableRequestError:
        return None
    return key


def _keys_of(model: RuleModel, identity: Identity | None) -> set[str]:
    """Return the keys of descriptors that a rule looks at."""
    match = model.match
    keys = {name.lower() for name in match.headers}
    keys |= set(_PATHS) if match.path else set()
    keys |= set(_METHODS) if match.method else set()
    keys |= set(_HOSTS) if match.host else set()
    if identity is None:
        return keys | {ADDRESS}
    for part in parts_of(identity):
        keys |= {"header": {part.name.lower()}, "ip": {ADDRESS}, "path": set(_PATHS), "query": set(_PATHS)}.get(
            part.kind, set()
        )
    return keys


class _DescribedRequest(FrontRequest):
    """The request that the entries of a descriptor stand for."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        given: dict[str, list[str]] = {}
        for key, value in entries:
            given.setdefault(key.lower(), []).append(value)
        self._given = given
        self.method = self._one(_METHODS, "GET").upper()
        path, _, self._query = self._one(_PATHS, "/").partition("?")
        self.path = unquote(path)

    @property
    def native(self) -> Mapping[str, Any]:
        """The entries."""
        return self._given

    @property
    def query_string(self) -> str:
        """The query that `:path` has."""
        return self._query.encode("utf-8", "replace").decode("latin-1")

    @property
    def peer(self) -> str | None:
        """The client's address."""
        return self._one((ADDRESS,), "") or None

    def header_lines(self, name: str) -> Sequence[str]:
        """Return the values of a key."""
        if name == "host":
            return [value for key in _HOSTS for value in self._given.get(key, ())]
        return self._given.get(name, [])

    def _one(self, keys: Sequence[str], default: str) -> str:
        return next((self._given[key][0] for key in keys if key in self._given), default)
