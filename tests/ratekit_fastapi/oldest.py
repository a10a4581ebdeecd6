"""Run by test_oldest.py in a process of its own, with the oldest FastAPI that is supported: all is well, or it fails."""

from __future__ import annotations

import sys

import fastapi
import starlette
from fastapi import APIRouter, Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import StreamingResponse
from starlette.testclient import TestClient, WebSocketDenialResponse

from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, install


def main() -> None:
    assert (fastapi.__version__, starlette.__version__) == ("0.115.12", "0.46.2"), (
        fastapi.__version__,
        starlette.__version__,
    )
    app = make_app()
    client = TestClient(app, client=("203.0.113.7", 1))
    check_templates(client)
    check_headers(client)
    check_openapi(app)
    check_websockets(client)
    check_lifespan(app)
    sys.stdout.write("all is well")


def make_app() -> FastAPI:
    app = FastAPI()
    install(app, store="memory://oldest", identify=lambda request: ("acme", "p1"))
    router = APIRouter(dependencies=[Depends(PathRateLimiter(1000, 3600))])

    @router.get("/items/{number}", dependencies=[Depends(PathRateLimiter(2, 600))])
    async def item(number: int):
        return {"number": number}

    @router.get("/stream")
    async def stream():
        return StreamingResponse(iter(["a", "b", "c"]))

    @router.get("/missing")
    def missing():
        raise HTTPException(404)

    @router.websocket("/ws/{room}", dependencies=[Depends(PathRateLimiter(1, 600))])
    async def ws(websocket: WebSocket, room: str):
        await websocket.accept()
        await websocket.send_text(room)
        await websocket.close()

    outer = APIRouter()
    outer.include_router(router, prefix="/in")
    for prefix in ("/v1", "/v2"):
        app.include_router(outer, prefix=prefix)

    @app.get("/project", dependencies=[Depends(ProjectRateLimiter(5, 600))])
    async def project():
        return {}

    @app.get("/free")
    async def free():
        return {}

    inner = FastAPI()
    inner.get("/x", dependencies=[Depends(PathRateLimiter(1, 600))])(free)
    app.mount("/sub", inner)
    return app


def check_templates(client: TestClient) -> None:
    for prefix in ("/v1", "/v2"):
        statuses = [client.get(f"{prefix}/in/items/{number}").status_code for number in range(3)]
        assert statuses == [200, 200, 429], statuses
    assert [client.get("/sub/x").status_code for _ in range(2)] == [200, 429]


def check_headers(client: TestClient) -> None:
    for path, status in (("/v1/in/stream", 200), ("/v1/in/missing", 404), ("/v2/in/stream", 200), ("/project", 200)):
        answer = client.get(path)
        assert answer.status_code == status, (path, answer.status_code)
        assert int(answer.headers["RateLimit-Remaining"]) == int(answer.headers["RateLimit-Limit"]) - 1, path
        assert "Retry-After" not in answer.headers
    answer = client.get("/v1/in/items/x")
    assert (answer.status_code, answer.headers["Content-Type"]) == (429, "application/problem+json")
    assert 590 <= int(answer.headers["Retry-After"]) <= 600
    assert "RateLimit-Limit" not in client.get("/free").headers


def check_openapi(app: FastAPI) -> None:
    paths = app.openapi()["paths"]
    limited = {path for path, operations in paths.items() if "429" in operations["get"]["responses"]}
    assert limited == set(paths) - {"/free"}, limited
    assert "/v2/in/items/{number}" in limited


def check_websockets(client: TestClient) -> None:
    for prefix in ("/v1", "/v2"):
        with client.websocket_connect(f"{prefix}/in/ws/a") as socket:
            assert socket.receive_text() == "a"
        try:
            with client.websocket_connect(f"{prefix}/in/ws/b"):
                raise AssertionError("the socket was accepted")
        except WebSocketDenialResponse as denied:
            assert denied.status_code == 429
            assert int(denied.headers["Retry-After"]) > 0


def check_lifespan(app: FastAPI) -> None:
    with TestClient(app) as client:
        assert client.get("/project").status_code == 200


if __name__ == "__main__":
    main()
