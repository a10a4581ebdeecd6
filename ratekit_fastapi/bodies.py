"""The body of a request, for key functions that look into it, without taking it from the endpoint."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import HTTPConnection, Request

from ratekit.identity import KeyFunction, body_too_long

BODY = "ratekit.body"  # in the scope


async def read_body(connection: HTTPConnection, by: KeyFunction) -> bytes | None:
    """Return the body, or the fields of a form encoded again: FastAPI has read a form already, and keeps it.

    Uploads are not looked at: their stream belongs to the endpoint.
    """
    kind = connection.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not isinstance(connection, Request) or kind == "multipart/form-data":
        return None
    if kind == "application/x-www-form-urlencoded":
        fields = (await connection.form()).multi_items()
        body = urlencode([(name, value) for name, value in fields if isinstance(value, str)]).encode()
    else:
        body = await connection.body()
    if len(body) > by.most_body:
        raise body_too_long(by)
    return body
