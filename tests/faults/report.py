"""What was measured, kept as JSON and shown in docs/outages.md.

`make faults` measures and writes build/faults.json; `make outages` puts that into the page.
"""

from __future__ import annotations

import gc
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from faults.machine import Control
from faults.table import ROWS, SERVER, SPOILT_MS, Figures, is_time
from support.servers import SERVERS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "outages.md"
HEAD = "| fault | what has to hold | measured |\n| --- | --- | --- |\n"
_BEGIN, _END = "<!-- measured by make faults -->\n", "<!-- end -->\n"
_ATTEMPTS = 3
_PAUSE_MS = 5  # a machine that stops everything for longer than this has spoilt a time


class Report:
    """Every figure that was measured, by row and colour."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.figures: dict[str, dict[str, dict[str, float]]] = {}

    def measure(self, row: str, colour: str, work: Callable[..., Figures], *arguments: Any) -> None:
        """Measure a row and verify it. What the machine has spoilt, not the limiter, is measured again, at most twice."""
        for _ in range(_ATTEMPTS):
            gc.collect()
            gc.freeze()  # what other tests have left is not gone through while something is measured
            self._control.worst()
            figures = work(*arguments)
            if not self._is_spoilt(figures, ROWS[row].missed(figures)):
                break
        self._keep(row, colour, figures)
        ROWS[row].verify(figures)

    def _is_spoilt(self, figures: Figures, missed: list[str]) -> bool:
        """Whether times were missed while the machine paused; or anything while it, or the server, did for long."""
        pause_ms = max(self._control.worst() * 1000, figures.get(SERVER, 0))
        enough_ms = _PAUSE_MS if all(is_time(name) for name in missed) else SPOILT_MS
        return bool(missed) and pause_ms > enough_ms

    def _keep(self, row: str, colour: str, figures: Figures) -> None:
        """Keep the worst of each figure where a row is measured several times."""
        kept = self.figures.setdefault(row, {}).setdefault(colour, {})
        for name, value in figures.items():
            kept[name] = round(max(kept.get(name, 0), value), 3)

    def write(self, file: Path) -> None:
        """Write everything as JSON."""
        file.parent.mkdir(exist_ok=True)
        servers = [_version(executable) for executable in SERVERS.values() if executable]
        machine = {"python": platform.python_version(), "machine": platform.machine(), "servers": servers}
        file.write_text(json.dumps(machine | {"rows": self.figures}, indent=1) + "\n")


def _version(executable: str) -> str:
    text = subprocess.check_output([executable, "--version"], text=True)
    return re.search(r"v=(\S+)", text)[1]


def table(rows: Mapping[str, Mapping[str, Figures]]) -> str:
    """Lay out what was measured."""
    lines = [f"| {row.fault} | {row.promise} | {_cell(rows.get(name, {}))} |\n" for name, row in ROWS.items()]
    return HEAD + "".join(lines)


def _cell(colours: Mapping[str, Figures]) -> str:
    return "; ".join(f"{colour}: {_figures(colours[colour])}" for colour in ("sync", "async") if colour in colours)


def _figures(figures: Figures) -> str:
    return ", ".join(_figure(name, value) for name, value in figures.items())


def _figure(name: str, value: float) -> str:
    words, _, unit = name.rpartition(" ") if is_time(name) else (name, "", "")
    return f"{words} {value:.3g} {unit}".strip() if is_time(name) else f"{name} {value:g}"


def shown(page: str) -> str:
    """Return the part of a page that was measured."""
    return page.partition(_BEGIN)[2].partition(_END)[0]


def main(file: Path) -> None:
    """Put what was measured into the page."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(before + _BEGIN + table(json.loads(file.read_text())["rows"]) + _END + after)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
