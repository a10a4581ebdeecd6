"""A request as key functions see it, whatever the front: method, path, headers, query, cookies, form, address, body.

A request is read as the application behind reads it, or not at all. A front that has a framework lets it parse. Where
several values leave open which one counts, a query or a form is refused, and a header or a cookie says nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ratekit.core.errors import UnusableRequestError
from ratekit.web import parsers
from ratekit.web.client_address import ClientAddress, TrustedProxies, peer_subject, proxy_watch

MOST_DIGITS = 18  # of a length: no body is longer, and int() refuses some thousands of digits


class FrontRequest(ABC):
    """What a front knows of a request before the application sees it."""

    method: str
    path: str  # without the part that a mount or a script name has taken
    body: bytes | None = None  # None: it was not read, or somebody else has read it
    body_error: UnusableRequestError | None = None  # why the body cannot be looked into
    proxies: TrustedProxies = TrustedProxies()

    @property
    @abstractmethod
    def native(self) -> Any:
        """The front's own object: an ASGI scope, a WSGI environ, a framework's request."""

    @property
    def application_request(self) -> Any:
        """What callables of the application get: the framework's request, or this one where there is no framework."""
        return self

    @property
    def principal(self) -> str | None:
        """The user that was authenticated before, None if there is none."""
        return None

    @abstractmethod
    def header_lines(self, name: str) -> Sequence[str]:
        """Return every line of a header, in order; the name is in lower case."""

    @property
    @abstractmethod
    def query_string(self) -> str:
        """The query as it was sent, its bytes as if they were Latin-1."""

    @property
    @abstractmethod
    def peer(self) -> str | None:
        """The address of who is connected to the server; None at a Unix socket."""

    def header(self, name: str) -> str | None:
        """Return a header, None if there is none, if it is empty, or if its lines differ."""
        lines = {line.strip(" \t") for line in self.header_lines(name.lower())}
        return lines.pop() or None if len(lines) == 1 else None

    def query(self, name: str) -> str | None:
        """Return a parameter of the query, None if there is none. Several different values are refused."""
        return _only(self.query_values(name), f"values of the parameter {name!r}")

    def cookie(self, name: str) -> str | None:
        """Return a cookie, None if there is none, or if there are several different ones."""
        return parsers.cookie_value(self.header_lines("cookie"), name)

    def form(self, name: str) -> str | None:
        """Return a field of a form, None if there is none. Several different values are refused."""
        if not self.media_type.is_form or (self.body is None and not self.has_parsed_form):
            return None
        return _only(self.form_values(name), f"values of the field {name!r}")

    def json(self, path: str) -> str | None:
        """Return a field of a JSON body, whatever its label says; None if there is none. Other bodies are refused."""
        kind = self.media_type
        if not self.body:
            if self.has_parsed_form:
                raise parsers.NotJsonError(
                    f"the body is a form, and the limit of the request needs the field {path!r} of a JSON body"
                )
            return None
        kind.require_utf8(is_ascii=self.body.isascii())
        value = parsers.json_value(self.body, path)
        if kind.is_form and self.form_values(path):
            raise UnusableRequestError(f"the body has the field {path!r} as JSON and as a form")
        return value

    @property
    def has_parsed_form(self) -> bool:
        """Whether somebody has parsed the body as a form before, and only the form is left of it."""
        return False

    @property
    def media_type(self) -> parsers.MediaType:
        """The Content-Type of the body."""
        return parsers.MediaType.of(self.header_lines("content-type"))

    def query_values(self, name: str) -> Sequence[str]:
        """Return all values of a parameter of the query. Django decodes it by the charset of the body."""
        self.media_type.require_utf8()
        return parsers.urlencoded_values(self.query_string.encode("latin-1"), name)

    def form_values(self, name: str) -> Sequence[str]:
        """Return all texts of a field of the form that the body is."""
        kind, body = self.media_type, self.body or b""
        if kind.kind == parsers.MULTIPART:
            kind.require_utf8(is_ascii=body.isascii())
            return parsers.multipart_values(body, kind.parameter("boundary"), name) if body else []
        kind.require_utf8()
        return parsers.urlencoded_values(body, name)

    def is_longer_than(self, most: int) -> bool:
        """Whether the request says that its body is longer than so many bytes."""
        length = self.header("content-length") or ""
        return length.isdecimal() and (len(length) > MOST_DIGITS or int(length) > most)

    def address(self) -> str | None:
        """Return the subject of the client's address, None if the peer has none and no proxy is trusted."""
        if not self.proxies.is_empty:
            return self.proxies.subject(self.peer, self.header_lines(self.proxies.header))
        if self.looks_for_proxy:
            proxy_watch.look(self.peer, self.header_lines)
        return peer_subject(self.peer)

    def client(self) -> ClientAddress | None:
        """Return the address of the client, None if it is not known."""
        lines = () if self.proxies.is_empty else self.header_lines(self.proxies.header)
        return self.proxies.client(self.peer, lines)

    @property
    def looks_for_proxy(self) -> bool:
        """Whether the peer may be a proxy that nobody has spoken of, so that the headers of its requests are looked at."""
        return not self.proxies.is_given and proxy_watch.is_watching(self.peer)


def principal_of(user: Any) -> str | None:
    """Return the id of a user object of Starlette or Django; None for nobody, and for an anonymous one."""
    if user is None or not getattr(user, "is_authenticated", True):
        return None
    for name in ("pk", "identity", "username"):
        try:
            found = getattr(user, name, None)
        except NotImplementedError:  # the base class of Starlette's users has no identity
            continue
        if found is not None and found != "":
            return str(found)
    return None


def asgi_path(scope: Mapping[str, Any]) -> str:
    """Return the path of a scope, without the part that a mount has taken."""
    path: str = scope["path"]
    root = scope.get("root_path")
    if not root:
        return path
    root = root.rstrip("/")
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


def asgi_peer(scope: Mapping[str, Any]) -> str | None:
    """Return the address of who is connected to the server."""
    client = scope.get("client")
    return client[0] if client else None


def asgi_header_lines(scope: Mapping[str, Any], name: str) -> list[str]:
    """Return every line of a header of a scope; the name is in lower case."""
    wanted = name.encode("latin-1", "replace")
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted]


class AsgiRequest(FrontRequest):
    """A request as an ASGI scope."""

    def __init__(self, scope: Mapping[str, Any], proxies: TrustedProxies) -> None:
        self._scope = scope
        self.proxies = proxies
        self.method = scope.get("method", "GET")
        self.path = asgi_path(scope)

    @property
    def native(self) -> Any:
        """The scope."""
        return self._scope

    @property
    def principal(self) -> str | None:
        """The user that Starlette's AuthenticationMiddleware, or one like it, has put into the scope."""
        return principal_of(self._scope.get("user"))

    def header_lines(self, name: str) -> Sequence[str]:
        """Return every line of a header."""
        return asgi_header_lines(self._scope, name)

    @property
    def query_string(self) -> str:
        """The query, as it was sent."""
        text: bytes = self._scope.get("query_string", b"")
        return text.decode("latin-1")

    @property
    def peer(self) -> str | None:
        """The address of who is connected to the server."""
        return asgi_peer(self._scope)


class WsgiRequest(FrontRequest):
    """A request as a WSGI environ."""

    def __init__(self, environ: Mapping[str, Any], proxies: TrustedProxies) -> None:
        self._environ = environ
        self.proxies = proxies
        self.method = environ["REQUEST_METHOD"]
        # WSGI hands the bytes of the path over as if they were Latin-1.
        self.path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace") or "/"

    @property
    def native(self) -> Any:
        """The environ."""
        return self._environ

    @property
    def principal(self) -> str | None:
        """The user that the server has authenticated."""
        return self._environ.get("REMOTE_USER") or None

    def header_lines(self, name: str) -> Sequence[str]:
        """Return a header, its lines joined by the server."""
        key = name.upper().replace("-", "_")
        value = self._environ.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}")
        return [] if value is None else [value]

    @property
    def query_string(self) -> str:
        """The query, as it was sent."""
        text: str = self._environ.get("QUERY_STRING", "")
        return text

    @property
    def peer(self) -> str | None:
        """The address of who is connected to the server."""
        return self._environ.get("REMOTE_ADDR") or None


def _only(values: Sequence[str], what: str) -> str | None:
    """Return the one value that there is. Which of several different ones the application takes is not known."""
    different = set(values)
    if len(different) > 1:
        raise UnusableRequestError(f"the request has several different {what}")
    return different.pop() or None if different else None
