"""What a document says of one request, without a store: which rule, who asks, which limits, at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ratekit.core.errors import DocumentError
from ratekit.core.modes import RateLimitMode
from ratekit.limiter.limiters import RateLimiter
from ratekit.rules.checks import Found, Front, found_of_key, plan_asker, read_found
from ratekit.rules.compiled import compile_document
from ratekit.rules.document import Document
from ratekit.rules.keys import subject_of_key
from ratekit.stores.memory import MemoryStore
from ratekit.web.answers import ErrorResponse
from ratekit.web.client_address import TrustedProxies
from ratekit.web.drivers import arun
from ratekit.web.identity import KeyFunction, client_ip
from ratekit.web.requests import AsgiRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule says of a request."""

    found: Found
    note: str | None = None  # why the key is another than the rule asks for

    def as_dict(self) -> dict[str, Any]:
        """Return it as values for JSON."""
        rule = self.found.rule
        note = {} if self.note is None else {"note": self.note}
        return {
            "rule": rule.name,
            "endpoint": rule.endpoint,
            "key": str(self.found.key),
            "subject": subject_of_key(self.found.key),
            "limits": [str(limit) for limit in rule.policy_of(self.found.limits).limits],
            "cost": self.found.cost,
            "mode": str(self.found.mode),
            "on_outage": str(rule.on_outage or "as the limiter does"),
            **note,
        }

    def lines(self) -> list[str]:
        """Return it as lines for people."""
        return [
            f"{name:<9} {', '.join(value) if isinstance(value, list) else value}" for name, value in self.as_dict().items()
        ]


def try_request(
    document: Document,
    service: str | None,
    method: str,
    target: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    address: str,
    plan: str | None = None,
) -> list[Outcome]:
    """Return what the rules that apply say of a request; nothing if it is not limited. Raises DocumentError.

    plan is what the application's plan_of would name.
    """
    import asyncio

    compiled = compile_document(document, service)
    path, _, query = target.partition("?")
    lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": lines}
    request = AsgiRequest(scope | {"client": (address, 1)}, TrustedProxies())

    def load_body(by: KeyFunction) -> None:
        request.body = body

    front = Front("ratelimit", client_ip(), compiled.applies_all, plan_asker(partial(_named, plan)))
    flow = read_found(compiled.find(request), request, front, RateLimitMode.ON, load_body)
    found = asyncio.run(arun(flow, RateLimiter(MemoryStore())))  # type: ignore[arg-type] # no store is asked
    if isinstance(found, ErrorResponse):
        raise DocumentError([f"the request is answered with {found.status}: {found.body.decode()}"])
    return [Outcome(one, _why_address(one, request.address())) for one in found]


def _why_address(found: Found, address: str | None) -> str | None:
    by = found.rule.by
    if by is None or by.is_address or found.key != address:
        return None
    return f"the request does not say {by.name}: its address is counted"


def _named(plan: str | None, _: object) -> str:
    """Stand for plan_of, where there is no application."""
    if plan is None:
        raise DocumentError(["the limits are 'plan', and plan_of of the application names it: say which one by --plan"])
    return plan


def try_key(document: Document, service: str | None, key: str, plan: str | None = None) -> list[Outcome]:
    """Return what the rules that apply say of a key of the service; nothing if it is not limited."""
    compiled = compile_document(document, service)
    rules = compiled.of_endpoint(service or document.service or "")
    found = found_of_key(rules, key, RateLimitMode.ON, None, applies_all=compiled.applies_all)
    in_plan = [(one, one.rule.limits_of_plan(_named(plan, key)) if one.limits.is_by_plan else one.limits) for one in found]
    return [Outcome(one._replace(limits=limits)) for one, limits in in_plan if limits and not one.rule.is_unlimited(limits)]
