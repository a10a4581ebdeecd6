"""Which requests a limit leaves out: by their path, by the network that the client is in, or as a callable says."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

from ratekit.core.errors import ConfigurationError
from ratekit.web.arguments import wrong_type
from ratekit.web.methods import split_method
from ratekit.web.patterns import Pattern
from ratekit.web.requests import FrontRequest
from ratekit.web.steps import Ask, Step

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Exempt = str | Callable[[Any], Any]


class RoutePattern(NamedTuple):
    """A pattern of paths, for one method or for all: "POST /login"."""

    method: str | None
    pattern: Pattern

    @classmethod
    def of(cls, text: str) -> RoutePattern:
        """Read a pattern with or without a method before it."""
        if not isinstance(text, str):
            raise ConfigurationError(f"pattern {text!r} is not a path: it is not a text")
        method, path = split_method(text, f"pattern {text!r}")
        return cls(method, Pattern(path))

    def fits(self, method: str, path: str) -> bool:
        """Whether a request fits. The method is in upper case, and the path is normalized."""
        return self.method in methods_of(method) and self.pattern.matches(path)


def methods_of(method: str) -> tuple[str | None, ...]:
    """Return the methods under which a request is looked up; None stands for all. HEAD is GET without the body."""
    return (method, "GET", None) if method == "HEAD" else (method, None)


def normalized_path(path: str) -> str:
    """Return a path without doubled slashes and without one at its end, as patterns are written.

    A line break at the end is left out: routes of Starlette, and regular expressions of Django, match with one.
    """
    if path[:1] == "/" and path[-1:] not in "/\n" and "//" not in path:
        return path
    return "/" + re.sub(r"/+", "/", path.removesuffix("\n")).strip("/")


def may_be_exempt(path: str) -> bool:
    """Whether a path may be exempt. With a line break at its end it may be that of another view than it looks like."""
    return not path.endswith("\n")


class Exemptions(NamedTuple):
    """What is exempt. A callable gets what every callable of the application gets, and answers True or False."""

    patterns: tuple[RoutePattern, ...] = ()
    networks: tuple[Network, ...] = ()
    functions: tuple[Callable[[Any], Any], ...] = ()

    @classmethod
    def of(cls, given: Iterable[Exempt]) -> Exemptions:
        """Read a list of patterns ("/health"), networks ("10.0.0.0/8"), addresses and callables."""
        if isinstance(given, str) or not isinstance(given, Iterable):
            what = "is one text: give" if isinstance(given, str) else "is not"
            raise ConfigurationError(f"exempt {given!r} {what} a list of patterns, networks and callables")
        items = list(given)
        networks = [network for item in items if (network := _network(item)) is not None]
        patterns = [RoutePattern.of(item) for item in items if not callable(item) and _network(item) is None]
        return _made(tuple(patterns), tuple(networks), tuple(item for item in items if callable(item)))

    def with_those_of(self, other: Exemptions) -> Exemptions:
        """Return what either exempts."""
        return _made(self.patterns + other.patterns, self.networks + other.networks, self.functions + other.functions)

    @property
    def is_by_address(self) -> bool:
        """Whether nothing but the client's address decides."""
        return not self.patterns and not self.functions


NOTHING = Exemptions()


def _made(
    patterns: tuple[RoutePattern, ...], networks: tuple[Network, ...], functions: tuple[Callable[[Any], Any], ...]
) -> Exemptions:
    """Make exemptions; NOTHING itself where there are none, so that requests are not looked at for them."""
    return Exemptions(patterns, networks, functions) if patterns or networks or functions else NOTHING


def is_exempt(
    exempt: Exemptions, request: FrontRequest, ask: Callable[[Callable[[Any], Any]], Ask] | None = None
) -> Generator[Step, Any, bool]:
    """Find out whether a request is exempt. Callables are asked last, one after the other; ask is how."""
    if exempt.patterns and may_be_exempt(request.path):
        method, path = request.method.upper(), normalized_path(request.path)
        if any(pattern.fits(method, path) for pattern in exempt.patterns):
            return True
    address = request.client() if exempt.networks else None
    if address is not None and any(address in network for network in exempt.networks):
        return True
    for function in exempt.functions:
        answer = yield Ask(function, request.application_request, function) if ask is None else ask(function)
        if type(answer) is not bool:
            raise wrong_type("exempt", answer, "True or False")
        if answer:
            return True
    return False


def split_exempt(given: Iterable[Exempt]) -> tuple[list[str], Exemptions]:
    """Return the names and patterns of URLs that are exempt, apart from networks and callables."""
    items = list(given)
    urls = [item for item in items if not callable(item) and _network(item) is None]
    return urls, Exemptions.of(item for item in items if item not in urls)


def _network(item: object) -> Network | None:
    try:
        return ipaddress.ip_network(item, strict=False) if isinstance(item, str) else None
    except ValueError:
        return None
