"""Health, readiness and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

import ratekit
from ratekit_service.problems import not_loaded

if TYPE_CHECKING:
    from ratekit_service.service import Service

router = APIRouter(tags=["status"])


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"]
    version: str


class Ready(BaseModel):
    """Whether requests can be decided, and by what. `degraded`: the store or the database does not answer."""

    status: Literal["ok", "degraded"]
    store: str
    database: Literal["up", "down"]
    config_version: int
    config_age_seconds: float
    config_origin: str
    rules: int
    refused_rows: int


@router.head("/v1/health", include_in_schema=False)
@router.get("/v1/health")
async def health() -> Health:
    """Say that the process is alive."""
    return Health(status="ok", version=ratekit.__version__)


@router.head("/v1/ready", include_in_schema=False)
@router.get("/v1/ready", responses={503: {"description": "No configuration was loaded yet."}})
async def ready(request: Request) -> Ready:
    """Say whether requests can be decided. An instance stays ready while the store or the database is away."""
    service: Service = request.app.state.service
    version = service.refresher.configuration.version
    if version == 0:
        raise not_loaded()
    store, is_up = service.limiter.health().state.value, service.database.is_up
    return Ready(
        status="ok" if store == "up" and is_up else "degraded",
        store=store,
        database="up" if is_up else "down",
        config_version=version,
        config_age_seconds=round(service.refresher.age, 3),
        config_origin=service.database.origin,
        rules=service.refresher.configuration.rules,
        refused_rows=len(service.refresher.refused),
    )


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return the metrics, as Prometheus reads them."""
    service: Service = request.app.state.service
    service.measure()
    return Response(service.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")
