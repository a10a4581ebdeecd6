"""The surge: the same riders without limits and with them, in one run, against the same matching service. `make surge`.

Writes results/surge.json, results/surge.svg and the table in README.md. --short takes seconds, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1])]

from report import publish, short_table, table  # noqa: E402

from benchmarks.server import free_port, start_server, stop_server, web_server, wheel_server  # noqa: E402

Request = tuple[float, str, str, int, float]  # when, rider, endpoint, status, milliseconds


@dataclass(frozen=True)
class Plan:
    """How many riders come how quickly, and how long they are measured once all are there."""

    riders: int
    spawn_seconds: float
    settle_seconds: float
    seconds: float

    @property
    def warm_seconds(self) -> float:
        return self.spawn_seconds + self.settle_seconds


# Riders come over 20 s, the time in which a bucket refills: else all would be granted their next request in one moment.
FULL = Plan(riders=165, spawn_seconds=20, settle_seconds=5, seconds=60)
SHORT = Plan(riders=40, spawn_seconds=1, settle_seconds=1, seconds=3)


def measure(mode: str, plan: Plan) -> dict[str, Any]:
    """Let the riders come while limits are on or off, and return what came of it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = start_server(wheel_server(), "--maxmemory", "256mb", "--maxmemory-policy", "noeviction")
        stack.callback(stop_server, redis)
        matching, port = free_port(), free_port()
        stack.enter_context(web_server([sys.executable, "matching.py", "--port", str(matching)], matching, cwd=FOLDER))
        settings = {"RATE_LIMIT_STORE_URL": redis.url, "RATE_LIMIT_MODE": mode, "MATCHING_PORT": str(matching)}
        command = [sys.executable, "-m", "uvicorn", "api:app", "--port", str(port), "--log-level", "warning"]
        url = stack.enter_context(web_server(command, port, cwd=FOLDER, env=os.environ | settings))
        found = send_riders(url, plan, folder / "requests.json")
    return summary(found["requests"], found["load"], plan)


def send_riders(url: str, plan: Plan, out: Path) -> dict[str, Any]:
    """Run Locust, and return every request that it has sent, and the load on the matching service."""
    command = [
        *(sys.executable, "-m", "locust", "-f", "riders.py", "--headless", "--host", url, "--only-summary"),
        *("--users", str(plan.riders), "--spawn-rate", str(plan.riders / plan.spawn_seconds)),
        *("--run-time", f"{plan.warm_seconds + plan.seconds:.0f}s", "--loglevel", "ERROR", "--exit-code-on-error", "0"),
    ]
    environment = os.environ | {"SURGE_OUT": str(out), "WARM_SECONDS": str(plan.warm_seconds)}
    finished = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode or not out.exists():
        raise RuntimeError(f"locust ended with {finished.returncode}: {finished.stderr}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def summary(requests: Sequence[Request], load: dict[str, float], plan: Plan) -> dict[str, Any]:
    """Sum up what riders and the matching service have seen since all riders were there: what was answered from then on."""
    seen = [request for request in requests if request[0] + request[4] / 1000 >= plan.warm_seconds]
    if not seen:
        raise RuntimeError(f"no request was answered in the {plan.seconds} s that are measured: the machine is too busy")
    served = [ms for _, _, _, status, ms in seen if status == 200]
    refused = [ms for _, _, _, status, ms in seen if status == 429]
    failed = sum(status not in (200, 429) for _, _, _, status, _ in seen)
    return {
        "requests": len(seen),
        "served": times(served),
        "refused": times(refused),
        "failed_percent": 100 * failed / len(seen),
        "matching": {
            "asked_per_second": load["asked"] / load["seconds"],
            "matched_per_second": load["matched"] / load["seconds"],
            "utilisation_percent": 100 * load["utilisation"],
        },
        "fair_share": fair_shares(requests, plan),
        "sample_ms": sorted(round(ms, 1) for ms in served)[:: max(1, len(served) // 400)],
    }


def times(milliseconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    if not ordered:
        return {"requests": 0}
    at = {name: ordered[int(share * (len(ordered) - 1))] for name, share in (("p95", 0.95), ("p99", 0.99))}
    return {"requests": len(ordered), "average": mean(ordered), "median": median(ordered), **at, "most": ordered[-1]}


def fair_shares(requests: Sequence[Request], plan: Plan) -> dict[str, float]:
    """How much of what the limits grant each rider was served, from its first request on: the least, and the median."""
    from api import LIMITS

    served = Counter(rider for _, rider, _, status, _ in requests if status == 200)
    first: dict[str, float] = {}
    for at, rider, *_ in requests:
        first[rider] = min(at, first.get(rider, at))
    end = plan.warm_seconds + plan.seconds
    per_second = sum(limit.max_requests / limit.window for limit in LIMITS.values())
    shares = [served[rider] / (len(LIMITS) + per_second * (end - at)) for rider, at in first.items()]
    return {"least": min(shares), "median": median(shares), "riders": len(shares)}


def surge(plan: Plan) -> dict[str, Any]:
    """Measure without limits, then with them."""
    return {"plan": asdict(plan), "without": measure("off", plan), "with": measure("on", plan)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a look of some seconds; nothing is written")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON, in place of a table")
    given = parser.parse_args()
    found = surge(SHORT if given.short else FULL)
    if not given.short:
        publish(found, FOLDER)
    print(json.dumps(found) if given.json else short_table(found) if given.short else table(found))
    if given.short and not given.json:
        print(f"\nA look of {SHORT.seconds:.0f} s each. `make surge` runs the whole, and compares it with its targets.")


if __name__ == "__main__":
    main()
