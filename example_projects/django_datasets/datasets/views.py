"""Views of Django. The decorator is the same on those that wait and those that are awaited."""

from __future__ import annotations

import asyncio

from django.http import HttpRequest, HttpResponse, JsonResponse

from ratekit_django import rate_limit


@rate_limit(max_requests=5, expiry=10)  # each project; counted under the URL pattern, not under one dataset
def search(request: HttpRequest, dataset_id: int) -> HttpResponse:
    return JsonResponse({"dataset": dataset_id, "found": request.GET.get("q", "")})


@rate_limit(limits=["2/10s", "100/day"])  # several windows, decided together
async def export(request: HttpRequest, dataset_id: int) -> HttpResponse:
    await asyncio.sleep(0.01)  # the work
    return JsonResponse({"dataset": dataset_id, "exported": True})


# On trial: it counts, says in the headers that nothing is left, and lets every request pass.
@rate_limit(max_requests=2, expiry=60, mode="monitor")
async def suggest(request: HttpRequest, dataset_id: int) -> HttpResponse:
    return JsonResponse({"dataset": dataset_id, "suggestions": ["ratekit"]})


def preview(request: HttpRequest, dataset_id: int) -> HttpResponse:
    """Limited by nothing but the page Rules of the admin."""
    return JsonResponse({"dataset": dataset_id, "rows": []})


def health(request: HttpRequest) -> HttpResponse:
    """For probes. It does not ask the store: an outage of the limits is no reason to restart the application."""
    return JsonResponse({"well": True})
