"""Which project a request is of."""

from __future__ import annotations

from django.http import HttpRequest

# A real application asks its database.
PROJECTS = {"key-of-42": (1, 42), "key-of-43": (1, 43)}


def project_of(request: HttpRequest) -> tuple[int, int] | None:
    return PROJECTS.get(request.headers.get("X-API-Key", ""))
