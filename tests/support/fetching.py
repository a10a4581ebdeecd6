"""Requests to servers that have only just been started."""

from __future__ import annotations

import time

import httpx2


def fetch(url: str) -> httpx2.Response:
    """Get a page, waiting for its server for a while."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return httpx2.get(url)
        except httpx2.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
