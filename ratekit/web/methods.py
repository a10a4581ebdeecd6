"""The methods of HTTP, as rules and views declare them: compared in upper case, as Django, Flask and Werkzeug read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from ratekit.core.errors import ConfigurationError

_COMMON = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
# The rest of IANA's registry of methods, and those of caches and UPnP.
_OTHERS = [
    "ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LOCK", "MERGE", "MKACTIVITY",
    "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "ORDERPATCH", "PROPFIND", "PROPPATCH", "REBIND", "REPORT",
    "SEARCH", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL",
    "BAN", "M-SEARCH", "NOTIFY", "PURGE", "SUBSCRIBE", "UNSUBSCRIBE",
]  # fmt: skip
_METHOD_FIRST = re.compile(r"([^\s/]+) +(.+)", re.DOTALL)


def checked_method(method: str, where: str) -> str:
    """Return a method in upper case, or raise ConfigurationError that names the one that was probably meant."""
    known = method.upper()
    if is_method(method):
        return known
    close = get_close_matches(known, _COMMON, 1) or get_close_matches(known, _OTHERS, 1)
    hint = f"did you mean {close[0]}?" if close else f"methods are {', '.join(_COMMON)} and the others of IANA's registry"
    raise ConfigurationError(f"{where} names the unknown method {method!r}: {hint}")


def checked_methods(methods: Iterable[str]) -> frozenset[str]:
    """Return the methods that a rule or a view is for, or raise ConfigurationError if they are no list of methods."""
    given = None if isinstance(methods, str) or not isinstance(methods, Iterable) else list(methods)
    if not given or not all(isinstance(method, str) for method in given):
        raise ConfigurationError(f"methods {methods!r} is not a list of methods like ['POST']")
    return frozenset(checked_method(method, f"methods {given!r}") for method in given)


def is_method(word: str) -> bool:
    """Whether a word is a method of HTTP, in either case."""
    return word.upper() in _COMMON or word.upper() in _OTHERS


def split_endpoint(text: str, where: str) -> tuple[str | None, str]:
    """Return the method before an endpoint, None if there is none, and the endpoint, which is a path or a name.

    A name may have blanks, such as "chat messages". A word that is no method is refused before a path alone.
    """
    first, _, rest = text.partition(" ")
    return split_method(text, where) if is_method(first) or rest.lstrip().startswith("/") else (None, text)


def split_method(text: str, where: str) -> tuple[str | None, str]:
    """Return the method before a pattern, None if there is none, and the pattern: "POST /login"."""
    match = _METHOD_FIRST.fullmatch(text)
    return (checked_method(match[1], where), match[2]) if match else (None, text)
