"""Loggers of the standard library, found when there is something to say: to load them takes a tenth of the import."""

from __future__ import annotations

from typing import Any


class Logger:
    """The logger of a name, with its methods."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import logging

        return getattr(logging.getLogger(self._name), method)
