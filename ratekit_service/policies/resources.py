"""Resources and their patterns: which plan applies to what is asked for.

A resource is a text that the caller chooses: "GET:/orders/17", "/orders/17", "export". A pattern is a resource, or one of

    GET:/orders/{id}      one segment in place of {id}, as in ratekit's own rules
    /orders/*             everything below, whatever the method
    report-*              texts that start so
    *                     everything

An exact pattern wins, then the longest one. A method may be written in any case, and a path with doubled slashes or one at
its end: it is the same resource.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import tenant_endpoint
from ratekit.web.patterns import Pattern

LONGEST = 256
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"})


class ResourcePolicy(NamedTuple):
    """Which plan applies to the resources of a pattern; `counter` is one counter for all of them."""

    id: str
    tenant_id: str
    pattern: str
    plan_id: str
    counter: str | None


class ResourcePattern:
    """A pattern of resources. Raises ConfigurationError if it makes no sense."""

    def __init__(self, text: str) -> None:
        if not text or not text.isprintable():
            raise ConfigurationError(f"pattern {text!r} is not a printable text")
        self.text = text
        self._method, self._path = split(text)
        self._pattern = Pattern(self._path) if self._path is not None else None
        if self._pattern is None and "*" in text[:-1]:
            raise ConfigurationError(f"pattern {text!r} has a '*' that is not at its end")
        starred = text.endswith("*")
        self.is_exact = not starred if self._pattern is None else self._pattern.is_one_path

    def matches(self, resource: str) -> bool:
        """Whether a resource fits."""
        if self._pattern is None:
            return resource.startswith(self.text[:-1]) if self.text.endswith("*") else resource == self.text
        method, path = split(resource)
        if path is None or (self._method and method != self._method):
            return False
        return self._pattern.matches(_plain(path))

    @property
    def weight(self) -> tuple[bool, int]:
        """What orders patterns: the one with the highest weight is asked first."""
        return self.is_exact, len(self.text)


class ResourceIndex:
    """The policies of one tenant, in the order in which they are asked."""

    def __init__(self, policies: Iterable[ResourcePolicy]) -> None:
        self.policies = {policy.id: policy for policy in policies}
        self._exact = {policy.pattern: policy for policy in self.policies.values()}
        patterns = [(ResourcePattern(policy.pattern), policy) for policy in self.policies.values()]
        self._patterns = sorted(patterns, key=lambda one: one[0].weight, reverse=True)

    def find(self, resource: str) -> ResourcePolicy | None:
        """Return the policy of a resource, or None."""
        if not self._patterns:
            return None
        resource = counted_as(resource)
        exact = self._exact.get(resource)
        if exact is not None:
            return exact
        return next((policy for pattern, policy in self._patterns if pattern.matches(resource)), None)


@lru_cache(maxsize=10_000)
def counted_as(resource: str) -> str:
    """Return the name under which a resource is counted: a path has one counter, however slashes and method are written."""
    method, path = split(resource)
    if path is None or (method and method not in _METHODS):
        return resource
    return f"{method}:{_plain(path)}" if method else _plain(path)


def endpoint_of(tenant_id: str, resource: str) -> str:
    """Return the endpoint in the store for a tenant's resource, or for a counter of a resource policy."""
    return tenant_endpoint(tenant_id, counted_as(resource))


def split(resource: str) -> tuple[str, str | None]:
    """Return the method and the path of a resource; a resource that is no path has None."""
    if resource.startswith("/"):
        return "", resource
    method, colon, path = resource.partition(":")
    if colon and path.startswith("/") and method.isalpha():
        return method.upper(), path
    return "", None


def _plain(path: str) -> str:
    """Return a path without doubled slashes, and without one at its end."""
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/") or "/"
