"""Whoever is on call is told: one line when a store goes and one when it is back, its health, and a metric."""

from __future__ import annotations

import logging
import time

from prometheus_client import CollectorRegistry

from faults.down import PLENTY
from faults.drive import Driver, Request
from faults.serving import serving
from ratekit.telemetry import prometheus
from support.servers import free_port, wait_until


def lines(caplog, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records if record.name == "ratekit.store")


def is_up(driver: Driver) -> bool:
    return driver.check(PLENTY).is_decided


def states(registry: CollectorRegistry, port: int) -> dict[str, float]:
    samples = [sample for metric in registry.collect() for sample in metric.samples if sample.name == "ratekit_store_state"]
    return {sample.labels["state"]: sample.value for sample in samples if sample.labels["store"].endswith(f":{port}")}


def test_store_that_goes_and_comes_is_told_once_each(ours, caplog):
    caplog.set_level(logging.INFO)
    port, registry = free_port(), CollectorRegistry()
    end = prometheus.install(registry)
    with ours.open(f"redis://127.0.0.1:{port}") as driver:
        began = time.time()
        with serving(port=port):
            wait_until(lambda: is_up(driver), "the store is not used", 5)
            assert (driver.limiter.health().state, driver.limiter.health().reason) == ("up", None)
            caplog.clear()
        driver.checks([Request(PLENTY)] * 100, width=4)
        health = driver.limiter.health()
        assert health.state in ("down", "probing")
        assert health.reason == "connection"
        assert began <= health.since <= time.time()
        assert (lines(caplog, "is down"), lines(caplog, "is up")) == (1, 0)
        assert states(registry, port)["up"] == 0
        with serving(port=port):
            wait_until(lambda: is_up(driver), "the store is not used again", 5)
            wait_until(lambda: states(registry, port) == {"up": 1, "down": 0, "probing": 0}, "the metric is not told", 5)
            assert driver.limiter.health().state == "up"
            assert (lines(caplog, "is down"), lines(caplog, "is up")) == (1, 1)
    end()
