"""The document: which requests have which limits, as one typed model. docs/rules.md explains it to users.

Nothing here touches a request, a store or a source. `Document.parse` makes a model of values, `ratekit.rules.formats` makes
values of a text, and `ratekit.rules.compiled` makes what requests are matched with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ratekit.core.errors import ConfigurationError, DocumentError
from ratekit.rules.fields import (
    ActualField,
    AnchorField,
    CostField,
    CountField,
    Hosts,
    Methods,
    Moment,
    NonEmpty,
    PathField,
    ResetField,
    ShareField,
    Texts,
    parts_of_cost,
)
from ratekit.rules.formats import Pace
from ratekit.rules.forms import as_document_values
from ratekit.rules.identities import IdentityField, Part, parts_of
from ratekit.rules.limits import Limits, LimitsField
from ratekit.rules.problems import Place, fault, place_text, problems_of, shown
from ratekit.web.charging import charging_of
from ratekit.web.patterns import Pattern

MOST_RULES = 100_000
_CHARGING = ("actual", "hide", "count", "reset_when", "share", "anchor")

Mode = Literal["on", "off", "monitor"]
OnOutageName = Literal["open", "closed", "local"]
Anonymous = Literal["ip", "pass", "refuse"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Match(_Model):
    """Which requests a rule is for: those that have all that is given here. An empty one is for every request."""

    host: Hosts = ()
    method: Methods = ()
    path: PathField | None = None
    endpoint: Texts = ()
    headers: dict[NonEmpty, Texts] = {}

    @model_validator(mode="after")
    def _no_header_twice(self) -> Self:
        names = [name.lower() for name in self.headers]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise fault(f"the header {twice!r} stands twice", "headers")
        return self

    def described(self) -> str | None:
        """Return what it asks for in one line; None if it is for every request."""
        headers = [f"{name.lower()}={'|'.join(values)}" for name, values in self.headers.items()]
        asked = [self.path or "", "|".join(self.endpoint), "|".join(self.host), *headers]
        return " ".join(text for text in asked if text) or None


class Override(_Model):
    """Limits of one key in place of its others, until a point in time."""

    limits: LimitsField
    valid_until: Moment
    note: str | None = None


class RuleModel(_Model):
    """A rule: which requests, by whom, which limits."""

    name: NonEmpty | None = None
    match: Match = Match()
    by: IdentityField | None = None
    limits: LimitsField | None = None
    cost: CostField = 1
    estimate: CostField | None = None
    actual: ActualField | None = None
    hide: bool = False
    count: CountField | None = None
    reset_when: ResetField | None = None
    share: ShareField | None = None
    anchor: AnchorField | None = None
    custom: dict[NonEmpty, LimitsField] = {}
    overrides: dict[NonEmpty, Override] = {}
    counter: NonEmpty | None = None
    mode: Mode | None = None
    on_outage: OnOutageName | None = None
    anonymous: Anonymous | None = None
    plain: bool = False
    enabled: bool = True
    valid_from: Moment | None = None
    valid_until: Moment | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.limits is None and not self.custom and not self.overrides:
            raise fault("the rule has no limits: give limits, custom or overrides")
        if self.valid_from and self.valid_until and self.valid_from >= self.valid_until:
            raise fault(f"valid_until {self.valid_until} is not after valid_from {self.valid_from}")
        parameters = Pattern(self.match.path).segments if self.match.path else {}
        for part in (*parts_of(self.by), *parts_of_cost(self.cost), *parts_of_cost(self.estimate)):
            if part.kind == "path" and part.name not in parameters:
                raise fault(f"'path:{part.name}' is no parameter of one segment of the path {self.match.path!r}")
        try:
            charging_of({name: getattr(self, name) for name in _CHARGING} | {"cost": self.cost, "estimate": self._amount})
        except ConfigurationError as error:
            raise fault(str(error)) from None
        return self

    @property
    def _amount(self) -> int | None:
        """A number in place of the estimate, wherever it is said: what charging is made of is for the compiler."""
        return None if self.estimate is None else 1

    @property
    def endpoint(self) -> str | None:
        """Under which name it is counted; None: under that of the service, or "rules"."""
        only = self.match.endpoint[0] if len(self.match.endpoint) == 1 else None
        return self.counter or only or self.match.path or self.name or self.match.described()

    def all_limits(self) -> Iterator[tuple[Place, Limits]]:
        """Yield every set of limits of the rule, with its place."""
        if self.limits is not None:
            yield ("limits",), self.limits
        for key, limits in self.custom.items():
            yield ("custom", key), limits
        for key, override in self.overrides.items():
            yield ("overrides", key, "limits"), override.limits


class Document(_Model):
    """Rules, and what they share."""

    service: NonEmpty | None = None
    version: int | str | None = None
    last_updated: Moment | None = None
    apply: Literal["first", "all"] = "first"
    by: IdentityField | None = None
    mode: Mode | None = None
    on_outage: OnOutageName | None = None
    plans: dict[NonEmpty, LimitsField] = {}
    rules: Annotated[tuple[RuleModel, ...], Field(max_length=MOST_RULES, strict=False)] = ()

    @classmethod
    def parse(cls, values: Any, *, functions: Collection[str] | None = None, pace: Callable[[], None] | None = None) -> Self:
        """Make a document of values, or raise DocumentError with every fault and its place.

        functions names the functions that it may refer to; None: any, as the document is trusted. The forms of
        `ratekit.rules.forms` are accepted too.
        """
        pace = pace or Pace()
        if values is None:
            raise DocumentError(["the document is empty"])
        if not isinstance(values, Mapping):
            raise DocumentError([f"the document is {shown(values)}, not an object with rules"])
        given = dict(as_document_values(values, pace))
        rules, problems = _rules_of(given, pace)
        head: Self = _validated(cls, given | {"rules": ()}, problems)
        document = head.model_copy(update={"rules": tuple(rules)})  # each was validated on its own
        problems += _problems_between(document, functions, pace)
        if problems:
            raise DocumentError(problems)
        return document

    def values(self) -> dict[str, Any]:
        """Return the document as values for JSON, YAML or a database, without what it leaves open."""
        return self.model_dump(mode="json", exclude_defaults=True)


_FIELDS: dict[Place, list[str]] = {
    (): list(Document.model_fields),
    ("rules",): list(RuleModel.model_fields),
    ("rules", "match"): list(Match.model_fields),
}


def _rules_of(given: dict[str, Any], pace: Callable[[], None]) -> tuple[list[RuleModel], list[str]]:
    """Validate rule by rule: all of them at once would hold the interpreter for too long."""
    raw = given.get("rules", [])
    if not isinstance(raw, list | tuple):
        raise DocumentError([f"rules: {shown(raw)} is not a list"])
    if len(raw) > MOST_RULES:
        raise DocumentError([f"rules: there are {len(raw)}: at most {MOST_RULES} are read"])
    rules, problems = [], []
    for index, value in enumerate(raw):
        pace()
        try:
            rules.append(RuleModel.model_validate(value))
        except ValidationError as error:
            problems += problems_of(error, _FIELDS, ("rules", index))
    return rules, problems


def _validated(model: Any, values: Mapping[str, Any], problems: list[str]) -> Any:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise DocumentError(problems + problems_of(error, _FIELDS)) from None


def _problems_between(document: Document, functions: Collection[str] | None, pace: Callable[[], None]) -> Iterator[str]:
    """Yield the faults that no single field has: a name that stands twice, a plan that is not there, a function."""
    seen: dict[str, int] = {}
    for index, rule in enumerate(document.rules):
        pace()
        if rule.name is not None and rule.name in seen:
            yield f"rules[{index}].name: {rule.name!r} is the name of rules[{seen[rule.name]}] too"
        seen.setdefault(rule.name or "", index)
        for place, limits in rule.all_limits():
            where = place_text(("rules", index, *place))
            if limits.is_by_plan and not document.plans:
                yield f"{where}: 'plan' asks which plan a request has, and the document has no plans"
            if limits.plan is not None and limits.plan not in document.plans:
                yield f"{where}: {limits.plan!r} is no plan of the document; it has {', '.join(document.plans) or 'none'}"
    for name, limits in document.plans.items():
        if limits.plan is not None:
            yield f"{place_text(('plans', name))}: a plan has limits of its own, not those of the plan {limits.plan!r}"
        if limits.is_by_plan:
            yield f"{place_text(('plans', name))}: a plan has limits of its own, not those that plan_of names"
    if functions is not None:
        yield from _unwanted_functions(document, functions)


def _unwanted_functions(document: Document, functions: Collection[str]) -> Iterator[str]:
    places: list[tuple[Place, Iterable[Part]]] = [(("by",), parts_of(document.by))]
    for index, rule in enumerate(document.rules):
        places.append((("rules", index, "by"), parts_of(rule.by)))
        places += [(("rules", index, name), parts_of_cost(getattr(rule, name))) for name in ("cost", "estimate")]
    for place, parts in places:
        for part in parts:
            if part.kind == "function" and part.name not in functions:
                yield (
                    f"{place_text(place)}: the function {part.name!r} is not allowed in a document of this source: "
                    "allow it by functions=[…]"
                )
