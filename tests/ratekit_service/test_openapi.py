"""The OpenAPI document: complete, valid, and true. schemathesis sends what it allows and what it does not."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, settings
from openapi_spec_validator import validate

from ratekit_service import Settings, create_app
from support import databases
from support.servers import free_port, wait_until

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-for-administration"
EXAMPLES = 12 * int(os.environ.get("RATEKIT_FUZZ", "1"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The service behind a real server, with a tenant, a plan and a key."""
    folder = tmp_path_factory.mktemp("openapi")
    port = free_port()
    url = databases.new_database("sqlite", folder)
    app = create_app(
        Settings(
            database_url=url,
            store_url="memory://openapi",
            admin_token=TOKEN,
            log_checks="none",
            failure_limit="",
            tracing="off",
        )
    )
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server does not start")
    yield f"http://127.0.0.1:{port}", app
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def key(server):
    import httpx2

    url, _ = server
    with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}) as client:
        tenant = client.post("/v1/admin/tenants", json={"name": "acme"}).json()["id"]
        plan = client.post("/v1/admin/plans", json={"tenant_id": tenant, "name": "p", "limits": ["5/s"]}).json()["id"]
        client.patch(f"/v1/admin/tenants/{tenant}", json={"default_plan_id": plan})
        return client.post("/v1/admin/keys", json={"tenant_id": tenant, "name": "k"}).json()["key"]


def test_document_is_valid_and_has_every_path(server):
    import httpx2

    document = httpx2.get(f"{server[0]}/openapi.json", timeout=60).json()  # made when it is first asked for
    validate(document)
    paths = set(document["paths"])
    assert {"/v1/check", "/check", "/v1/check/batch", "/v1/peek", "/v1/charge", "/v1/refund", "/v1/release"} <= paths
    assert {"/v1/usage", "/v1/health", "/v1/ready", "/metrics", "/v1/admin/keys/{key_id}/rotate"} <= paths
    answers = document["paths"]["/v1/check"]["post"]["responses"]
    assert {"200", "401", "403", "404", "413", "422", "429", "503"} <= set(answers)
    assert "X-RateLimit-Remaining" in answers["200"]["headers"]
    assert {"/v1/reserve", "/v1/commit"} <= paths
    authorized = document["paths"]["/v1/authorize"]["get"]
    assert {"200", "400", "401", "403", "404", "422", "429", "503"} <= set(authorized["responses"])
    assert "x-ratelimit-status" in authorized["responses"]["403"]["headers"]
    assert "Retry-After" in authorized["responses"]["429"]["headers"]
    assert {"resource", "by", "cost", "refuse", "plan_id"} <= {one["name"] for one in authorized["parameters"]}
    headers = {one["name"] for one in document["paths"]["/v1/authorize/{path}"]["post"]["parameters"]}
    assert {"x-ratekit-resource", "x-ratekit-subject"} <= headers


def test_table_of_administration_in_the_documentation_names_every_request(server):
    import httpx2

    paths = httpx2.get(f"{server[0]}/openapi.json", timeout=60).json()["paths"]
    there = {
        (re.sub(r"\{\w+\}", "{id}", path.removeprefix("/v1/admin")), verb.upper())
        for path, verbs in paths.items()
        for verb in verbs
        if path.startswith("/v1/admin")
    }
    section = (ROOT / "docs" / "service.md").read_text().partition("## Administration")[2].partition("###")[0]
    told = set()
    for path, verbs, of_one in re.findall(r"^\| `(/.*?)` \| ([A-Z, ]*?) ?\| ([A-Z, ]*?) ?\|", section, re.MULTILINE):
        told |= {(path, verb) for verb in verbs.split(", ") if verb}
        told |= {(f"{path}/{{id}}", verb) for verb in of_one.split(", ") if verb}
    assert told == there


def test_every_answer_matches_its_schema_and_none_is_a_5xx(server, key):
    url, _ = server
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    headers = {"x-api-key": key, "authorization": f"Bearer {TOKEN}"}
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.specs.openapi.checks.status_code_conformance,
        schemathesis.specs.openapi.checks.content_type_conformance,
        schemathesis.specs.openapi.checks.response_schema_conformance,
    ]
    statuses: dict[str, set[int]] = {}
    for operation in schema.get_all_operations():
        found = statuses.setdefault(operation.ok().label, set())
        _fuzz(operation.ok(), headers, checks, found)
    assert len(statuses) > 35
    assert 200 in statuses["POST /v1/check"] or 429 in statuses["POST /v1/check"]


def _fuzz(operation, headers, checks, statuses) -> None:
    from hypothesis import given

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(case=operation.as_strategy())
    def send(case) -> None:
        response = case.call(headers=headers)
        case.validate_response(response, checks=checks)
        statuses.add(response.status_code)

    send()
