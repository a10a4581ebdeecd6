"""A limited API that Prometheus can scrape: python main.py, then curl http://127.0.0.1:8000/search and /metrics."""

from __future__ import annotations

import argparse

import prometheus_client
import uvicorn
from fastapi import Depends, FastAPI

from ratekit import report
from ratekit.telemetry import logs, prometheus
from ratekit_fastapi import PathRateLimiter, install

prometheus.install()
logs.install()
reporter = report.install(interval=1)

app = FastAPI()
install(app)
app.mount("/metrics", prometheus_client.make_asgi_app())


@app.get("/search", dependencies=[Depends(PathRateLimiter(max_requests=5, expiry=10, by="ip"))])
async def search() -> dict[str, str]:
    return {"found": "something"}


@app.get("/refused")
def refused() -> list[dict[str, object]]:
    reporter.flush()
    reports = report.read_report(reporter.store)
    return [{"endpoint": one.endpoint, "subjects": one.subjects, "affected": one.affected_by().subjects} for one in reports]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    print(f"http://127.0.0.1:{port}/search is limited; its metrics are at /metrics/", flush=True)
    uvicorn.run(app, port=port, log_level="warning")
