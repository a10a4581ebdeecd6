"""Operations of Django Ninja: a throttle where one waits, the decorator where one awaits."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import NinjaAPI

from ratekit_django import rate_limit
from ratekit_django.ninja import RateLimitThrottle

api = NinjaAPI(title="datasets")


@api.get("/datasets/{int:dataset_id}/search", throttle=RateLimitThrottle("4/10s", by="project"))
def search(request: HttpRequest, dataset_id: int, q: str = "") -> dict[str, object]:
    return {"dataset": dataset_id, "found": q}


@api.get("/datasets/{int:dataset_id}/export")
@rate_limit(limits="2/10s")
async def export(request: HttpRequest, dataset_id: int) -> dict[str, object]:
    return {"dataset": dataset_id, "exported": True}
