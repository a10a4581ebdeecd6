"""The check service: one limiter for services in any language, over HTTP. `ratekit serve` runs it.

Needs the extra `service`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratekit_service.app import create_app
    from ratekit_service.settings import Settings

__all__ = ["Settings", "create_app"]
_HOMES = {"create_app": "ratekit_service.app", "Settings": "ratekit_service.settings"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: settings without FastAPI, for the command line."""
    if name not in _HOMES:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
