"""Names of keys, made here and nowhere else.

    ratelimit:<endpoint>:{<subject>}:<limit>        state of one limit
    ratelimit_override:<endpoint>:{<subject>}       override hash
    ratelimit_mode                                  mode of all processes
    ratelimit_report:{<endpoint>}:<day>:<limit>:…   what the report knows of one limit
    ratelimit_report                                which limits it knows of

The braces are literal: all keys of one subject share a slot of a Redis Cluster. What could be taken for a brace, and
white space and control characters, is percent-escaped within a part; so two different triples never meet in one key.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ratekit.errors import ConfigurationError
from ratekit.limits import Algorithm, Limit

DEFAULT_PREFIX = "ratelimit"
ELEMENTS_SUFFIX = "/elements"
LONGEST_PART = 200  # bytes; a longer part is hashed
_HASHED = "%sha256-"  # no escaped part can start like this: "%" is always followed by two hexadecimal digits

_plain = re.compile(r"[!-$&-z|~]{1,200}", re.ASCII).fullmatch
_OVERRIDE_KEY = r"(?P<prefix>.+?)_override:(?P<endpoint>[^{}]*):\{(?P<subject>[^{}]*)\}"


class OverrideKey(NamedTuple):
    """The parts of an override's key, as they were given; a part that was hashed is None."""

    endpoint: str | None
    subject: str | None

    @property
    def project(self) -> tuple[str, str] | None:
        """The organisation and the project, if the subject is of that form."""
        org_id, colon, project_id = (self.subject or "").rpartition(":")
        return (org_id, project_id) if colon and org_id and project_id else None


class Counter(NamedTuple):
    """What and who a key of a limit's state is about, as they were given; a part that was hashed is told by its hash."""

    endpoint: str
    subject: str


def base_key(prefix: str, endpoint: str, subject: str) -> str:
    """Return the key of a subject on an endpoint, to which `:<limit>` is appended."""
    return f"{prefix}:{_part('endpoint', endpoint)}:{{{_part('subject', subject)}}}"


def override_key(prefix: str, endpoint: str, subject: str) -> str:
    """Return the key of the override hash of a subject on an endpoint."""
    return base_key(f"{prefix}_override", endpoint, subject)


def override_pattern(prefix: str, endpoint: str | None = None) -> str:
    """Return what the keys of overrides match, all or those of an endpoint, as Redis writes patterns."""
    start = f"{prefix}_override:" if endpoint is None else override_key(prefix, endpoint, "*")[: -len("*}")]
    return _literally(start) + "*"


def state_pattern(prefix: str, endpoint: str, subject: str) -> str:
    """Return what the keys of a subject's counters on an endpoint match, as Redis writes patterns."""
    return f"{_literally(base_key(prefix, endpoint, subject))}:*"


def mode_key(prefix: str) -> str:
    """Return the key of the mode that all processes follow."""
    return f"{prefix}_mode"


def report_key(prefix: str, endpoint: str, day: int, limit: str, kind: str) -> str:
    """Return one of the keys in which the report keeps what it knows of a limit on an endpoint in a day."""
    return f"{report_index_key(prefix)}:{{{_part('endpoint', endpoint)}}}:{day}:{limit}:{kind}"


def report_index_key(prefix: str) -> str:
    """Return the key of the list of all limits that the report knows of."""
    return f"{prefix}_report"


def limit_suffix(limit: Limit) -> str:
    """Return what a limit appends to the base key.

    The algorithm is part of it unless it is the default, so that no algorithm reads another's state; a shadow limit has
    a counter of its own.
    """
    algorithm = "" if limit.algorithm is Algorithm.FIXED_WINDOW else f"@{limit.algorithm}"
    return f":{limit.name}{algorithm}{'@shadow' if limit.shadow else ''}"


def element_endpoint(endpoint: str, suffix: str = ELEMENTS_SUFFIX) -> str:
    """Return the endpoint under which the elements of requests are counted, apart from the requests."""
    return f"{endpoint}:{suffix}"


def whole_endpoint_subject(endpoint: str) -> str:
    """Return the reserved subject of an endpoint that is limited as a whole, all callers together."""
    return f"*{endpoint}"


def project_subject(org_id: object, project_id: object) -> str:
    """Return the subject of a project of an organisation."""
    return f"{_refuse_empty('org_id', str(org_id))}:{_refuse_empty('project_id', str(project_id))}"


def parse_override_key(key: str | bytes) -> OverrideKey:
    """Take an override's key apart, from the right, as endpoints contain colons; ConfigurationError if it is none."""
    text = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
    match = re.fullmatch(_OVERRIDE_KEY, text, re.DOTALL)
    if not match:
        raise ConfigurationError(f"key {text!r} is not the key of an override")
    return OverrideKey(_unescaped(match["endpoint"]), _unescaped(match["subject"]))


def parse_state_key(prefix: str, key: bytes) -> Counter:
    """Take the key of a limit's state apart. All before the tag is the endpoint of a key that the caller has made."""
    before, _, rest = key.decode("utf-8", "surrogateescape").partition("{")
    endpoint = before.removeprefix(f"{prefix}:").removesuffix(":")
    return Counter(_readable(endpoint), _readable(rest.partition("}")[0]))


def check_prefix(prefix: str) -> str:
    """Return a prefix for keys, or raise ConfigurationError if it would break them."""
    if not isinstance(prefix, str) or not _plain(prefix):
        raise ConfigurationError(f"prefix {prefix!r} of keys is empty, or has white space, braces or '%' in it")
    return prefix


def _literally(text: str) -> str:
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


def _part(name: str, part: str) -> str:
    return part if type(part) is str and _plain(part) else _escaped(name, part)


def _escaped(name: str, part: str) -> str:
    encoded = _refuse_empty(name, part).encode("utf-8", "surrogatepass")
    if len(encoded) > LONGEST_PART:
        import hashlib  # few parts are that long, and the import of ratekit is faster without

        return _HASHED + hashlib.sha256(encoded).hexdigest()
    return "".join(_percent(char) if _is_special(char) else char for char in part)


def _is_special(char: str) -> bool:
    return char in "%{}" or char.isspace() or not char.isprintable()


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _unescaped(part: str) -> str | None:
    if part.startswith(_HASHED):
        return None
    from urllib.parse import unquote_to_bytes  # for listing overrides only, and slow to load

    return unquote_to_bytes(part).decode("utf-8", "surrogatepass")


def _readable(part: str) -> str:
    if "%" not in part:
        return part
    text = _unescaped(part)
    return part.removeprefix("%") if text is None else text


def _refuse_empty(name: str, part: str) -> str:
    if not isinstance(part, str) or not part:
        raise ConfigurationError(f"{name} {part!r} is not a text with something in it: it would be a bucket for everybody")
    return part
