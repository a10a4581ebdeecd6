"""How many worker processes run beside this one, as far as a process can find out: each has a memory:// of its own."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_OPTION = re.compile(r"(?:--workers=|-w=?)(\d+)")


def describe_workers() -> str | None:
    """Return what the other processes are and how often they multiply a limit, for a warning; None if there are none."""
    number, source = _number_of_workers()
    if number > 1:
        return f"{number} workers ({source}), each with counters of its own: together they admit {number} times"
    if number == 0:
        return "a process of multiprocessing, which counts for itself: N of them together admit N times"
    return None


def _number_of_workers() -> tuple[int, str]:
    """Return the number of workers and where it is from; 0 if there may be several and nothing says how many."""
    in_environment = os.environ.get("WEB_CONCURRENCY", "")
    if in_environment.isdecimal() and int(in_environment) > 1:
        return int(in_environment), "WEB_CONCURRENCY"
    processes = sys.modules.get("multiprocessing.process")  # loaded in every process that it has started
    if processes is not None and processes.parent_process() is not None:
        return _workers_of_parent(processes.current_process())
    if os.environ.get("SERVER_SOFTWARE", "").startswith("gunicorn"):
        given = [*shlex.split(os.environ.get("GUNICORN_CMD_ARGS", "")), *sys.argv]
        return _in_arguments(given) or 1, "gunicorn --workers"
    return 1, ""


def _workers_of_parent(process: object) -> tuple[int, str]:
    """Return the number of workers that a server has started by multiprocessing, as uvicorn does.

    It passes its configuration to the worker, which is a single one if it only reloads. Processes that are spawned have
    the arguments of their parent.
    """
    passed: Mapping[str, Any] = getattr(process, "_kwargs", {})
    workers = getattr(passed.get("config"), "workers", None)
    if isinstance(workers, int):
        return max(workers, 1), f"{type(passed['config']).__module__.partition('.')[0]} --workers"
    return _in_arguments(sys.argv) or 0, "--workers"


def _in_arguments(arguments: Sequence[str]) -> int | None:
    """Return the number in `--workers 4`, `--workers=4`, `-w 4` or `-w4`, the last one that there is."""
    number = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        match = _OPTION.fullmatch(argument)
        if match:
            number = int(match[1])
        elif argument in ("--workers", "-w") and following.isdecimal():
            number = int(following)
    return number
