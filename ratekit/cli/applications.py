"""Applications that the command line imports, and the limits that they declare."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any

import click

from ratekit.web.listing import ListedLimit, of_endpoint
from ratekit.web.table import Rule, Rules

GROUP = "ratekit.limits"  # entry points: functions of an application that answer its limits, None if it is not theirs


def imported(where: str, told: str) -> Any:
    """Return what MODULE:NAME names; told is how an error calls it."""
    module, _, name = where.partition(":")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.UsageError(f"{told} cannot be imported: {error}") from None
    finally:
        sys.path.remove("")


def kinds() -> str:
    """Return the names of the frameworks whose applications are known."""
    return ", ".join(sorted(entry.name for entry in entry_points(group=GROUP)))


def listed(application: Any) -> Sequence[ListedLimit] | None:
    """Return the limits of an application, None if no front knows its framework."""
    for entry in entry_points(group=GROUP):
        try:
            found: Sequence[ListedLimit] | None = entry.load()(application)
        except ImportError:  # the framework of this one is not installed
            continue
        if found is not None:
            return found
    return None


class ListedRules(Rules):
    """Finds the limits of an application by what they are counted under."""

    def __init__(self, lines: Iterable[ListedLimit]) -> None:
        super().__init__()
        self._lines = list(lines)

    def all_at(self, method: str, path: str) -> Sequence[Rule]:
        """Return the limits of a route or of an endpoint, as many as are declared; none if nothing declares any."""
        found = of_endpoint((line for line in self._lines if method in line.methods.split()), path)
        return [line.rule for line in found if line.rule is not None]
