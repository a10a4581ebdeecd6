"""The limits that an application declares, by URL rule: for who asks from outside of a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flask import current_app
from flask.views import MethodView

from ratekit.core.limits import Limit, Policy
from ratekit.flask.decorators import limits_of_blueprint
from ratekit.flask.extension import settings_of_app
from ratekit.flask.requests import declared_methods
from ratekit.web.listing import of_endpoint, rule_of_view
from ratekit.web.table import Rule, Rules
from ratekit.web.view_decorator import limits_on
from ratekit.web.view_limit import ViewLimit


class Declared(NamedTuple):
    """A limit, on which route, for which methods, and where it was declared."""

    route: str
    methods: Sequence[str]
    limit: ViewLimit
    where: str
    name: str = ""  # Flask's endpoint

    @property
    def endpoint(self) -> str:
        """Under what the limit counts."""
        return self.limit.fixed_endpoint or self.route

    def counts(self, method: str) -> bool:
        """Whether a request of that method is limited."""
        return self.limit.counts(method) and (method in self.methods or (method == "HEAD" and "GET" in self.methods))

    def limits(self, method: str) -> Sequence[Limit]:
        """Return the limits for a method, named as they count; none where they depend on the request."""
        policy = self._policy(method)
        return () if policy is None else policy.limits

    def rule(self, method: str) -> Rule:
        """Return what limits a method, with the mode that the application sets for it."""
        return rule_of_view(self.limit, self.endpoint, self._policy(method), settings_of_app().mode)

    def _policy(self, method: str) -> Policy | None:
        return self.limit.policy_on(method, lambda _: self.methods)

    def row(self) -> list[str]:
        """Return the limit as people read it."""
        methods = [method for method in self.methods if method != "HEAD" and self.counts(method)]
        texts = dict.fromkeys(str(limit) for method in methods for limit in self.limits(method))
        texts = texts or {"by the request": None}
        return [self.route, " ".join(methods), ", ".join(texts), self.limit.who.name, self.endpoint, self.where]


class DeclaredRules(Rules):
    """Finds what is limited under an endpoint: by decorators on views and blueprints, and by rules and default."""

    def all_at(self, method: str, path: str) -> Sequence[Rule]:
        """Return the limits of an endpoint, as many as are declared, with their modes; none if nothing declares any.

        A URL rule, or Flask's name of it, has all its limits, under whatever they count.
        """
        found = of_endpoint((one for one in every_limit() if one.counts(method)), path)
        return [one.rule(method) for one in found]


def every_limit() -> Iterator[Declared]:
    """Yield every limit of the application that runs, route by route."""
    for rule in sorted(current_app.url_map.iter_rules(), key=lambda rule: (rule.rule, rule.endpoint)):
        methods = declared_methods(rule)
        rules = settings_of_app().rules
        for limit, some in rules.found_by_method(methods, rule.rule, rule.endpoint):
            yield Declared(rule.rule, some, limit, "default" if limit is rules.default else "rules", rule.endpoint)
        for limit, where in _limits_of(rule):
            yield Declared(rule.rule, methods, limit, where, rule.endpoint)
        yield from _method_limits(rule, current_app.view_functions.get(rule.endpoint))


def _limits_of(rule: Any) -> Iterator[tuple[ViewLimit, str]]:
    """Yield the limits of the blueprints and the view of a URL rule."""
    for name in _blueprints_of(rule.endpoint):
        yield from ((limit, f"blueprint {name}") for limit in limits_of_blueprint(current_app.blueprints[name]))
    yield from ((limit, "view") for limit in limits_on(current_app.view_functions.get(rule.endpoint)))


def _blueprints_of(endpoint: str) -> list[str]:
    """Return the names of the blueprints that an endpoint is in, the outermost first."""
    parts = endpoint.split(".")[:-1]
    names = [".".join(parts[: end + 1]) for end in range(len(parts))]
    return [name for name in names if name in current_app.blueprints]


def _method_limits(rule: Any, view: Any) -> Iterator[Declared]:
    """Yield the limits on the methods of a class view."""
    view_class = getattr(view, "view_class", None)
    if not (isinstance(view_class, type) and issubclass(view_class, MethodView)):
        return
    for method in declared_methods(rule):
        for limit in limits_on(getattr(view_class, method.lower(), None)):
            yield Declared(rule.rule, [method], limit, f"{view_class.__name__}.{method.lower()}", rule.endpoint)


declared = DeclaredRules()
