"""The file format of envoyproxy/ratelimit: a domain, and the limits of its descriptors.

Every scalar of the file is read as the text that stands there, as Go reads it into a field: `value: 1.10` is "1.10". Faults
are collected, each with its place in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ratekit.core.errors import DocumentError, MissingExtraError
from ratekit.rules.problems import shown

MOST_BYTES = 32 * 1024 * 1024
MOST_DESCRIPTORS = 100_000  # of a file, with every alias counted as often as it stands there
MOST_DEPTH = 32
MOST_PER_UNIT = 2**32 - 1
_DAY = 86_400
Value = TypeVar("Value")


class Unit(NamedTuple):
    """A unit of time: its name in files, its number in Envoy's messages, and its length in seconds."""

    name: str
    number: int
    seconds: int


UNITS = (
    Unit("second", 1, 1), Unit("minute", 2, 60), Unit("hour", 3, 3600), Unit("day", 4, _DAY), Unit("week", 7, 7 * _DAY),
    Unit("month", 5, 30 * _DAY), Unit("year", 6, 365 * _DAY),
)  # fmt: skip
UNIT_OF_NUMBER = {unit.number: unit for unit in UNITS}
_UNIT_OF_NAME = {unit.name: unit for unit in UNITS}
_NO_METRICS = "names of metrics are ratekit's own: no metric has a value of a descriptor in its name"
_WITHOUT_EFFECT = {
    "detailed_metric": _NO_METRICS,
    "value_to_metric": _NO_METRICS,
    "quota_mode": "the limit counts and never refuses; violations are not written to dynamic_metadata",
}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit of a descriptor: so many requests in a unit, or, with no unit, as many as one likes."""

    requests_per_unit: int = 0
    unit: Unit | None = None
    name: str = ""
    replaces: tuple[str, ...] = ()

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self.unit is None


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor: a key, and a value, a beginning of values ("foo*"), or no value for all of them."""

    key: str
    value: str = ""
    rate_limit: RateLimit | None = None
    descriptors: tuple[Descriptor, ...] = ()
    is_shadow: bool = False
    shares: bool = False  # all values that a wildcard fits have one counter


@dataclass(frozen=True, slots=True)
class DescriptorFile:
    """A domain and its descriptors. notes says which fields of the file have no effect here, and why."""

    domain: str
    descriptors: tuple[Descriptor, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def load(cls, path: str | Path) -> DescriptorFile:
        """Read a file. Raises DocumentError with every fault and its place."""
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise DocumentError([f"the file cannot be read: {error.strerror}"], str(path)) from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str | bytes, name: str = "the file") -> DescriptorFile:
        """Read the text of a file. Raises DocumentError with every fault and its place."""
        return cls.of(_values(text, name), name)

    @classmethod
    def of(cls, values: Any, name: str = "the file") -> DescriptorFile:
        """Make a file of its values. Raises DocumentError with every fault and its place."""
        reader = _Reader()
        file = reader.file(values)
        if reader.problems:
            raise DocumentError(reader.problems, name)
        return file


def is_descriptor_file(values: Any) -> bool:
    """Whether values have the form of such a file, as opposed to a document of ratekit's own."""
    return isinstance(values, Mapping) and "domain" in values


class _Reader:
    """Makes a model of values, and takes note of every fault on the way."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._count = 0

    def file(self, values: Any) -> DescriptorFile:
        fields = self._fields(values, "", {"domain", "descriptors"})
        domain = self._text(fields, "", "domain")
        if fields and not domain:
            self._fault("domain", "it is missing or empty")
        descriptors = self._descriptors(fields.get("descriptors"), "descriptors", depth=1)
        return DescriptorFile(domain, descriptors, tuple(self.notes))

    def _descriptors(self, values: Any, place: str, depth: int) -> tuple[Descriptor, ...]:
        found: dict[tuple[str, str], Descriptor] = {}
        for index, item in enumerate(self._items(values, place)):
            here = f"{place}[{index}]"
            self._count += 1
            if self._count > MOST_DESCRIPTORS or depth > MOST_DEPTH:
                self._fault(
                    here, f"the file has more than {MOST_DESCRIPTORS} descriptors, or is nested over {MOST_DEPTH} deep"
                )
                break
            descriptor = self._descriptor(item, here, depth)
            if (descriptor.key, descriptor.value) in found:
                self._fault(here, f"key {descriptor.key!r} with value {descriptor.value!r} stands there a second time")
            found[descriptor.key, descriptor.value] = descriptor
        return tuple(found.values())

    def _descriptor(self, values: Any, place: str, depth: int) -> Descriptor:
        known = {"key", "value", "rate_limit", "descriptors", "shadow_mode", "share_threshold", *_WITHOUT_EFFECT}
        fields = self._fields(values, place, known)
        key, value = self._text(fields, place, "key"), self._text(fields, place, "value")
        if fields and not key:
            self._fault(f"{place}.key", "it is missing or empty")
        shares = self._flag(fields, place, "share_threshold")
        if shares and not value.endswith("*"):
            self._fault(f"{place}.share_threshold", f"it needs a value that ends in '*', not {value!r}")
        has_quota = [self._flag(fields, place, name) and self._note(place, name) for name in _WITHOUT_EFFECT][-1]
        shadow = self._flag(fields, place, "shadow_mode")
        limit = self._rate_limit(fields["rate_limit"], f"{place}.rate_limit") if "rate_limit" in fields else None
        inner = self._descriptors(fields.get("descriptors"), f"{place}.descriptors", depth + 1)
        return Descriptor(key, value, limit, inner, bool(shadow or has_quota), shares)

    def _rate_limit(self, values: Any, place: str) -> RateLimit:
        fields = self._fields(values, place, {"unit", "requests_per_unit", "unlimited", "name", "replaces"})
        unit_name, name = self._text(fields, place, "unit"), self._text(fields, place, "name")
        unit = _UNIT_OF_NAME.get(unit_name.lower())
        if self._flag(fields, place, "unlimited"):
            if unit_name:
                self._fault(f"{place}.unit", f"{unit_name!r} makes no sense beside unlimited: true")
            unit = None
        elif unit is None:
            self._fault(f"{place}.unit", f"{unit_name!r} is no unit: it is one of {', '.join(_UNIT_OF_NAME)}")
        count = self._count_of(fields, place)
        return RateLimit(count, unit, name, self._replaces(fields.get("replaces"), f"{place}.replaces", name))

    def _replaces(self, values: Any, place: str, own: str) -> tuple[str, ...]:
        names = []
        for index, item in enumerate(self._items(values, place)):
            here = f"{place}[{index}]"
            name = self._text(self._fields(item, here, {"name"}), here, "name")
            if not name or name == own:
                self._fault(f"{here}.name", "it is empty" if not name else f"{name!r} is the name of the limit itself")
            names.append(name)
        return tuple(names)

    def _count_of(self, fields: Mapping[str, Any], place: str) -> int:
        text = self._text(fields, place, "requests_per_unit") or "0"
        if not (text.isascii() and text.isdigit() and int(text[:20]) <= MOST_PER_UNIT):
            self._fault(f"{place}.requests_per_unit", f"{text!r} is not a whole number between 0 and {MOST_PER_UNIT}")
            return 0
        return int(text)

    def _fields(self, values: Any, place: str, known: set[str]) -> dict[str, Any]:
        if not isinstance(values, Mapping):
            self._fault(place or "the document", f"{shown(values)} is not a mapping with {', '.join(sorted(known))}")
            return {}
        for name in values:
            if name not in known:
                self._fault(f"{place}.{name}".lstrip("."), f"the field is unknown: there are {', '.join(sorted(known))}")
        return dict(values)

    def _items(self, values: Any, place: str) -> Iterator[Any]:
        if values is None or values == "":
            return iter(())
        if not isinstance(values, list | tuple):
            self._fault(place, f"{shown(values)} is not a list")
            return iter(())
        return iter(values)

    def _text(self, fields: Mapping[str, Any], place: str, name: str) -> str:
        value = fields.get(name)
        if value is None:
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float):
            self._fault(f"{place}.{name}".lstrip("."), f"{shown(value)} is not a text")
            return ""
        return str(value)

    def _flag(self, fields: Mapping[str, Any], place: str, name: str) -> bool:
        text = self._text(fields, place, name).lower()
        if text not in {"", "true", "false", "yes", "no", "on", "off"}:
            self._fault(f"{place}.{name}", f"{text!r} is neither true nor false")
        return text in {"true", "yes", "on"}

    def _note(self, place: str, name: str) -> bool:
        self.notes.append(f"{place}.{name}: {_WITHOUT_EFFECT[name]}")
        return True

    def _fault(self, place: str, sentence: str) -> None:
        self.problems.append(f"{place}: {sentence}")


def _values(text: str | bytes, name: str) -> Any:
    """Return the values of a YAML text, with every scalar as it is written."""
    if len(text) > MOST_BYTES:
        raise DocumentError([f"it has {len(text)} bytes, and at most {MOST_BYTES} are read"], name)
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("a file of descriptors", "rules") from None

    class Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
        """Refuses a key that stands twice in one mapping, which YAML's own loader lets the last one win."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        found = {loader.construct_object(key, deep=True): value for key, value in node.value}
        if len(found) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key stands twice in one mapping", node.start_mark)
        return {key: loader.construct_object(value, deep=True) for key, value in found.items()}

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    return _loaded(lambda: yaml.load(text, Loader=Loader), yaml.YAMLError, name)  # noqa: S506 - it makes texts only


def _loaded(load: Callable[[], Value], error_type: type[Exception], name: str) -> Value:
    try:
        return load()
    except error_type as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise DocumentError([f"it is not YAML{where}: {getattr(error, 'problem', None) or error}"], name) from None
    except (RecursionError, TypeError) as error:  # nested too deep, or a list as a key
        raise DocumentError([f"it is not a file of descriptors: {error}"], name) from None
