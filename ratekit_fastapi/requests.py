"""A request of Starlette's as key functions see it: Starlette parses, so that a limit counts what the endpoint will read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from starlette import formparsers
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request

from ratekit.asgi import Message, Receive, read_body
from ratekit.core.errors import UnusableRequestError
from ratekit.web.client_address import TrustedProxies
from ratekit.web.identity import KeyFunction, body_too_long
from ratekit.web.parsers import MOST_FIELDS, cookie_texts, too_many_fields
from ratekit.web.requests import AsgiRequest

BODY = "ratekit.body"  # in the scope
_PARSES_FORMS = getattr(formparsers, "multipart", None) is not None  # python-multipart is installed


class LoadedBody(NamedTuple):
    """What was read of a body: its bytes, None if FastAPI has parsed it as a form before; and the fields of a form."""

    content: bytes | None = None
    fields: Sequence[tuple[str, str | None]] | None = None  # None in place of a file; None: Starlette has not parsed it


class StarletteRequest(AsgiRequest):
    """A request of Starlette's, with as much of its body as was loaded."""

    def __init__(self, connection: HTTPConnection, proxies: TrustedProxies) -> None:
        super().__init__(connection.scope, proxies)
        self._connection = connection
        self._loaded: LoadedBody = connection.scope.get(BODY) or LoadedBody()
        self.body = self._loaded.content

    @property
    def application_request(self) -> HTTPConnection:
        """Starlette's own: a Request, or a WebSocket."""
        return self._connection

    def query_values(self, name: str) -> Sequence[str]:
        """Return all values of a parameter, as `request.query_params` has them."""
        parameters = self._connection.query_params
        if len(parameters.multi_items()) > MOST_FIELDS:
            raise too_many_fields()
        return parameters.getlist(name)

    def cookie(self, name: str) -> str | None:
        """Return a cookie, as `request.cookies` has it; None if there are several different ones."""
        texts = cookie_texts(self.header_lines("cookie"), name)
        return self._connection.cookies.get(name) or None if len(texts) == 1 else None

    def form_values(self, name: str) -> Sequence[str]:
        """Return all texts of a field, as `request.form()` has them."""
        if self._loaded.fields is None:
            return super().form_values(name)
        values = [value for key, value in self._loaded.fields if key == name]
        texts = [value for value in values if value is not None]
        if texts and len(texts) != len(values):
            raise UnusableRequestError(f"the field {name!r} of the form is a text and a file")
        return texts

    @property
    def has_parsed_form(self) -> bool:
        """Whether FastAPI has parsed the body as a form, and only the form is left of it."""
        return self._loaded.content is None and self._loaded.fields is not None


async def load_body(connection: HTTPConnection, by: KeyFunction, proxies: TrustedProxies) -> None:
    """Read the body for a key function, within its bound, and leave all of it to the endpoint. A longer one is a 413."""
    if isinstance(connection, Request):
        request = StarletteRequest(connection, proxies)
        if by.looks_into_body(request):
            connection.scope[BODY] = await _load(connection, request, by)


async def _load(connection: Request, request: StarletteRequest, by: KeyFunction) -> LoadedBody:
    content = await _content(connection, request, by)
    if not request.media_type.is_form or not _PARSES_FORMS:
        return LoadedBody(content)
    if content is None:  # FastAPI has the form, whatever its size, and its files are on the disk
        fields = _fields(await connection.form())
        if sum(len(name) + len(value or "") for name, value in fields) > by.most_body:
            raise body_too_long(by)
        return LoadedBody(None, fields)
    return LoadedBody(content, await _parsed(connection, content))


async def _content(connection: Request, request: StarletteRequest, by: KeyFunction) -> bytes | None:
    """Return the body, None if it was parsed as a form. No more is read than the bound, and what is read is kept."""
    content: bytes | None
    if hasattr(connection, "_body"):
        content = await connection.body()  # the endpoint's own, read before
    elif connection._stream_consumed:  # noqa: SLF001 - Starlette does not say so elsewhere
        return None
    elif request.is_longer_than(by.most_body):
        raise body_too_long(by)
    else:
        content, connection._receive = await read_body(connection.receive, by.most_body)  # noqa: SLF001
    if content is None or len(content) > by.most_body:
        raise body_too_long(by)
    return content


async def _parsed(connection: Request, content: bytes) -> Sequence[tuple[str, str | None]]:
    """Let Starlette parse a form, apart from the endpoint's request, which may read the body in another way."""
    try:
        async with Request(connection.scope, _receiving(content)).form() as form:
            return _fields(form)
    except (HTTPException, formparsers.MultiPartException, ValueError):
        raise UnusableRequestError("the form is malformed") from None


def _receiving(content: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    return receive


def _fields(form: FormData) -> list[tuple[str, str | None]]:
    return [(name, value if isinstance(value, str) else None) for name, value in form.multi_items()]
