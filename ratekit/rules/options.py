"""What the ASGI and the WSGI middleware do with a document of rules."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import Any, cast

from ratekit.core.modes import RateLimitMode
from ratekit.rules.checks import Front, plan_asker, read_checks
from ratekit.rules.compiled import DocumentRule
from ratekit.rules.keys import function_key
from ratekit.rules.reload import Rules, RulesGiven
from ratekit.web.answers import ErrorResponse
from ratekit.web.checks import Check
from ratekit.web.identity import By, KeyFunction
from ratekit.web.options import LoadBody, MiddlewareOptions
from ratekit.web.requests import FrontRequest
from ratekit.web.steps import Step
from ratekit.web.table import Rule


def as_rules(
    given: RulesGiven | Rules,
    service: str | None,
    functions: Collection[str],
    default: RulesGiven | None,
    *,
    holds_slots: bool = True,
    asks_plans: bool = True,
) -> Rules:
    """Return rules as they were given, or loaded. asks_plans: there is a plan_of, so that limits can be "plan"."""
    if not isinstance(given, Rules):
        options: dict[str, Any] = {"holds_slots": holds_slots, "asks_plans": asks_plans}
        return Rules(given, service=service, functions=functions, default=default, **options)
    if not asks_plans:
        given.refuse_plans()
    return given


def as_by(by: By) -> By:
    """Return who is limited as it was given. A function of the request is one of a document: it gets a RequestView."""
    if isinstance(by, str | KeyFunction) or not callable(by):
        return by
    return function_key(by, getattr(by, "__name__", "by"))


class DocumentOptions(MiddlewareOptions):
    """The arguments of a middleware, with rules that find the limits of a request by the key that it has."""

    def __init__(self, limiter: Any, *, rules: Rules, by: By = "ip", **options: Any) -> None:
        super().__init__(limiter, rules=rules, by=as_by(by), **options)
        self._documents = rules
        self._ask_plan = plan_asker(self._plan_of)

    def rule_checks(
        self, request: FrontRequest, rules: Sequence[Rule], mode: RateLimitMode, load_body: LoadBody
    ) -> Generator[Step, Any, list[Check] | ErrorResponse]:
        """Find out the checks of a request by the key that it has."""
        if rules is self.without_rule:
            return []
        front = Front(self._prefix, self.by, self._documents.compiled.applies_all, self._ask_plan)
        return (yield from read_checks(cast("Sequence[DocumentRule]", rules), request, front, mode, load_body))
