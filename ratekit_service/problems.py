"""Problems: every answer that is no success, as application/problem+json that names the field."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from ratekit.core.headers import PROBLEM_TYPE, RawLine

CONTENT_TYPE = PROBLEM_TYPE.encode()
_NO_STORE = (b"cache-control", b"no-store")


class Problem(Exception):
    """An answer with a status of 400 or more. `field` is the part of the request that it is about."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        retry_after: int | None = None,
        members: dict[str, Any] | None = None,
        headers: tuple[RawLine, ...] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.members = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
        self.members |= {} if field is None else {"field": field}
        self.members |= members or {}
        waiting: list[RawLine] = [] if retry_after is None else [(b"retry-after", b"%d" % retry_after)]
        self._headers = (*headers, *waiting)

    @property
    def body(self) -> bytes:
        """The body of the answer."""
        return msgspec.json.encode(self.members)

    @property
    def headers(self) -> list[RawLine]:
        """The header lines of the answer, but for its length."""
        return [(b"content-type", CONTENT_TYPE), _NO_STORE, *self._headers]


def not_loaded() -> Problem:
    """Return the 503 of an instance that has not loaded its configuration yet."""
    return Problem(503, "the configuration is not loaded yet: the database does not answer", retry_after=1)


def not_found(kind: str, field: str = "id") -> Problem:
    """Return the 404 for what does not exist, or is another tenant's: nobody can tell the two apart."""
    return Problem(404, f"there is no such {kind}", field=field)


def invalid(detail: str, field: str) -> Problem:
    """Return the 422 for a value that makes no sense."""
    return Problem(422, detail, field=field)
