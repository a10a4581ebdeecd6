"""The limits that a project declares, by endpoint: for who asks from outside of a request."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ratekit.web.identity import client_ip
from ratekit.web.listing import of_endpoint, rule_of_view, weakest_of
from ratekit.web.table import Rule, Rules
from ratekit.web.view_limit import ViewLimit
from ratekit_django.conf import conf
from ratekit_django.decorators import limits_of_view
from ratekit_django.logins import is_admin_login_url
from ratekit_django.urls import Url, every_url, operations_of

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Declared(NamedTuple):
    """A limit, on which URL, for which methods of its view (None: all)."""

    url: Url
    limit: ViewLimit
    methods: Sequence[str] | None = None
    where: str = "code"  # that declares it

    @property
    def route(self) -> str:
        """The pattern of the URL."""
        return self.url.route

    @property
    def name(self) -> str:
        """The name of the URL."""
        return self.url.name

    @property
    def endpoint(self) -> str:
        """Under what the limit counts."""
        return self.limit.fixed_endpoint or self.url.route

    def counts(self, method: str) -> bool:
        """Whether a request of that method is limited."""
        return self.limit.counts(method) and (self.methods is None or method in self.methods)

    def rule(self, method: str) -> Rule:
        """Return what limits a method, with the mode that the project sets for it."""
        return rule_of_view(self.limit, self.endpoint, self.limit.policy_on(method, self.url.operation), conf.mode)


class DeclaredRules(Rules):
    """Finds what is limited under an endpoint: by decorators, mixins and throttles on views, by settings, by a document.

    An endpoint is what keys have: a URL pattern, or a name under which several views are counted together. A pattern, or the
    name of a URL, has all limits of the URL, under whatever they count.
    """

    def all_at(self, method: str, path: str) -> Sequence[Rule]:
        """Return the limits of an endpoint, as many as are declared, with their modes; none if nothing declares any.

        Those that depend on the request have no policy.
        """
        found = of_endpoint((one for one in every_limit() if one.counts(method)), path)
        return [*(one.rule(method) for one in found), *_rules_of_document(method, path)]


def every_limit() -> Iterator[Declared]:
    """Yield every limit of the project, URL by URL."""
    for url in every_url():
        found = {"code": limits_of_view(url.view), "DRF": _limits_of_drf(url.view)}
        for where, limits in found.items():
            yield from (Declared(url, limit, where=where) for limit in limits)
        for limit, methods in conf.rules.found_by_method(_METHODS, url.route, url.name):
            yield Declared(url, limit, methods, "DEFAULT" if limit is conf.rules.default else "RULES")
        if conf.admin_login and is_admin_login_url(url):
            yield from (Declared(url, limit, where="ADMIN_LOGIN") for limit in conf.admin_login)
        yield from _declared_by_ninja(url)
    for limit in conf.rules.limits:
        if limit.fixed_endpoint is not None:
            yield Declared(Url(limit.fixed_endpoint, "", None), limit, where="RULES")


def _rules_of_document(method: str, path: str) -> list[Rule]:
    """Return the rules of the document that a URL has, by its pattern or its name, or that are those of an endpoint."""
    if conf.rules_source is None:
        return []
    names = [name for url in every_url() if path in (url.route, url.name) for name in (url.route, url.name)]
    compiled = conf.rules_source.compiled_once
    of_url = (rule for name in names for rule in compiled.of_path(method, name))
    found = dict.fromkeys(of_url if names else compiled.counted_under(method, path))
    return [replace(rule, by=rule.by or client_ip(), mode=weakest_of(rule.mode, conf.mode)) for rule in found]


def _limits_of_drf(view: Any) -> Sequence[ViewLimit]:
    """Return the limits of throttles, if the project uses ours in Django REST framework."""
    drf = sys.modules.get("ratekit_django.drf")
    declared = None if drf is None else drf.declared_view(view)
    return [] if declared is None else declared.limits()


def _declared_by_ninja(url: Url) -> Iterator[Declared]:
    """Yield what limits the operations of a path of Django Ninja: throttles, and decorators on their functions."""
    for operation in operations_of(url.view):
        throttles = (getattr(throttle, "limit", None) for throttle in operation.throttle_objects)
        limits = [limit for limit in throttles if isinstance(limit, ViewLimit)]
        yield from (Declared(url, limit, operation.methods, "Ninja") for limit in limits)
        yield from (Declared(url, limit, operation.methods) for limit in limits_of_view(operation.view_func))


declared = DeclaredRules()
