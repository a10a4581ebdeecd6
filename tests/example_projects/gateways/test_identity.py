"""Who is limited, behind each proxy itself: what clients send of it themselves is no way around a limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from support.gateway_proxies import CADDY_OPEN, PROXY, Proxy, Running, every_proxy, running
from support.gateways import application, binary, client, configured, process, stack
from support.servers import free_port, wait_until

Changes = dict[str, object]

# The identity that the proxy itself has made sure of, as the comments of the examples and their READMEs say.
NGINX_USERS = 'set $subject $remote_user; auth_basic "shop"; auth_basic_user_file USERS;'
AS_ROOT: Changes = (
    {"worker_processes 1;": "user root root; worker_processes 1;"} if os.getuid() == 0 else {}
)  # to read USERS
TRAEFIK_USERS = (
    "middlewares:\n    users: {basicAuth: {users: ['ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ='], headerField: X-User}}\n"
)
ENVOY_USERS = """http_filters:
          - name: envoy.filters.http.basic_auth
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.basic_auth.v3.BasicAuth
              users: {inline_string: "ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="}
              forward_username_header: x-user
"""
CADDY = Proxy(
    "caddy", lambda _: [binary("caddy"), "run", "--config", "basic_auth.Caddyfile", "--adapter", "caddyfile"],
    False, 503, CADDY_OPEN, 200,
)  # fmt: skip
AUTHENTICATING: dict[str, tuple[Proxy, Changes, Changes]] = {  # with what makes it authenticate, and what makes it open
    "nginx": (PROXY["nginx"], {"set $subject $http_x_user;": NGINX_USERS} | AS_ROOT, {}),
    "caddy": (CADDY, {}, CADDY_OPEN),
    "traefik": (
        PROXY["traefik"], {"middlewares: [say-who": "middlewares: [users, say-who", "middlewares:\n": TRAEFIK_USERS}, {},
    ),
    "envoy_ext_authz": (PROXY["envoy_ext_authz"], {"http_filters:\n": ENVOY_USERS}, {}),
}  # fmt: skip


def with_password(client: httpx2.Client, user: str, name: str = "ann") -> httpx2.Response:
    """Send a request with a password, and with a user of the client's own."""
    return client.get("/", auth=(name, "secret"), headers={"x-user": user})


@contextmanager
def authenticating(name: str, folder: Path, store: str, *, is_open: bool = False) -> Iterator[Running]:
    proxy, changes, opened = AUTHENTICATING[name]
    users = folder / "users"
    users.write_text("ann:{PLAIN}secret\n")
    changes = {old: str(new).replace("USERS", str(users)) for old, new in changes.items()}
    with running(proxy, folder, store, changes | (opened if is_open else {})) as gateway:
        yield gateway


@pytest.mark.parametrize("name", AUTHENTICATING)
def test_user_that_the_proxy_knows_cannot_be_forged(name, tmp_path, redis_server):
    with authenticating(name, tmp_path, redis_server.url) as gateway:
        assert gateway.client.get("/", headers={"x-user": "zoe"}).status_code == 401
        answers = [with_password(gateway.client, f"zoe{n}") for n in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert "x-user: ann" in answers[0].text
        assert "zoe" not in answers[0].text


@pytest.mark.parametrize("name", ["nginx", "caddy", "envoy_ext_authz"])
def test_user_cannot_be_forged_while_ratekit_is_away_either(name, tmp_path, redis_server):
    with authenticating(name, tmp_path, redis_server.url, is_open=True) as gateway:
        gateway.service.program.kill()
        gateway.service.program.wait()
        answer = with_password(gateway.client, "zoe")
        assert (answer.status_code, "x-user: ann" in answer.text, "zoe" in answer.text) == (200, True, False)
        assert gateway.client.get("/", headers={"x-user": "zoe"}).status_code == 401


@every_proxy
@pytest.mark.parametrize("form", ["two lines", "one line"])
def test_request_with_two_users_is_refused(proxy, form, tmp_path, redis_server):
    """An authentication that adds a line, and does not replace the client's, would give a counter for each guess."""
    with running(proxy, tmp_path, redis_server.url) as gateway:
        for n in range(7):
            lines = [("x-user", f"r{n}"), ("x-user", "ann")] if form == "two lines" else [("x-user", f"r{n},ann")]
            assert gateway.client.get("/", headers=lines).status_code in (400, 403)


BY_ADDRESS: dict[str, Changes] = {
    "nginx": {"set $subject $http_x_user;": "set $subject $remote_addr;"},
    "caddy": {"by=header:x-user": "by=ip"},
    "traefik": {"by=header:x-user": "by=ip"},
    "haproxy": {"set-var(txn.subject) req.fhdr(x-user)": "set-var(txn.subject) src"},
    "envoy_ext_authz": {'value: "header:x-user"': "value: ip"},
}


@every_proxy
def test_address_is_that_of_the_connection(proxy, tmp_path, redis_server):
    with running(proxy, tmp_path, redis_server.url, BY_ADDRESS[proxy.example]) as gateway:
        port = gateway.client.base_url.port
        with client(port, "127.0.0.8") as first, client(port, "127.0.0.9") as second:
            forged = [first.get("/", headers={"x-forwarded-for": f"9.9.9.{n}"}).status_code for n in range(6)]
            assert forged == [200] * 5 + [429]
            assert second.get("/").status_code == 200


def test_address_behind_another_proxy_is_the_one_that_it_has_seen(tmp_path, redis_server):
    changes = BY_ADDRESS["envoy_ext_authz"] | {
        "use_remote_address: true": "use_remote_address: true\n          xff_num_trusted_hops: 1"
    }
    with running(PROXY["envoy_ext_authz"], tmp_path, redis_server.url, changes) as gateway:
        seen = [gateway.client.get("/", headers={"x-forwarded-for": f"9.9.9.{n}, 8.8.8.8"}).status_code for n in range(6)]
        assert seen == [200] * 5 + [429]
        assert gateway.client.get("/", headers={"x-forwarded-for": "8.8.8.9"}).status_code == 200


def refused_by(service_status: int) -> dict[str, int]:
    return {"envoy_ext_authz": 403} | dict.fromkeys(("nginx", "caddy", "traefik", "haproxy"), service_status)


@every_proxy
def test_plan_that_is_closed_while_its_store_is_away_is_closed_behind_the_proxy(proxy, tmp_path):
    with running(proxy, tmp_path, f"redis://127.0.0.1:{free_port()}") as gateway:
        assert gateway.client.get("/", headers={"x-user": "42"}).status_code == 200  # the default of plans: open
        gateway.service.admin("PATCH", f"plans/{gateway.service.plan_id}", {"on_outage": "closed"})
        expected = refused_by(503)[proxy.example]
        wait_until(
            lambda: gateway.client.get("/", headers={"x-user": "42"}).status_code == expected, f"it is never {expected}"
        )
        assert {gateway.client.get("/", headers={"x-user": "42"}).status_code for _ in range(5)} == {expected}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("nginx", {"&closed=403": ""}),
        ("envoy_ext_authz", {'                  - {key: x-ratekit-closed, value: "403"}\n': ""}),
        ("haproxy", {"str ok unavailable": "str ok unavailable closed", "{ var(txn.ratekit) -m str closed }": "FALSE"}),
    ],
)  # fmt: skip
def test_plan_that_is_closed_passes_where_the_proxy_is_told_so(name, change, tmp_path):
    with running(PROXY[name], tmp_path, f"redis://127.0.0.1:{free_port()}", change) as gateway:
        gateway.service.admin("PATCH", f"plans/{gateway.service.plan_id}", {"on_outage": "closed"})
        closed = httpx2.Client(headers={"x-api-key": gateway.service.key, "x-ratekit-subject": "42"})
        url = f"http://127.0.0.1:{gateway.service.port}/v1/authorize?resource=orders"
        wait_until(lambda: closed.get(url).headers["x-ratelimit-status"] == "closed", "the plan is never closed")
        closed.close()
        assert gateway.client.get("/", headers={"x-user": "42"}).status_code == 200


@pytest.mark.parametrize("is_away", [False, True])
def test_application_behind_nginx_learns_the_host_and_the_address(is_away, tmp_path, redis_server):
    with running(PROXY["nginx"], tmp_path, redis_server.url) as gateway:
        if is_away:
            gateway.service.program.kill()
            gateway.service.program.wait()
        sent = {"x-user": "42", "host": "shop.example", "x-forwarded-for": "9.9.9.9"}
        lines = gateway.client.get("/", headers=sent).text.splitlines()
        assert {"host: shop.example", "x-forwarded-for: 127.0.0.1"} <= set(lines)
        assert "9.9.9.9" not in "".join(lines)


@pytest.mark.parametrize("name", ["nginx", "caddy", "haproxy", "envoy_ext_authz"])
def test_passwords_and_cookies_are_not_sent_to_ratekit(name, tmp_path):
    seen: list[str] = []
    with stack() as started:
        port, backend, asked = free_port(), started.enter_context(application()), started.enter_context(application(seen))
        copy = configured(name, tmp_path, {"10000": port, "9000": backend, "8080": asked})
        home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        started.enter_context(process(PROXY[name].command(copy), port, copy, **home))
        connected = started.enter_context(client(port))
        secrets = {"authorization": "Bearer s3cret", "cookie": "session=s3cret", "x-user": "42"}
        connected.get("/", headers=secrets)
    assert seen
    assert "s3cret" not in "".join(seen)
