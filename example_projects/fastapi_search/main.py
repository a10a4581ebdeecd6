"""A search API with projects: limits for each project, overrides by an operator, elements, and a trial in monitor mode."""

from __future__ import annotations

import argparse
from typing import Annotated, Any

import uvicorn
from fastapi import Body, Depends, FastAPI, HTTPException, Query, Request, Response

from ratekit import Limit
from ratekit.overrides import delete_rate_limit_override, list_rate_limit_overrides, set_rate_limit_override
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, apply_element_rate_limit, install

# Which project an API key is for. A real application asks its database.
PROJECTS = {"key-of-42": (1, 42), "key-of-43": (1, 43)}
OPERATOR = "operator"


async def identify(request: Request) -> tuple[int, int] | None:
    return PROJECTS.get(request.headers.get("X-API-Key", ""))


async def operator_only(request: Request) -> None:
    if request.headers.get("X-API-Key") != OPERATOR:
        raise HTTPException(403, "only for operators")


app = FastAPI(title="search")
# Counts in RATE_LIMIT_STORE_URL, else in the process. fleet_mode: `ratekit mode monitor` reaches every process.
settings = install(app, identify=identify, fleet_mode=True)


# Five in ten seconds is enforced. Three is on trial: it is counted beside, refuses nobody, and tells whom it would refuse.
@app.get("/search", dependencies=[Depends(ProjectRateLimiter(limits=["5/10s", Limit(3, 10, name="trial", shadow=True)]))])
async def search(q: str = "") -> dict[str, str]:
    return {"found": q}


@app.post("/matrix", dependencies=[Depends(ProjectRateLimiter(max_requests=100, expiry=60))])
async def matrix(request: Request, response: Response, rows: Annotated[list[list[float]], Body()]) -> dict[str, int]:
    """Compute a matrix. A request counts once, and each element too: a matrix of 10 x 5 costs 50 of 100 elements."""
    elements = sum(len(row) for row in rows)
    await apply_element_rate_limit(request, response, max_requests=100, expiry=60, increment_amount=elements)
    return {"elements": elements}


# A limiter in monitor mode: it counts, says in the headers that nothing is left, and lets every request pass.
@app.get("/suggest", dependencies=[Depends(PathRateLimiter(max_requests=2, expiry=60, by="ip", mode="monitor"))])
async def suggest() -> dict[str, list[str]]:
    return {"suggestions": ["ratekit"]}


@app.get("/health")
async def health() -> dict[str, bool]:
    """For probes. It does not ask the store: an outage of the limits is no reason to restart the application."""
    return {"well": True}


@app.put("/admin/projects/{org_id}/{project_id}", dependencies=[Depends(operator_only)])
async def raise_limit(org_id: int, project_id: int, max_requests: Annotated[int, Query(ge=0, le=10**9)]) -> dict[str, int]:
    """Give a project numbers of its own for a day, from its next request on. 0 blocks it."""
    await set_rate_limit_override(
        settings.limiter(),
        org_id=org_id,
        project_id=project_id,
        endpoint="/search",
        max_requests=max_requests,
        override_ttl=86400,
        set_by=OPERATOR,
    )
    return {"max_requests": max_requests}


@app.delete("/admin/projects/{org_id}/{project_id}", dependencies=[Depends(operator_only)])
async def restore_limit(org_id: int, project_id: int) -> dict[str, bool]:
    limiter = settings.limiter()
    deleted = await delete_rate_limit_override(limiter, org_id=org_id, project_id=project_id, endpoint="/search")
    return {"deleted": deleted}


@app.get("/admin/projects", dependencies=[Depends(operator_only)])
async def overrides() -> list[dict[str, Any]]:
    found = await list_rate_limit_overrides(settings.limiter())
    return [{"project": one.project_id, "max_requests": one.max_requests, "set_by": one.set_by} for one in found]


WHAT_TO_TRY = """\
A search API with projects on {url}: five searches in ten seconds for each project.

  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' -H 'X-API-Key: key-of-42' {url}/search; done
  curl -X PUT -H 'X-API-Key: operator' '{url}/admin/projects/1/42?max_requests=500'     # more, from the next request on
  ratekit mode monitor          # with RATE_LIMIT_STORE_URL: count on, refuse nobody, in every process

Ctrl-C ends the server."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of the loopback to listen on (default 8000)")
    port = parser.parse_args().port
    print(WHAT_TO_TRY.format(url=f"http://127.0.0.1:{port}"), flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
