"""Requests as a FastAPI application gets them, for the contestants that take nothing else."""

from __future__ import annotations

from typing import Any

from fastapi import Request


def request_of(app: Any, subject: str) -> Request:
    """Make a request of a subject: its address."""
    scope = {
        "type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "client": (subject, 1), "app": app,
    }  # fmt: skip
    return Request(scope)
