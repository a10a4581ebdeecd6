"""A request as key functions see it, whatever the front: method, path, headers, query, cookies, address, body."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from ratekit.addresses import TrustedProxies, address_subject, peer_subject


class FrontRequest(ABC):
    """What a front knows of a request before the application sees it."""

    method: str
    path: str  # without the part that a mount or a script name has taken
    body: bytes | None = None  # read only if a key function needs it
    proxies: TrustedProxies = TrustedProxies()

    @property
    @abstractmethod
    def native(self) -> Any:
        """The front's own object: an ASGI scope, a WSGI environ, a framework's request."""

    @abstractmethod
    def header_lines(self, name: str) -> Sequence[str]:
        """Return every line of a header, in order; the name is in lower case."""

    @property
    @abstractmethod
    def query_string(self) -> str:
        """The query, as it was sent."""

    @property
    @abstractmethod
    def peer(self) -> str | None:
        """The address of who is connected to the server; None at a Unix socket."""

    def header(self, name: str) -> str | None:
        """Return a header's first line, None if there is none or it is empty."""
        lines = self.header_lines(name.lower())
        return lines[0].strip() or None if lines else None

    def query(self, name: str) -> str | None:
        """Return the first value of a parameter of the query, None if there is none."""
        return _first(parse_qs(self.query_string, max_num_fields=1000), name)

    def cookie(self, name: str) -> str | None:
        """Return a cookie, None if there is none."""
        pairs = (part.partition("=") for line in self.header_lines("cookie") for part in line.split(";"))
        found = next((value.strip() for key, _, value in pairs if key.strip() == name), "")
        return found.strip('"') or None

    def address(self) -> str | None:
        """Return the subject of the client's address, None if it has none that can be trusted."""
        if self.proxies.is_empty:
            return peer_subject(self.peer)
        address = self.proxies.client(self.peer, self.header_lines(self.proxies.header))
        return None if address is None else address_subject(address)


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

    def header_lines(self, name: str) -> Sequence[str]:
        """Return every line of a header."""
        wanted = name.encode("latin-1", "replace")
        return [value.decode("latin-1") for key, value in self._scope["headers"] if key.lower() == wanted]

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


def _first(values: Mapping[str, Sequence[str]], name: str) -> str | None:
    found = values.get(name)
    return found[0] if found else None
