"""The page's files, under a strict content security policy, and what the page is told when it opens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from starlette.staticfiles import StaticFiles

import ratekit

if TYPE_CHECKING:
    from ratekit_service.service import Service

router = APIRouter(include_in_schema=False)
_READ = ["GET", "HEAD"]
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class PageFiles(StaticFiles):
    """Files with the headers of the page."""

    def file_response(self, full_path: Any, stat_result: os.stat_result, scope: Any, status_code: int = 200) -> Response:
        """Return a file, or a 304."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


_FOLDER = Path(__file__).parent / "files"
_NAMES = frozenset(os.listdir(_FOLDER))
_files = PageFiles(directory=_FOLDER)


@router.api_route("/", methods=_READ)
async def page(request: Request) -> Response:
    """Return the page."""
    return await _files.get_response("index.html", request.scope)


@router.api_route("/docs", methods=_READ)
async def reference(request: Request) -> Response:
    """Return the reference of the API, which is made of the OpenAPI document."""
    return await _files.get_response("reference.html", request.scope)


@router.api_route("/page/settings.json", methods=_READ)
async def page_settings(request: Request) -> Response:
    """Say what the page can offer: the demo's key, if this is the demo, and never the token of administration."""
    service: Service = request.app.state.service
    settings = service.settings
    told = {
        "version": ratekit.__version__,
        "demo": settings.demo,
        "api_key": service.demo_key if settings.demo else "",
        "administration": bool(settings.admin_token),
    }
    return JSONResponse(told, headers=HEADERS | {"cache-control": "no-store"})


@router.api_route("/page/{name}", methods=_READ)
async def page_file(name: str, request: Request) -> Response:
    """Return a file of the page."""
    if name not in _NAMES:  # a name with a null byte is an error in what Starlette before 1.0 does with it
        raise HTTPException(404)
    return await _files.get_response(name, request.scope)
