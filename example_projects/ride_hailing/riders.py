"""The traffic, for Locust: riders after a concert, each of whom asks again and again. The same in every run.

SURGE_OUT names the file that gets every request, for the report; WARM_SECONDS is when the measurement begins.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
import urllib.request
from pathlib import Path
from typing import Any

import gevent
from locust import FastHttpUser, constant, events, task

THINK = (0.2, 0.4)  # seconds between an answer and the next request
PICKUP = {"lat": 40.7505, "lng": -73.9934}
numbers = itertools.count()
requests: list[tuple[float, str, str, int, float]] = []  # when, rider, endpoint, status, milliseconds
clock = {"begun": 0.0}
load: dict[str, float] = {}  # on the matching service, while it was measured


class Rider(FastHttpUser):
    """A rider in a hurry. The number of a rider is the seed of all that it does."""

    wait_time = constant(0)
    connection_timeout = network_timeout = 30.0

    def on_start(self) -> None:
        number = next(numbers)
        self.name = f"rider-{number}"
        self.random = random.Random(number)

    def send(self, method: str, path: str, **options: Any) -> None:
        at = time.monotonic()
        with self.client.request(method, path, headers={"X-User-Id": self.name}, catch_response=True, **options) as answer:
            answer.success()  # the report tells what failed
            milliseconds = (time.monotonic() - at) * 1000
        requests.append((at - clock["begun"], self.name, path.partition("?")[0], answer.status_code, milliseconds))
        time.sleep(self.random.uniform(*THINK))

    @task(5)
    def request_ride(self) -> None:
        self.send("POST", "/api/rides/request", json={"rider_id": self.name, "pickup": PICKUP})

    @task(2)
    def estimate_fare(self) -> None:
        self.send("POST", "/api/fares/estimate", json={"pickup": PICKUP})

    @task(1)
    def nearby_drivers(self) -> None:
        self.send("GET", f"/api/drivers/nearby?lat={PICKUP['lat']}&lng={PICKUP['lng']}")


@events.test_start.add_listener
def measure_later(environment: Any, **_: Any) -> None:
    """Begin to measure when all riders are there: the load on the matching service is counted anew from then on."""
    clock["begun"] = time.monotonic()

    def begin() -> None:
        gevent.sleep(float(os.environ["WARM_SECONDS"]))
        urllib.request.urlopen(urllib.request.Request(f"{environment.host}/load", method="DELETE")).close()

    gevent.spawn(begin)


@events.test_stopping.add_listener
def read_load(environment: Any, **_: Any) -> None:
    with urllib.request.urlopen(f"{environment.host}/load") as answer:
        load.update(json.load(answer))


@events.quitting.add_listener
def write(**_: Any) -> None:
    Path(os.environ["SURGE_OUT"]).write_text(json.dumps({"requests": requests, "load": load}))
