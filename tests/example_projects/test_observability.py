"""The example's alert rules, dashboard and application work, and speak of metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ratekit.telemetry.prometheus import Metrics
from support.fetching import fetch
from support.servers import REQUIRE_ALL, free_port

FOLDER = Path(__file__).parents[2] / "example_projects/observability"
OUTCOMES = {"allowed", "denied", "would_deny", "degraded", "error"}


def promtool(*arguments: str, cwd: Path = FOLDER) -> str:
    executable = shutil.which("promtool")
    if executable is None:
        reason = "no promtool: install the package prometheus"
        if REQUIRE_ALL:
            pytest.fail(reason)
        pytest.skip(reason)
    finished = subprocess.run([executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def expressions() -> list[str]:
    """The dashboard's queries, its variables replaced as Grafana does."""
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    return [query.replace("$__rate_interval", "5m").replace("$policy", ".*") for query in queries]


def test_alert_rules_are_accepted_by_promtool():
    assert "5 rules found" in promtool("check", "rules", "alerts.yml")


def test_alerts_fire_when_they_shall():
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def test_every_alert_is_tested():
    names = re.findall(r"- alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    assert set(names) == set(re.findall(r"alertname: (\w+)", (FOLDER / "alerts_test.yml").read_text()))


def test_queries_of_the_dashboard_are_accepted_by_promtool(tmp_path):
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(expressions())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", "rules.yml", cwd=tmp_path)


def test_alerts_and_dashboard_speak_of_every_metric_and_of_no_other():
    registry = prometheus_client.CollectorRegistry()
    Metrics(registry)
    families = list(registry.collect())
    there = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    spoken = " ".join([(FOLDER / "alerts.yml").read_text(), *expressions()])
    used = {name.removesuffix("_bucket") for name in re.findall(r"\bratekit_\w+", spoken)}
    assert used == there
    outcomes = {name for names in re.findall(r'outcome=~?"([\w|]+)"', spoken) for name in names.split("|")}
    assert {"denied", "would_deny"} <= outcomes <= OUTCOMES


def test_application_serves_its_metrics_and_its_report():
    port = free_port()
    command = [sys.executable, "main.py", "--port", str(port)]
    with subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert str(port) in process.stdout.readline()
            statuses = [fetch(f"http://127.0.0.1:{port}/search").status_code for _ in range(6)]
            metrics = fetch(f"http://127.0.0.1:{port}/metrics/").text
            refused = fetch(f"http://127.0.0.1:{port}/refused").json()
        finally:
            process.terminate()
    assert statuses == [200] * 5 + [429]
    samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
    found = {sample.labels["outcome"]: sample.value for sample in samples if sample.name == "ratekit_requests_total"}
    assert found == {"allowed": 5, "denied": 1}
    assert refused == [{"endpoint": "/search", "subjects": 1, "affected": 1}]
