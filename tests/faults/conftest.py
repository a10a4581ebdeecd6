"""What the rows share: the colours, a crowd of processes, and the report of what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.crowd import Crowd
from faults.drive import Maker
from faults.machine import Control
from faults.report import ROOT, Report
from faults.serving import serving
from support.servers import Server


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    with Control() as control:
        report = Report(control)
        yield report
    report.write(ROOT / "build" / "faults.json")


@pytest.fixture(scope="session")
def crowd() -> Iterator[Crowd]:
    with Crowd() as crowd:
        yield crowd


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ours(colour: str) -> Maker:
    return Maker(colour)
