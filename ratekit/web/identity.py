"""Key functions: who is limited. Each takes a request and returns a subject, or None if the request does not say.

What a client sends (headers, cookies, parameters, fields) is hashed before it becomes a subject, so that secrets do not show
up in the names of keys; `plain=True` leaves it readable. RATE_LIMIT_HASH_KEY is the key of the hash.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from ratekit.core import events
from ratekit.core.errors import ConfigurationError, UnusableRequestError
from ratekit.core.keys import project_subject
from ratekit.core.pseudonyms import KEY_VARIABLE, pseudonyms
from ratekit.web.arguments import is_awaited, untold, wrong_type
from ratekit.web.parsers import NotJsonError
from ratekit.web.requests import FrontRequest

MOST_BODY = 64 * 1024
Normalize = Callable[[str], str] | str | None
CLAIMS = ("header", "query", "cookie", "json", "form", "body", "path")  # kinds of subjects that clients say themselves
_DIGITS = 32  # of the hash of what a client sends
_CLAIM = re.compile(rf"(?P<kind>{'|'.join(CLAIMS)}):(?P<name>[^:]+):(?P<value>.+)", re.DOTALL)
_log = logging.getLogger("ratekit.web")


@dataclass(frozen=True, slots=True)
class KeyFunction:
    """A function from a request to a subject, and what a front has to know about it."""

    name: str
    read: Callable[[FrontRequest], str | None]
    needs_body: bool = False
    most_body: int = MOST_BODY
    is_address: bool = False  # it is the client's address, at least where nothing else is said
    wants_body: Callable[[FrontRequest], bool] | None = None  # for this request; None: always, if it needs it
    is_claimed: bool = False  # the client says it, and nobody has verified it
    aread: Callable[[FrontRequest], Awaitable[str | None]] | None = None  # in place of read, where it has to be awaited

    def __call__(self, request: FrontRequest) -> str | None:
        """Return the subject of a request."""
        return self.read(request)

    def looks_into_body(self, request: FrontRequest) -> bool:
        """Whether the body of this request has to be read first. What cannot be read is refused later, by `read`."""
        try:
            return self.needs_body and (self.wants_body is None or self.wants_body(request))
        except (UnusableRequestError, ValueError):
            return False


def client_ip() -> KeyFunction:
    """The client's address: the peer's, unless proxies are trusted; IPv6 by /64."""
    return KeyFunction("client_ip", _address, is_address=True)


def header(name: str, *, plain: bool = False, normalize: Normalize = None) -> KeyFunction:
    """A header that the client sends."""
    return _claimed("header", name, lambda request: request.header(name), plain, normalize)


def query(name: str, *, plain: bool = False, normalize: Normalize = "auto") -> KeyFunction:
    """A parameter of the query. Several different values are a 400."""
    return _claimed("query", name, lambda request: request.query(name), plain, normalize)


def cookie(name: str, *, plain: bool = False, normalize: Normalize = None) -> KeyFunction:
    """A cookie."""
    return _claimed("cookie", name, lambda request: request.cookie(name), plain, normalize)


def json_field(path: str, *, plain: bool = False, normalize: Normalize = "auto", most_body: int = MOST_BODY) -> KeyFunction:
    """A field of a JSON body, by a path such as "user.id" or "items.0.sku"; the body may have so many bytes."""
    return _claimed("json", path, lambda request: request.json(path), plain, normalize, most_body)


def form_field(name: str, *, plain: bool = False, normalize: Normalize = "auto", most_body: int = MOST_BODY) -> KeyFunction:
    """A text field of a form, URL-encoded or multipart; the body, files included, may have so many bytes.

    normalize makes one subject of all spellings that the application takes for one: a callable, or "strip", "lower", "nfkc",
    "email", "username". By default fields that are called email, username, user or login are normalised; None: never.
    """
    return _claimed("form", name, lambda request: request.form(name), plain, normalize, most_body)


form = form_field


By = KeyFunction | Callable[[Any], str | int | UUID | Awaitable[str | int | UUID | None] | None] | str
_Saying = Generator[KeyFunction, str | None, str | None]  # asks key functions, one after the other


def first_of(*choices: By) -> KeyFunction:
    """The first of several that the request says: an API key, else a user, else the address."""
    functions = _key_functions("first_of", choices)

    def wants_body(request: FrontRequest) -> bool:
        """Whether no earlier choice says who it is, so that one is asked that looks into the body."""
        for function in functions:
            if function.needs_body and function.looks_into_body(request):
                return True
            if not function.needs_body and function.aread is None and function(request) is not None:
                return False
        return False

    return _made_of("first_of", functions, _first_said, wants_body)


def combine(*parts: By) -> KeyFunction:
    """All of several together: each tenant on each model. A request that lacks one part lacks the whole.

    The subject has the parts in their order with "|" between them. "|" and "%" within a part are percent-escaped, so two
    different combinations are never one subject.
    """
    functions = _key_functions("combine", parts)

    def wants_body(request: FrontRequest) -> bool:
        return any(function.looks_into_body(request) for function in functions)

    return _made_of("combine", functions, _all_said, wants_body)


def _key_functions(what: str, given: tuple[By, ...]) -> list[KeyFunction]:
    if not given:
        raise ConfigurationError(f"{what} () has nothing to choose from")
    return [as_key_function(one) for one in given]


def _made_of(
    what: str,
    functions: list[KeyFunction],
    say: Callable[[list[KeyFunction]], _Saying],
    wants_body: Callable[[FrontRequest], bool],
) -> KeyFunction:
    """Make a key function of several. It has to be awaited if one of them has to be."""
    is_awaited = any(function.aread is not None for function in functions)
    return KeyFunction(
        name=f"{what}(" + ", ".join(function.name for function in functions) + ")",
        read=lambda request: _said(say(functions), request),
        needs_body=any(function.needs_body for function in functions),
        most_body=min(function.most_body for function in functions),
        is_address=any(function.is_address for function in functions),
        wants_body=wants_body,
        is_claimed=any(function.is_claimed for function in functions),
        aread=(lambda request: _asaid(say(functions), request)) if is_awaited else None,
    )


def _first_said(functions: list[KeyFunction]) -> _Saying:
    """Return the first subject. A body that is not JSON may be a form: then a field of the form decides, nothing else."""
    not_json: NotJsonError | None = None
    for function in functions:
        if not_json is not None and not function.needs_body:
            continue
        try:
            subject = yield function
        except NotJsonError as error:
            not_json = not_json or error
            continue
        if subject is not None:
            return subject
    if not_json is not None:
        raise not_json
    return None


def _all_said(functions: list[KeyFunction]) -> _Saying:
    """Return all subjects in one, None if one of them is missing."""
    subjects = []
    for function in functions:
        subject = yield function
        if subject is None:
            return None
        subjects.append(subject.replace("%", "%25").replace("|", "%7C"))
    return "|".join(subjects)


def _said(saying: _Saying, request: FrontRequest) -> str | None:
    """Ask key functions."""
    try:
        function = next(saying)
        while True:
            try:
                subject = function.read(request)
            except NotJsonError as error:
                function = saying.throw(error)
            else:
                function = saying.send(subject)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _asaid(saying: _Saying, request: FrontRequest) -> str | None:
    """Ask key functions, of which some are awaited."""
    try:
        function = next(saying)
        while True:
            try:
                subject = function.read(request) if function.aread is None else await function.aread(request)
            except NotJsonError as error:
                function = saying.throw(error)
            else:
                function = saying.send(subject)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def as_key_function(by: By) -> KeyFunction:
    """Read what a user gives: a key function, any callable of the request, "ip", or "header:X-API-Key" and its like.

    A callable gets what callables of the application get: the framework's request, see FrontRequest.application_request.
    """
    if isinstance(by, KeyFunction):
        return by
    if isinstance(by, str):
        kind, colon, name = by.partition(":")
        if by in ("ip", "client_ip"):
            return client_ip()
        if colon and name and kind in _NAMED:
            return _NAMED[kind](name)
        raise ConfigurationError(
            f"by {by!r} is unknown: it is 'ip', one of {', '.join(f'{kind}:…' for kind in _NAMED)}, or a callable"
        )
    if not callable(by):
        raise ConfigurationError(f"by {by!r} is neither a text nor a callable")
    name = getattr(by, "__name__", "custom")
    call: Callable[[Any], Any] = by

    async def aread(request: FrontRequest) -> str | None:
        return checked_subject(await call(request.application_request))

    def read(request: FrontRequest) -> str | None:
        return checked_subject(call(request.application_request))

    return KeyFunction(name, read, aread=aread if is_awaited(by) else None)


def subject_of(by: KeyFunction, request: FrontRequest) -> str | None:
    """Return who is limited. Requests that lack what clients have to send are limited by address.

    None: not limited here, as a callable has said, or as there is no address.
    """
    try:
        subject = by.read(request)
    except ValueError as error:
        raise untold("who is limited", error) from None
    return _or_address(by, subject, request)


async def asubject_of(by: KeyFunction, request: FrontRequest) -> str | None:
    """Do what subject_of does, awaiting a key function that has to be."""
    if by.aread is None:
        return subject_of(by, request)
    try:
        subject = await by.aread(request)
    except ValueError as error:
        raise untold("who is limited", error) from None
    return _or_address(by, subject, request)


def _or_address(by: KeyFunction, subject: str | None, request: FrontRequest) -> str | None:
    return request.address() if subject is None and (by.is_claimed or by.is_address) else subject


def _address(request: FrontRequest) -> str | None:
    return request.address()


def checked_subject(subject: Any) -> str | None:
    """Return what a key function has answered as a subject. An integer is an id; other types are bugs of the application."""
    return _as_id("the key function", subject)


def identified_subject(identity: Any) -> str | None:
    """Return the subject of what identify has answered. Half a project is none: it would be a bucket for many."""
    if isinstance(identity, tuple) and len(identity) == 2:
        ids = [_as_id("identify", one) for one in identity]
        return None if None in ids else project_subject(*ids)
    return _as_id("identify", identity)


def _as_id(what: str, answer: Any) -> str | None:
    if answer is None or (type(answer) is str and answer):
        return answer
    if not isinstance(answer, str | int | UUID) or isinstance(answer, bool):
        raise wrong_type(what, answer, "a text, an integer, a UUID or None")
    if answer == "":
        raise UnusableRequestError(f"{what} answered an empty text: the request does not say who is limited")
    return str(answer)


def _claimed(
    kind: str,
    name: str,
    read: Callable[[FrontRequest], str | None],
    plain: bool,
    normalize: Normalize,
    most_body: int = MOST_BODY,
) -> KeyFunction:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigurationError(f"{kind} {name!r} is not a name")
    label = f"{kind}:{name.lower() if kind == 'header' else name}"
    normalized = _normalizer(normalize, name)

    def subject(request: FrontRequest) -> str | None:
        value = read(request)
        if value is not None and normalized is not None:
            value = _checked_text(normalized(value))
        return None if value is None else f"{label}:{value if plain else hashed(value)}"

    wants_body = _is_form if kind == "form" else None
    needs_body = kind in ("json", "form")
    return KeyFunction(label, subject, needs_body=needs_body, most_body=most_body, wants_body=wants_body, is_claimed=True)


def _is_form(request: FrontRequest) -> bool:
    return request.media_type.is_form


def hashed(value: str) -> str:
    """Return what stands for a value that a client sends, in subjects. RATE_LIMIT_HASH_KEY is the key of the hash."""
    return _hasher(os.environ.get(KEY_VARIABLE, ""))(value)


def counted_subject(subject: str) -> str | None:
    """Return the subject that stands for one like "header:x-api-key:VALUE" in counters, None if it needs none.

    People name a client by what it sends, and what it sends is hashed, and normalised where key functions do so by default.
    """
    found = _CLAIM.fullmatch(subject)
    if found is None or re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", found["value"]):
        return None
    kind, name, value = found["kind"], found["name"], found["value"]
    normalized = None if kind in ("header", "cookie", "path") else _normalizer("auto", name)
    value = value if normalized is None else normalized(value)
    return f"{kind}:{name.lower() if kind == 'header' else name}:{hashed(value)}"


@lru_cache(maxsize=4)
def _hasher(key: str) -> Callable[[str], str]:
    return pseudonyms(key, digits=_DIGITS)


def _nfkc(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _name(text: str) -> str:
    """Return a user name as most applications compare it. Folding may need another normalisation."""
    return _nfkc(_nfkc(text).casefold()).strip()


_NORMALIZERS: dict[str, Callable[[str], str]] = {
    "strip": str.strip,
    "lower": str.lower,
    "nfkc": _nfkc,
    "email": _name,
    "username": _name,
}
_NAMES = frozenset({"email", "e-mail", "e_mail", "username", "user_name", "user", "login"})


def _normalizer(normalize: Normalize, name: str) -> Callable[[str], str] | None:
    """Return the function that makes one text of several spellings, None for none; "auto" goes by the name of the field."""
    if normalize == "auto":
        return _name if name.rpartition(".")[2].lower() in _NAMES else None
    if normalize is None or (callable(normalize) and not inspect.iscoroutinefunction(normalize)):
        return normalize
    if not isinstance(normalize, str) or normalize not in _NORMALIZERS:
        raise ConfigurationError(f"normalize {normalize!r} is neither a callable nor one of {', '.join(_NORMALIZERS)}")
    return _NORMALIZERS[normalize]


def _checked_text(text: Any) -> str | None:
    if not isinstance(text, str):
        raise wrong_type("normalize", text, "a text")
    return text or None


def body_too_long(by: KeyFunction) -> UnusableRequestError:
    """Return the error for a body that is longer than a key function may look into."""
    detail = f"the body has more than {by.most_body} bytes, and who is limited ({by.name}) is in it"
    return UnusableRequestError(detail, status=413)


_NAMED: dict[str, Callable[[str], KeyFunction]] = {
    "header": header,
    "query": query,
    "cookie": cookie,
    "json": json_field,
    "form": form_field,
}

ANONYMOUS = ("pass", "ip", "refuse")
DEFAULT_ANONYMOUS = "ip"
limited_by_address: set[str] = set()  # endpoints of which the log has said that their requests lack a project
passes: Counter[str] = Counter()  # requests that were not limited, as nobody could be named for them, by endpoint
NO_ADDRESS = "it has no address (a Unix socket?): set trusted_hops"
NOBODY = "its key function has answered None"


def check_anonymous(anonymous: str) -> str:
    """Return what is done with anonymous requests, or raise ConfigurationError if it is none of the choices."""
    if anonymous not in ANONYMOUS:
        raise ConfigurationError(f"anonymous {anonymous!r} is unknown: it is one of {', '.join(ANONYMOUS)}")
    return anonymous


def anonymous_subject(anonymous: str, request: FrontRequest, what: str = "project") -> str | None:
    """Return who is limited in place of the project, or of what else names somebody; "refuse" raises a 401."""
    if anonymous == "refuse":
        raise UnusableRequestError(f"the request has no {what} that it could be limited by", status=401)
    return request.address() if anonymous == "ip" else None


def why_nobody(by: KeyFunction) -> str:
    """Return why a request passes for which subject_of has returned None."""
    return NO_ADDRESS if by.is_claimed or by.is_address else NOBODY


def note_address(endpoint: str, why: str) -> None:
    """Warn of an endpoint's first request that is limited by its address, as nothing says what else to do with it."""
    if endpoint not in limited_by_address:
        limited_by_address.add(endpoint)
        _log.warning("a request of %s is limited by its address: %s", endpoint, why)


def note_pass(endpoint: str, why: str) -> None:
    """Count a request that is not limited, and warn of an endpoint's first."""
    passes[endpoint] += 1
    if passes[endpoint] == 1:
        _log.warning("a request of %s is not limited: %s", endpoint, why)
    events.notify_unlimited(endpoint)
