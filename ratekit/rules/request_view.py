"""A request as the functions of a document see it: the same on every front, in the words of Flask and Werkzeug.

A key function that is written for `request.headers`, `request.json` and `request.remote_addr` runs behind every framework.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from ratekit.web.requests import FrontRequest


class RequestView:
    """Headers, query, cookies and JSON body of a request. `native` is the front's own object."""

    def __init__(self, request: FrontRequest) -> None:
        self._request = request
        self.method = request.method
        self.path = request.path
        self.headers = Fields(request.header)
        self.args = Fields(request.query)
        self.cookies = Fields(request.cookie)

    @property
    def native(self) -> Any:
        """The framework's request, or the scope, or the environ."""
        return self._request.application_request

    @property
    def remote_addr(self) -> str | None:
        """The client's address: the peer's, unless proxies are trusted."""
        address = self._request.address()
        return None if address is None else address.removeprefix("ip:")

    @property
    def principal(self) -> str | None:
        """The user that was authenticated before."""
        return self._request.principal

    @cached_property
    def json(self) -> dict[str, Any]:
        """The object in a JSON body; empty if the body is none."""
        try:
            value = json.loads(self._request.body or b"{}")
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


class Fields:
    """Values by name: `name in fields`, `fields[name]`, `fields.get(name)`. The case of headers does not matter."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return a value, or the default if the request does not have it."""
        value: str | None = self._read(name)
        return default if value is None else value

    def __contains__(self, name: str) -> bool:
        return self._read(name) is not None

    def __getitem__(self, name: str) -> str:
        value: str | None = self._read(name)
        if value is None:
            raise KeyError(name)
        return value
