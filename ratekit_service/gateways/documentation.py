"""`/v1/authorize` in the OpenAPI document. FastAPI does not see it: it is answered before."""

from __future__ import annotations

from typing import Any

import msgspec

from ratekit_service.administration import problems
from ratekit_service.bounds import LONGEST_ID, LONGEST_NAME
from ratekit_service.checks.routes import LIMITED, NUMBERS
from ratekit_service.gateways.authorize import DEFAULT_BY, PATH, STATUS_WORDS
from ratekit_service.gateways.deciding import AuthorizeAnswer

_STATUS = {
    "x-ratelimit-status": {
        "description": "Tells a refusal from a bad key, whatever the status is.",
        "schema": {"type": "string", "enum": sorted({*STATUS_WORDS, "error"})},
    }
}
_FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "resource": ("What is limited.", {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}),
    "by": (
        "Who: `ip`, `header:` and a name, or `line:` and the name of a header whose value may have commas.",
        {"type": "string", "default": DEFAULT_BY, "examples": ["ip"]},
    ),
    "cost": ("How much: 5, or by unit tokens=800.", {"type": "string", "default": "1"}),
    "refuse": ("The status of a refusal.", {"type": "string", "enum": ["429", "403"], "default": "429"}),
    "closed": (
        "The status where the plan is closed while the store is away.",
        {"type": "string", "enum": ["503", "403"], "default": "503"},
    ),
    "plan_id": ("By which plan.", {"type": "string", "minLength": 1, "maxLength": LONGEST_ID}),
}
_SUBJECT = {
    "name": "x-ratekit-subject",
    "in": "header",
    "description": "Who is limited, unless `by` says otherwise. The proxy has to replace what clients send.",
    "schema": {"type": "string"},
}


def paths() -> dict[str, Any]:
    """Return the paths of the document."""
    by_query = [_parameter(name, "query", name) for name in _FIELDS]
    by_header = [_parameter(name, "header", f"x-ratekit-{name.replace('_', '-')}") for name in _FIELDS]
    client = {"name": "path", "in": "path", "required": True, "description": "The client's own path; it is not read."}
    appended = {**client, "schema": {"type": "string", "minLength": 1}}
    return {
        PATH: {verb: _operation(verb, "query", [*by_query, _SUBJECT]) for verb in ("get", "post")},
        f"{PATH}/{{path}}": {
            verb: _operation(verb, "headers", [*by_header, _SUBJECT, appended]) for verb in ("get", "post")
        },
    }


def _parameter(field: str, place: str, name: str) -> dict[str, Any]:
    text, schema = _FIELDS[field]
    return {"name": name, "in": place, "required": field == "resource", "description": text, "schema": schema}


def _operation(verb: str, source: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "tags": ["gateways"],
        "summary": "Authorize",
        "description": f"For proxies: whether a request may pass. The {source} say what is limited, whatever the method.",
        "operationId": f"authorize_by_{source}_{verb}",
        "security": [{"APIKeyHeader": []}],
        "parameters": parameters,
        "responses": {str(status): answer for status, answer in sorted(_responses().items())},
    }


def _responses() -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {
        int(status): dict(one) for status, one in problems(400, 401, 404, 408, 413, 422, 503).items()
    }
    _, schemas = msgspec.json.schema_components([AuthorizeAnswer])
    decision = {"application/json": {"schema": schemas[AuthorizeAnswer.__name__]}}
    problem = found[400]["content"]
    found[200] = {"description": "It may pass.", "content": decision, "headers": NUMBERS}
    found[429] = {"description": "Refused.", "content": decision | problem, "headers": NUMBERS | LIMITED}
    refused = "The key is not for this; or refused, with `refuse=403` or `closed=403`, for proxies that know no 429 or 503."
    found[403] = {"description": refused, "content": decision | problem, "headers": NUMBERS | LIMITED}
    return {status: {**one, "headers": one.get("headers", {}) | _STATUS} for status, one in found.items()}
