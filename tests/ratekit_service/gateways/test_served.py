"""`ratekit serve` with both ways in: /v1/authorize, and Envoy's rate limit service in the same process."""

from __future__ import annotations

import grpc
import httpx2
import pytest

from ratekit import ConfigurationError
from ratekit_service.envoy.service import METHOD
from ratekit_service.settings import Settings
from support.envoy_messages import OK, OVER_LIMIT, Response, request
from support.gateway_service import LIMIT, serving
from support.servers import free_port

FILE = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 3}}\n"


def test_http_and_grpc_are_served_by_one_process(tmp_path):
    rules, port = tmp_path / "ratelimit.yaml", free_port()
    rules.write_text(FILE)
    with serving(tmp_path, "memory://", "--grpc-port", str(port), "--rules", str(rules)) as service:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=Response.FromString)
            message = request("shop", [("user", "42")]).SerializeToString()
            answers = [method(message, timeout=20, wait_for_ready=True) for _ in range(4)]
        assert [answer.overall_code for answer in answers] == [OK, OK, OK, OVER_LIMIT]
        headers = {"x-api-key": service.key, "x-ratekit-subject": "42"}
        url = f"http://127.0.0.1:{service.port}/v1/authorize?resource=orders"
        authorized = [httpx2.get(url, headers=headers) for _ in range(LIMIT + 1)]
        assert [answer.status_code for answer in authorized] == [200] * LIMIT + [429]
        assert authorized[-1].headers["x-ratelimit-status"] == "limited"
        # What some proxies show to clients.
        assert set(authorized[-1].json()) == {"allowed", "remaining", "reset_at", "retry_after_ms", "limit", "rule"}
        assert "x-ratekit-config-version" not in authorized[-1].headers
        checked = httpx2.post(
            f"http://127.0.0.1:{service.port}/v1/check", headers=headers, json={"resource": "orders", "subject": "42"}
        )
        assert checked.status_code == 429  # the same counter


def test_document_of_rules_decides_what_envoy_asks(tmp_path):
    rules, port = tmp_path / "rules.toml", free_port()
    rules.write_text('service = "shop"\n[[rules]]\nname = "users"\nby = "header:user"\nlimits = "3/day"\n')
    with (
        serving(tmp_path, "memory://", "--grpc-port", str(port), "--rules", str(rules)),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        method = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=Response.FromString)
        message = request("shop", [("user", "42")]).SerializeToString()
        answers = [method(message, timeout=20, wait_for_ready=True) for _ in range(4)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OK, OVER_LIMIT]


def test_authorize_names_what_is_wrong(tmp_path):
    with serving(tmp_path, "memory://") as service:
        url = f"http://127.0.0.1:{service.port}/v1/authorize"
        headers = {"x-api-key": service.key, "x-ratekit-subject": "42"}
        assert httpx2.get(f"{url}?resource=orders", headers=headers | {"x-api-key": "rk_live_nobody"}).status_code == 401
        assert httpx2.get(f"{url}?resource=orders&plan_id=other", headers=headers).status_code == 404
        too_long = httpx2.get(f"{url}?resource={'x' * 3000}", headers=headers)
        assert (too_long.status_code, too_long.headers["content-type"]) == (422, "application/problem+json")


@pytest.mark.parametrize("given", [{"grpc_port": 8081}, {"rules": "ratelimit.yaml"}])
def test_port_and_rules_belong_together(given):
    with pytest.raises(ConfigurationError, match="grpc_port and rules belong together"):
        Settings(**given)
