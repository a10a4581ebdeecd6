"""Applications that the command line imports, and the limits that they declare."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any

import click

from ratekit.core.limits import Limit, Policy
from ratekit.web.listing import UNKNOWN, ListedLimit, split_texts
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

    def at(self, method: str, path: str) -> Rule | None:
        """Return the limits of an endpoint in one policy, None if nothing declares any; no policy if they are asked for.

        A route whose limits all count under another endpoint stands for the first of those.
        """
        found = [line for line in self._lines if line.limits and method in line.methods.split()]
        lines = [line for line in found if path in (line.endpoint, line.route)]
        if not lines:
            return None
        endpoint = path if any(line.endpoint == path for line in lines) else lines[0].endpoint or path
        texts = [line.limits or "" for line in lines if line.endpoint == endpoint and line.limits != UNKNOWN]
        limits = {limit.name: limit for text in texts for limit in map(Limit.parse, split_texts(text))}
        return Rule(endpoint=endpoint, policy=Policy(endpoint, limits.values()) if limits else None)
