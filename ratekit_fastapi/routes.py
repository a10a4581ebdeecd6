"""What FastAPI knows of the route of a request: its template, and the limiters that are declared on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from fastapi import routing
from starlette.routing import Host, Match, Mount

from ratekit.core.limit_names import OPTIONS, by_operation

UNMATCHED = "unmatched"
_GET = {"GET", "HEAD"}


class RateLimiterMark:
    """Base class of limiters, by which the dependencies of a route are told apart."""


def endpoint_of(scope: MutableMapping[str, Any]) -> str:
    """Return the template of the route, with the prefixes of every router and mount around it; never a concrete path."""
    template = _template(effective_route(scope))
    return _mount_template(scope, template) + template if template else UNMATCHED


def effective_route(scope: MutableMapping[str, Any]) -> Any:
    """Return what FastAPI runs for a request: the route, or its effective context within the routers that include it.

    Since FastAPI 0.137 scope["route"] does not know the prefixes of those routers; its effective context does. A context
    that belongs to another route is that of a router around the application that has the route.
    """
    route, context = scope.get("route"), scope.get("fastapi")
    effective = context.get("effective_route_context") if isinstance(context, dict) else None
    if effective is None or getattr(effective, "original_route", None) is not route:
        return route
    return getattr(effective, "starlette_route", None) or effective


def _template(route: Any) -> str:
    template = getattr(route, "path_format", None) or getattr(route, "path", None)
    return template if isinstance(template, str) else ""


def operation_of(scope: MutableMapping[str, Any]) -> str:
    """Return what tells the operation from others of its path, in the names of limits: its methods, but for GET.

    A route that declares no method has one counter for all methods, and one for OPTIONS. A WebSocket begins with a GET.
    """
    methods = getattr(effective_route(scope), "methods", None)
    if methods:
        return by_operation(methods) if methods - _GET else ""
    return OPTIONS if scope.get("method", "GET").upper() == "OPTIONS" else ""


def template_before(scope: MutableMapping[str, Any]) -> str:
    """Return the template that a request will meet, for who asks before the application has routed it.

    The routes are asked one after the other, as the application does: the first that matches, else the first that only lacks
    the method.
    """
    walked = {**scope, "path_params": {}, "fastapi": {}}
    routes, found, partly = _routes_in(scope.get("app")), "", UNMATCHED
    while True:
        for route in routes:
            match, child = route.matches(walked)
            if match is Match.PARTIAL and partly == UNMATCHED:
                partly = found + _template(route)
            if match is Match.FULL:
                break
        else:
            return partly
        if not isinstance(getattr(route, "original_route", route), Mount | Host):
            return (found + _template(route)) or UNMATCHED
        walked |= child
        found += (getattr(route, "path_format", None) or "").removesuffix("/{path}")  # a Host has none
        routes = _routes_in(route.app)
        if not hasattr(route.app, "routes"):
            return found or "/"


def _mount_template(scope: MutableMapping[str, Any], template: str) -> str:
    """Return the path under which the application is mounted, with the names of parameters in place of their values."""
    root: str = scope.get("root_path") or ""
    mounted = root.removeprefix(scope.get("app_root_path") or "") if root and "app_root_path" in scope else ""
    if not mounted or not scope.get("path_params"):
        return mounted
    return _template_of_mounts(scope, template)


def _template_of_mounts(scope: MutableMapping[str, Any], template: str) -> str:
    """Follow a request through the mounts again, and join their templates.

    The path alone does not tell where a parameter stands: "/01" and "/1" are the same number. Where an application hides its
    routes, the parameters stand for the rest of the way.
    """
    walked = {**scope, "root_path": scope["app_root_path"], "path_params": {}, "fastapi": {}}
    routes, found = _routes_in(scope.get("router")), ""
    while walked["root_path"] != scope["root_path"]:
        mount, child = _taken(routes, walked)
        if mount is None:
            names = (name for name in scope["path_params"] if f"{{{name}}}" not in found + template)
            return found + "".join(f"/{{{name}}}" for name in names)
        walked |= child
        found += (getattr(mount, "path_format", None) or "").removesuffix("/{path}")  # a Host has none
        routes = _routes_in(mount.app)
    return found


def _taken(routes: Iterable[Any], scope: MutableMapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return the first mount that a request fits, and what it adds to the scope."""
    for route in routes:
        if isinstance(getattr(route, "original_route", route), Mount | Host):
            match, child = route.matches(scope)
            if match is Match.FULL:
                return route, child
    return None, {}


def _routes_in(app: Any) -> Iterator[Any]:
    """Yield the routes of an application, whatever middleware stands around it, with those of its routers."""
    while app is not None and not hasattr(app, "routes"):
        app = getattr(app, "app", None)
    return route_contexts(getattr(app, "routes", ()))


# Yields each route of routers that are included, with their prefixes and dependencies. Before FastAPI 0.137 they are copies.
route_contexts: Callable[[Iterable[Any]], Iterator[Any]] = getattr(routing, "iter_route_contexts", iter)


def dependencies_of(route: Any) -> Iterator[Any]:
    """Yield every callable that a route depends on, its routers' included, in the order in which they run."""
    yield from _calls(getattr(route, "dependant", None))


def _calls(dependant: Any) -> Iterator[Any]:
    for dependency in getattr(dependant, "dependencies", ()):
        yield from _calls(dependency)
        yield dependency.call


def limiters_after(route: Any, limiter: Any) -> list[Any]:
    """Return the limiters that run right after one: with no other dependency between, which may yet refuse or find out.

    Found once for a route and a limiter.
    """
    dependant = getattr(route, "dependant", None)
    known = _limiters_after.get((id(dependant), id(limiter)))
    if known is None or known[0] is not dependant or known[1] is not limiter:
        if len(_limiters_after) >= _MOST_ROUTES:
            _limiters_after.clear()
        known = (dependant, limiter, _find_after(calls_of(route), limiter))
        _limiters_after[id(dependant), id(limiter)] = known
    return known[2]


def _find_after(calls: list[Any], limiter: Any) -> list[Any]:
    found: list[Any] = []
    for call in calls:
        if call == limiter:
            found = [call]
        elif found and not is_limiter(call):
            break
        elif found:
            found.append(call)
    return found[1:]


def is_limiter(call: Any) -> bool:
    """Whether a dependency is one of ratekit's limiters."""
    return isinstance(call, RateLimiterMark)


def calls_of(route: Any) -> list[Any]:
    """Return every callable that a route depends on, in the order in which they run; found once for a route."""
    dependant = getattr(route, "dependant", None)
    known = _calls_of_routes.get(id(dependant))
    if known is None or known[0] is not dependant:
        if len(_calls_of_routes) >= _MOST_ROUTES:
            _calls_of_routes.clear()
        known = (dependant, list(dependencies_of(route)))
        _calls_of_routes[id(dependant)] = known
    return known[1]


_limiters_after: dict[tuple[int, int], tuple[Any, Any, list[Any]]] = {}
_calls_of_routes: dict[int, tuple[Any, list[Any]]] = {}
_MOST_ROUTES = 4096
