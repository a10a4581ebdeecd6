"""The limits that a project declares, by endpoint: for who asks from outside of a request."""

from __future__ import annotations

from collections.abc import Iterator

from ratekit.core.limits import Limit, Policy
from ratekit.web.table import Rule, Rules
from ratekit.web.url_rules import fits
from ratekit.web.view_limit import ViewLimit
from ratekit_django.conf import conf
from ratekit_django.decorators import limits_of_view
from ratekit_django.urls import Url, every_url


class DeclaredRules(Rules):
    """Finds what is limited under an endpoint: by decorators and mixins on views, and by RULES and DEFAULT."""

    def at(self, method: str, path: str) -> Rule | None:
        """Return the limits of an endpoint in one policy, None if nothing declares any."""
        limits: dict[str, Limit] = {}
        for url, limit in _declared():
            if (limit.endpoint or url.route) == path and limit.counts(method):
                found = limit.policy_on(method, url.operation).limits
                limits |= {one.name: one for one in found if one.name not in limits}
        return Rule(endpoint=path, policy=Policy(path, limits.values())) if limits else None


def _declared() -> Iterator[tuple[Url, ViewLimit]]:
    for url in every_url():
        rules = [limit for key, limit in conf.rules.table if limit is not None and fits(key, url.route, url.name)]
        for limit in [*limits_of_view(url.view), *rules]:
            yield url, limit
    yield from ((Url(limit.endpoint, "", None), limit) for limit in conf.rules.limits if limit.endpoint is not None)


declared = DeclaredRules()
