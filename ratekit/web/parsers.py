"""Strict parsers of what clients send: queries, forms, JSON and cookies, for fronts that have no framework at hand.

Frameworks differ in what they read from odd input. These parsers read what Starlette, Django and Werkzeug read alike.
Anything else in the field that is asked for is refused: a limit must never count another value than the application uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_plus, unquote_to_bytes

from ratekit.core.errors import UnusableRequestError

URLENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
FORMS = (URLENCODED, MULTIPART)
MOST_FIELDS = 1000  # as many as Django and Starlette read
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # noqa: S105 - as RFC 9110 calls it
_PARAMETER = re.compile(rf"[ \t]*;[ \t]*([\w\-.]+)=(?:({_TOKEN})|\"([^\"\\]*)\")", re.ASCII)
_UTF8 = ("", "utf-8", "utf8")
_LIKE_ASCII = ("us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1", "windows-1252")  # they write ASCII as UTF-8 does


class MediaType(NamedTuple):
    """A Content-Type: its kind in lower case, and its parameters as they were sent."""

    kind: str
    parameters: str = ""

    @classmethod
    def of(cls, lines: Iterable[str]) -> MediaType:
        """Read the lines of the header. Raises UnusableRequestError where frameworks would disagree about the kind."""
        given = list(lines) or [""]
        kind, semicolon, parameters = given[0].partition(";")
        media_type = kind.strip(" \t").lower()
        if len(given) > 1 or (media_type not in FORMS and kind.strip().lower() in FORMS):
            raise UnusableRequestError("the Content-Type of the request can be read in several ways")
        return cls(media_type, semicolon + parameters)

    @property
    def is_form(self) -> bool:
        """Whether the body is labelled as a form."""
        return self.kind in FORMS

    def parameter(self, name: str) -> str:
        """Return a parameter, empty if it is not there. Raises UnusableRequestError if the parameters are malformed."""
        matches = list(_PARAMETER.finditer(self.parameters))
        found = {match[1].lower(): match[2] or match[3] or "" for match in matches}
        if len(found) != len(matches) or _PARAMETER.sub("", self.parameters).strip(" \t;"):
            raise UnusableRequestError("the parameters of the Content-Type cannot be read")
        return found.get(name, "")

    def require_utf8(self, *, is_ascii: bool = False) -> None:
        """Refuse another charset, by which some frameworks decode and others do not. is_ascii: that makes no difference."""
        charset = self.parameter("charset").lower() if "charset" in self.parameters.lower() else ""
        if charset not in _UTF8 and not (is_ascii and charset in _LIKE_ASCII):
            raise UnusableRequestError("the charset of the body is not UTF-8")


def urlencoded_values(data: bytes, name: str) -> list[str]:
    """Return all values of one field of a query, or of a URL-encoded form."""
    if data.count(b"&") >= MOST_FIELDS:
        raise too_many_fields()
    try:
        data.decode()
    except UnicodeDecodeError:  # Flask reads nothing of it, and others read it as Latin-1
        raise UnusableRequestError("the parameters of the request are not UTF-8") from None
    pairs = (pair.partition(b"=") for pair in data.split(b"&"))
    return [_decoded(value) for key, _, value in pairs if _is_named(key, name)]


def too_many_fields() -> UnusableRequestError:
    """Return the error for a query or a form with more fields than frameworks read."""
    return UnusableRequestError(f"the request has more than {MOST_FIELDS} parameters")


def _is_named(raw: bytes, name: str) -> bool:
    try:
        return _decoded(raw) == name
    except UnusableRequestError:
        readings = (unquote_plus(raw.decode(charset, "replace")) for charset in ("utf-8", "latin-1"))
        if name in readings:
            raise
        return False


def _decoded(raw: bytes) -> str:
    """Decode percent signs and UTF-8. Frameworks differ in how they read raw bytes beyond ASCII, and what is not UTF-8."""
    try:
        raw.decode("ascii")
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise UnusableRequestError("a parameter of the request is not percent-encoded UTF-8") from None


_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\x00]*)")
_DISPOSITION = re.compile(
    rf"""form-data;\ ?name=(?:"(?P<quoted>[^"\\]*)"|(?P<token>{_TOKEN}))
    (?P<file>;\ ?filename=(?:"(?:[^"\\]|\\[^"])*"|{_TOKEN}))?(?P<extended>;\ ?filename\*=[^;"\s]*)?""",
    re.VERBOSE,
)


def multipart_values(data: bytes, boundary: str, name: str) -> list[str]:
    """Return all values of one text field of a multipart form. In a malformed form, other readers find other fields."""
    return [value for part in _parts(data, boundary) for value in _text_of(part, name)]


class _Part(NamedTuple):
    headers: dict[bytes, bytes]
    content: bytes


def _parts(data: bytes, boundary: str) -> Iterator[_Part]:
    first, *parts = data.split(b"--" + boundary.encode()) if boundary else [data]
    if first not in (b"", b"\r\n") or not parts or parts.pop() not in (b"--", b"--\r\n"):
        raise _malformed()
    if len(parts) > MOST_FIELDS:
        raise too_many_fields()
    for part in parts:
        if not part.startswith(b"\r\n") or not part.endswith(b"\r\n"):
            raise _malformed()
        head, blank, content = part[2:-2].partition(b"\r\n\r\n")
        if not blank:
            raise _malformed()
        yield _Part(_headers(head), content)


def _headers(head: bytes) -> dict[bytes, bytes]:
    matches = [_HEADER.fullmatch(line) for line in head.split(b"\r\n")]
    headers = {match[1].lower(): match[2] for match in matches if match is not None}
    if len(headers) != len(matches):
        raise _malformed()
    return headers


def _text_of(part: _Part, name: str) -> list[str]:
    """Return the text of a part, if it is the field that is asked for."""
    try:
        disposition = _DISPOSITION.fullmatch(part.headers.get(b"content-disposition", b"").decode())
        if disposition is None:
            raise _malformed()
        given = disposition["token"] or disposition["quoted"] or ""
        if given.strip() != name:
            return []
        if given != name or disposition["file"] or disposition["extended"] or not _is_text(part):
            raise UnusableRequestError(f"the field {name!r} of the form is not plain text")
        return [part.content.decode()]
    except UnicodeDecodeError:
        raise UnusableRequestError("the form is not UTF-8") from None


def _is_text(part: _Part) -> bool:
    kind = MediaType.of([part.headers.get(b"content-type", b"").decode("latin-1")])
    kind.require_utf8(is_ascii=part.content.isascii())
    return part.headers.get(b"content-transfer-encoding", b"8bit").lower() in (b"7bit", b"8bit", b"binary")


def _malformed() -> UnusableRequestError:
    return UnusableRequestError("the multipart form is malformed")


class NotJsonError(UnusableRequestError):
    """The body is not JSON."""


class _Conflict:
    """Different values of one key of a JSON object."""

    def __repr__(self) -> str:
        return "conflict"


_CONFLICT = _Conflict()


def json_value(body: bytes, path: str) -> str | None:
    """Return a field of a JSON body by its path, None if it has no text, number or truth value there."""
    try:
        value = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise NotJsonError(f"the body is not JSON, and the limit of the request needs its field {path!r}") from None
    for part in path.split("."):
        value = _child(value, part)
        if value is _CONFLICT:
            raise UnusableRequestError(f"the body has several values of {part!r}")
    if value is None or isinstance(value, dict | list):
        return None
    return value or None if isinstance(value, str) else _scalar(value)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        for key, value in pairs:
            if repr(value) != repr(found[key]):
                found[key] = _CONFLICT
    return found


def _child(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
        return value[int(part)]
    return None


def _scalar(value: float | bool) -> str:
    """Return a number as a text: 42, 42.0 and 4.2e1 are the same account."""
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


# How Werkzeug finds cookies. Starlette, Django and Litestar split at semicolons, within quotes too.
_COOKIE = re.compile(r'[ \t]*([^ \t=";]+)(?:[ \t]*=[ \t]*("(?:[^\\"]|\\.)*"|[^ \t";]*))?[ \t]*(?:;|\Z)')
_ESCAPED = re.compile(r"\\(?:([0-3][0-7]{2})|(.))")


def cookie_texts(lines: Iterable[str], name: str) -> set[str]:
    """Return the different texts of a cookie, quoted as they were sent, as Starlette and Django find them."""
    pairs = (chunk.partition("=") for line in lines for chunk in line.split(";"))
    return {text.strip() for key, equals, text in pairs if equals and key.strip() == name}


def cookie_value(lines: Sequence[str], name: str) -> str | None:
    """Return a cookie, None if it is not there, or if frameworks would not agree about its value."""
    joined = {tuple(lines), (",".join(lines),)}  # Django joins lines by commas
    decoded = {tuple(_as_utf8(line) for line in lines) for lines in joined}
    readings = [cookie_texts(lines, name) for lines in joined | decoded]
    readings += [_regular_texts(lines, name) for lines in joined | decoded]
    if any(reading != readings[0] for reading in readings) or len(readings[0]) != 1:
        return None
    value = _unquoted(readings[0].pop())
    return value if value.isascii() and unquote(value) == value and value else None


def _as_utf8(text: str) -> str:
    return text.encode("latin-1", "replace").decode("utf-8", "replace")


def _regular_texts(lines: Iterable[str], name: str) -> set[str]:
    return {text for line in lines for key, text in _regular_pairs(line) if key == name}


def _regular_pairs(line: str) -> Iterator[tuple[str, str]]:
    at = 0
    while True:
        match = _COOKIE.match(line, at)
        if match is not None and match.end() > at:
            yield match[1], match[2] or ""
            at = match.end()
        elif not (at := line.find(";", at) + 1):
            return


def _unquoted(text: str) -> str:
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)) if match[1] else match[2], text[1:-1])
