"""Applications that do nothing, to hold the check service against."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

fastapi_nothing = FastAPI()


@fastapi_nothing.post("/v1/check")
async def do_nothing() -> dict[str, bool]:
    """Answer at once."""
    return {"allowed": True}


async def asgi_nothing(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, without a framework."""
    if scope["type"] != "http":
        return
    lines = [(b"content-type", b"application/json"), (b"content-length", b"16")]
    await send({"type": "http.response.start", "status": 200, "headers": lines})
    await send({"type": "http.response.body", "body": b'{"allowed":true}'})
