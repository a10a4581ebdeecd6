"""What a type checker sees of the public functions of administration, and what a misspelt argument is at run time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import run

import pytest

import ratekit
from ratekit import RateLimiter, report
from ratekit.admin import counters, explain, fleet_mode
from ratekit.overrides import (
    clear_rate_limit_overrides,
    delete_rate_limit_override,
    get_rate_limit_override,
    list_rate_limit_overrides,
    set_rate_limit_override,
)
from ratekit.stores.memory import MemoryStore

HEAD = """
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from ratekit import AsyncRateLimiter, Limit, RateLimiter, report
from ratekit.admin.counters import delete_counters, list_counters, measure_counters
from ratekit.admin.doctor import Finding, examine
from ratekit.admin.explain import Explanation, explain
from ratekit.admin.fleet_mode import FleetMode, clear_fleet_mode, follow, get_fleet_mode, set_fleet_mode
from ratekit.overrides import (
    Override, OverridePage, clear_rate_limit_overrides, delete_rate_limit_override, get_rate_limit_override,
    list_rate_limit_overrides, set_rate_limit_override,
)
from ratekit.stores.contract import AsyncStore, Store
"""
RIGHT = """
def waits(
    limiter: RateLimiter, store: Store, client: redis.Redis, other: valkey.Valkey, cluster: redis.RedisCluster
) -> None:
    written: Override = set_rate_limit_override(
        limiter, org_id=1, project_id="p", endpoint="/x", max_requests=5, expiry=1.5, override_ttl=60, note="n", set_by="b"
    )
    found: Override | None = get_rate_limit_override(client, endpoint="/x", subject="u")
    page: OverridePage = list_rate_limit_overrides(cluster, org_id=1, page_size=5)
    numbers: list[int | None] = [override.max_requests for override in page]
    deleted: bool = delete_rate_limit_override(other, endpoint="/x", subject="u", limit="hour")
    count: int = clear_rate_limit_overrides(store, endpoint="/x")
    used: list[int | None] = [counter.used for counter in list_counters(limiter, endpoint="/x", subject="u")]
    used = [counter.used for counter in measure_counters(limiter, endpoint="/x", subject="u")]
    count = delete_counters(client, endpoint="/x", subject="u")
    explanation: Explanation = explain(limiter, Limit(5, 60), "u", endpoint="/x", cost=2)
    set_fleet_mode(limiter, "monitor", note="n")
    mode: FleetMode | None = get_fleet_mode(client)
    deleted = clear_fleet_mode(store)
    follow("redis://localhost").close()
    findings: list[Finding] = list(examine(limiter))
    subjects: list[int] = [one.subjects for one in report.read_report(client, "/x", size=report.ReportSize(days=1))]
    count = report.clear_report(limiter)
    report.install(client, subjects="plain", interval=1.0).close()


async def awaits(
    limiter: AsyncRateLimiter, store: AsyncStore, client: redis.asyncio.Redis, other: valkey.asyncio.Valkey
) -> None:
    written: Override = await set_rate_limit_override(limiter, endpoint="/x", subject="u", unlimited=True)
    found: Override | None = await get_rate_limit_override(client, endpoint="/x", subject="u")
    page: OverridePage = await list_rate_limit_overrides(other)
    deleted: bool = await delete_rate_limit_override(store, endpoint="/x", subject="u")
    count: int = await clear_rate_limit_overrides(limiter)
    used: list[int | None] = [counter.used for counter in await list_counters(limiter, endpoint="/x", subject="u")]
    explanation: Explanation = await explain(limiter, Limit(5, 60), "u", endpoint="/x")
    await set_fleet_mode(client, "monitor")
    mode: FleetMode | None = await get_fleet_mode(limiter)
    subjects: list[int] = [one.subjects for one in await report.read_report(client)]
    count = await report.clear_report(store, "/x")
"""
WRONG = {
    'set_rate_limit_override(limiter, endpoint="/x", max_request=5)': 'Unexpected keyword argument "max_request"',
    'set_rate_limit_override(limiter, endpoint="/x", subject="u", max_requests="5")': "No overload variant",
    'set_rate_limit_override("redis://host", endpoint="/x", subject="u", max_requests=5)': "No overload variant",
    'get_rate_limit_override(limiter, endpoint="/x", subject="u").max_requests': 'Item "None"',
    'get_rate_limit_override(awaited, endpoint="/x", subject="u").max_requests': 'has no attribute "max_requests"',
    'list_rate_limit_overrides(limiter, orgid=1)': 'Unexpected keyword argument "orgid"',
    'list_counters(limiter, endpoint="/x")': "No overload variant",
    'explain(limiter, Limit(5, 60), "u", end_point="/x")': 'Unexpected keyword argument "end_point"',
    'set_fleet_mode(limiter, "on", reason="x")': 'Unexpected keyword argument "reason"',
    'get_fleet_mode(limiter).mode': 'Item "None"',
    'examine(awaited)': 'incompatible type "AsyncRateLimiter"',
    'report.read_report(limiter, days=1)': 'Unexpected keyword argument "days"',
    'report.install(limiter, intervall=1)': 'Unexpected keyword argument "intervall"',
    'follow(limiter, prefx="x")': 'Unexpected keyword argument "prefx"',
}  # fmt: skip


def errors_in(folder: Path, code: str) -> dict[int, str]:
    """Return what mypy --strict says of a module, by line."""
    (folder / "module.py").write_text(code)
    options = ["--strict", "--config-file=", "--cache-dir", str(folder / "cache"), "--no-error-summary"]
    variables = os.environ | {"MYPYPATH": str(Path(ratekit.__file__).parents[1])}
    command = [sys.executable, "-m", "mypy", *options, "module.py"]
    lines = run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False).stdout.splitlines()
    found: dict[int, str] = {}
    for line in lines:
        file, number, kind, message = line.split(":", 3)
        if file == "module.py" and kind.strip() == "error":
            found[int(number)] = found.get(int(number), "") + message
    return found


def test_right_uses_pass_and_wrong_ones_are_found(tmp_path):
    pytest.importorskip("mypy")
    start = "\ndef wrong(limiter: RateLimiter, awaited: AsyncRateLimiter) -> None:\n"
    code = HEAD + RIGHT + start
    first = code.count("\n") + 1
    errors = errors_in(tmp_path, code + "".join(f"    {line}\n" for line in WRONG))
    assert {number: text for number, text in errors.items() if number < first} == {}
    for number, (line, message) in enumerate(WRONG.items(), first):
        assert message in errors.get(number, "no error"), line


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (set_rate_limit_override, {"endpoint": "/x", "subject": "u"}),
        (get_rate_limit_override, {"endpoint": "/x", "subject": "u"}),
        (delete_rate_limit_override, {"endpoint": "/x", "subject": "u"}),
        (list_rate_limit_overrides, {}),
        (clear_rate_limit_overrides, {}),
        (counters.list_counters, {"endpoint": "/x", "subject": "u"}),
        (counters.delete_counters, {"endpoint": "/x", "subject": "u"}),
        (explain.explain, {"policy": ratekit.Limit(1, 1), "subject": "u"}),
        (fleet_mode.set_fleet_mode, {"mode": "on"}),
        (fleet_mode.get_fleet_mode, {}),
        (fleet_mode.clear_fleet_mode, {}),
        (fleet_mode.follow, {}),
        (report.read_report, {}),
        (report.clear_report, {}),
        (report.install, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_misspelt_argument_is_a_type_error_that_names_the_function(function, arguments):
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument 'mispelt'"):
        function(RateLimiter(MemoryStore()), **arguments, mispelt=1)


def test_missing_argument_is_a_type_error_that_names_the_function():
    with pytest.raises(
        TypeError, match=r"^get_rate_limit_override\(\) missing 1 required keyword-only argument: 'endpoint'"
    ):
        get_rate_limit_override(RateLimiter(MemoryStore()), subject="u")
    with pytest.raises(TypeError, match=r"^list_rate_limit_overrides\(\) missing 1 required positional argument"):
        list_rate_limit_overrides()
