"""The names of all keys in the store.

    ratelimit:<endpoint>:{<subject>}:<limit>        state of one limit
    ratelimit:<endpoint>:{<subject>}:~<id>          record of a reservation
    ratelimit_override:<endpoint>:{<subject>}       override hash
    ratelimit_override:*:{<subject>}                override hash for all endpoints of a subject
    ratelimit_mode                                  mode of all processes
    ratelimit_report:{<endpoint>}:<day>:<limit>:…   what the report has recorded of one limit
    ratelimit_report                                the limits that the report has recorded

The braces are literal: all keys of one subject share a slot of a Redis Cluster. Within a part, "%", braces, white space and
control characters are percent-escaped, so that two different triples never have the same key.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import Algorithm, Limit

DEFAULT_PREFIX = "ratelimit"
ALL_ENDPOINTS = "*"  # in the key of an override that is for all endpoints of a subject
ELEMENTS_SUFFIX = "/elements"
LONGEST_PART = 200  # bytes; a longer part is hashed
_ESCAPED_STAR = "%2A"  # an endpoint that is called "*"
_HASHED = "%sha256-"  # no escaped part can start like this: "%" is always followed by two hexadecimal digits

_needs_no_escape = re.compile(r"[!-$&-z|~]{1,200}", re.ASCII).fullmatch
_OVERRIDE_KEY = r"(?P<prefix>.+?)_override:(?P<endpoint>[^{}]*):\{(?P<subject>[^{}]*)\}"


class OverrideKey(NamedTuple):
    """The parts of an override's key, unescaped. A part that is hashed in the key is None."""

    endpoint: str | None
    subject: str | None

    @property
    def project(self) -> tuple[str, str] | None:
        """The ids of the organisation and the project; None if the subject does not have the form of a project."""
        org_id, _, project_id = (self.subject or "").partition(":")
        return (_id(org_id), _id(project_id)) if org_id and project_id and ":" not in project_id else None


class Counter(NamedTuple):
    """The endpoint and the subject in the key of a limit's state, unescaped. A part that is hashed is its hash."""

    endpoint: str
    subject: str


def base_key(prefix: str, endpoint: str, subject: str) -> str:
    """Return the key of a subject on an endpoint, to which `:<limit>` is appended."""
    where = _ESCAPED_STAR if endpoint == ALL_ENDPOINTS else _part("endpoint", endpoint)
    return f"{prefix}:{where}:{{{_part('subject', subject)}}}"


def override_key(prefix: str, endpoint: str, subject: str) -> str:
    """Return the key of the override hash of a subject on an endpoint."""
    return base_key(f"{prefix}_override", endpoint, subject)


def wide_override_key(prefix: str, subject: str) -> str:
    """Return the key of the override hash of a subject for all endpoints. No endpoint has the same key, not even "*"."""
    return f"{prefix}_override:{ALL_ENDPOINTS}:{{{_part('subject', subject)}}}"


def record_key(state_key: bytes, reservation: str) -> bytes:
    """Return the key of a reservation's record, beside the state of the first limit that it has spent from."""
    return state_key.rpartition(b":")[0] + b":~" + reservation.encode()


def override_pattern(prefix: str, endpoint: str | None = None) -> str:
    """Return the pattern for SCAN that matches the keys of all overrides, or of those on one endpoint."""
    start = f"{prefix}_override:"
    if endpoint is not None:
        any_key = wide_override_key(prefix, "*") if endpoint == ALL_ENDPOINTS else override_key(prefix, endpoint, "*")
        start = any_key[: -len("*}")]
    return _literally(start) + "*"


def state_pattern(prefix: str, endpoint: str, subject: str) -> str:
    """Return the pattern for SCAN that matches the keys of a subject's counters on an endpoint."""
    return f"{_literally(base_key(prefix, endpoint, subject))}:*"


def mode_key(prefix: str) -> str:
    """Return the key of the fleet mode, which all processes follow."""
    return f"{prefix}_mode"


def copied_overrides_key(prefix: str, tenant: str = "") -> str:
    """Return the key of the list of overrides that were copied from a database, with the version of each."""
    return f"{prefix}_copied_overrides" + (f":{_part('tenant', tenant)}" if tenant else "")


def rules_key(prefix: str, name: str) -> str:
    """Return the key of a document of rules, which is also the channel that announces its changes."""
    return f"{prefix}_rules:{{{_part('name', name)}}}"


def report_key(prefix: str, endpoint: str, day: int, limit: str, kind: str) -> str:
    """Return one of the keys in which the report records a limit on an endpoint for a day."""
    return f"{report_index_key(prefix)}:{{{_part('endpoint', endpoint)}}}:{day}:{limit}:{kind}"


def report_index_key(prefix: str) -> str:
    """Return the key of the list of all limits that the report has recorded."""
    return f"{prefix}_report"


def limit_suffix(limit: Limit) -> str:
    """Return the suffix that a limit appends to the base key.

    It has the algorithm in it unless that is the default: no algorithm reads the state of another. A shadow limit has a
    counter of its own.
    """
    algorithm = "" if limit.algorithm is Algorithm.FIXED_WINDOW else f"@{limit.algorithm}"
    return f":{limit.name}{algorithm}{'@shadow' if limit.shadow else ''}"


def element_endpoint(endpoint: str, suffix: str = ELEMENTS_SUFFIX) -> str:
    """Return the endpoint under which the elements of requests are counted, separately from the requests."""
    return f"{endpoint}:{suffix}"


def tenant_endpoint(tenant: str, endpoint: str) -> str:
    """Return the endpoint under which a tenant's requests are counted, separately from those of other tenants."""
    return f"{tenant}:{endpoint}"


def whole_endpoint_subject(endpoint: str) -> str:
    """Return the reserved subject of an endpoint that is limited as a whole, all callers together."""
    return f"*{endpoint}"


def project_subject(org_id: object, project_id: object) -> str:
    """Return the subject of a project of an organisation, `<org_id>:<project_id>`.

    A colon within an id is escaped, and so is "%": ("a:b", "c") and ("a", "b:c") are two subjects.
    """
    ids = (_refuse_empty("org_id", str(org_id)), _refuse_empty("project_id", str(project_id)))
    return ":".join(one.replace("%", "%25").replace(":", "%3A") for one in ids)


def parse_override_key(key: str | bytes) -> OverrideKey:
    """Return the parts of an override's key. It is parsed from the right, as endpoints contain colons.

    Raises ConfigurationError if it is not the key of an override.
    """
    text = key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
    match = re.fullmatch(_OVERRIDE_KEY, text, re.DOTALL)
    if not match:
        raise ConfigurationError(f"key {text!r} is not the key of an override")
    return OverrideKey(_unescaped(match["endpoint"]), _unescaped(match["subject"]))


def parse_state_key(prefix: str, key: bytes) -> Counter:
    """Return the parts of the key of a limit's state. In a key of the application's own, all before "{" is the endpoint."""
    before, _, rest = key.decode("utf-8", "surrogateescape").partition("{")
    endpoint = before.removeprefix(f"{prefix}:").removesuffix(":")
    return Counter(_readable(endpoint), _readable(rest.partition("}")[0]))


def check_prefix(prefix: str) -> str:
    """Return a prefix of keys unchanged. Raises ConfigurationError if keys with it could not be parsed."""
    if not isinstance(prefix, str) or not _needs_no_escape(prefix):
        raise ConfigurationError(f"prefix {prefix!r} of keys is empty, or has white space, braces or '%' in it")
    return prefix


def _id(escaped: str) -> str:
    """Return an id of project_subject as it was given."""
    return escaped.replace("%3A", ":").replace("%25", "%")


def _literally(text: str) -> str:
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


def _part(name: str, part: str) -> str:
    return part if type(part) is str and _needs_no_escape(part) else _escaped(name, part)


def _escaped(name: str, part: str) -> str:
    encoded = _refuse_empty(name, part).encode("utf-8", "surrogatepass")
    if len(encoded) > LONGEST_PART:
        import hashlib  # imported late: few parts are that long, and the import of ratekit is faster without it

        return _HASHED + hashlib.sha256(encoded).hexdigest()
    return "".join(_percent(char) if _is_special(char) else char for char in part)


def _is_special(char: str) -> bool:
    return char in "%{}" or char.isspace() or not char.isprintable()


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _unescaped(part: str) -> str | None:
    if part.startswith(_HASHED):
        return None
    from urllib.parse import unquote_to_bytes  # imported late: slow to load, and needed for listing overrides only

    return unquote_to_bytes(part).decode("utf-8", "surrogatepass")


def _readable(part: str) -> str:
    if "%" not in part:
        return part
    text = _unescaped(part)
    return part.removeprefix("%") if text is None else text


def _refuse_empty(name: str, part: str) -> str:
    if not isinstance(part, str) or not part:
        raise ConfigurationError(f"{name} {part!r} is not a non-empty text: everybody would share one counter")
    return part
