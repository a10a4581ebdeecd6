"""What Django knows of the URL of a request: its pattern and its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.urls import Resolver404, URLResolver, get_resolver, resolve
from django.utils.translation import get_language

UNMATCHED = "unmatched"


class Url(NamedTuple):
    """A pattern of the URLconf: the patterns that include it joined, its name with the namespaces, its view."""

    route: str
    name: str
    view: Any
    apps: tuple[str, ...] = ()  # the application namespaces that it is in

    def operation(self, method: str) -> Sequence[str] | None:
        """Return the methods of the operation that Ninja runs, which has one view for all operations of a path.

        None: the view is not one of Ninja's, and declares no methods.
        """
        found = (operation.methods for operation in operations_of(self.view) if method in operation.methods)
        return next(found, None)


def method_of(request: Any) -> str:
    """Return the method of a request, in upper case; a request that was made by hand may have none."""
    return (request.method or "GET").upper()


def url_of(request: Any, view: str | None = None) -> Url:
    """Return the pattern that a request has met; of a view that is called without a URL the dotted name is its route."""
    match = getattr(request, "resolver_match", None) or _resolved(request)
    if match is None or match.route is None:
        return Url(view or UNMATCHED, "", None)
    route = route_of(match.route, getattr(request, "urlconf", None))
    return Url(route, match.view_name, match.func, tuple(match.app_names))


def route_of(pattern: str, urlconf: Any = None) -> str:
    """Return a pattern as an endpoint: from the root on, the same in every language of i18n_patterns."""
    language = get_language()
    if settings.USE_I18N and language and pattern.startswith(f"{language}/"):
        used, _ = is_language_prefix_patterns_used(urlconf or settings.ROOT_URLCONF)
        pattern = pattern.removeprefix(f"{language}/") if used else pattern
    return "/" + pattern.removeprefix("^").removeprefix("/")


def every_url(
    resolver: URLResolver | None = None, before: str = "", names: tuple[str, ...] = (), apps: tuple[str, ...] = ()
) -> Iterator[Url]:
    """Yield every pattern of the URLconf, as url_of would return it."""
    for pattern in (resolver or get_resolver()).url_patterns:
        text = str(pattern.pattern)
        route = before + (text.removeprefix("^") if before else text)
        if isinstance(pattern, URLResolver):
            namespace = (pattern.namespace,) if pattern.namespace else ()
            app = (pattern.app_name,) if pattern.app_name else ()
            yield from every_url(pattern, route, names + namespace, apps + app)
        else:
            yield Url(route_of(route), ":".join([*names, pattern.name or pattern.lookup_str]), pattern.callback, apps)


def operations_of(view: Any) -> Sequence[Any]:
    """Return the operations of a view of Ninja's (a method of its PathView, or a function that refers to it), else none."""
    if getattr(view, "__module__", None) != "ninja.operation":
        return ()
    owners = [getattr(view, "__self__", None), *(cell.cell_contents for cell in getattr(view, "__closure__", None) or ())]
    return next((owner.operations for owner in owners if hasattr(owner, "operations")), ())


def _resolved(request: Any) -> Any:
    try:
        return resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return None
