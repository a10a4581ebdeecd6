"""The middleware of ratekit.asgi for FastAPI and Starlette: callables get Starlette's request, and routes are known."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection, Request

from ratekit import asgi
from ratekit.asgi import Scope
from ratekit_fastapi.requests import StarletteRequest
from ratekit_fastapi.routes import template_before


def route_of(request: HTTPConnection) -> str:
    """Return the template of the route that a request will meet, "unmatched" if there is none."""
    return template_before(request.scope)


class RateLimitMiddleware(asgi.RateLimitMiddleware):
    """Limits requests before the application routes them: `app.add_middleware(RateLimitMiddleware, rules={…})`.

    Arguments are those of ratekit.asgi. by, cost, limits, plan_of, counter and exempt get what they get in dependencies:
    Starlette's request, of which the body cannot be read here. per_route counts by the templates of the routes.
    """

    route_of: Any = staticmethod(route_of)

    def request(self, scope: Scope) -> StarletteRequest:
        """Return a request as key functions and rules see it."""
        connection = Request(scope) if scope["type"] == "http" else HTTPConnection(scope)
        return StarletteRequest(connection, self.options.proxies)
