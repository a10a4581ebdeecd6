"""The steps of the READMEs, as a shell runs them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import httpx2
import pytest

from support.gateways import GATEWAYS, process
from support.servers import free_port

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@pytest.mark.parametrize("example", ["caddy", "envoy_ext_authz", "haproxy", "nginx", "traefik"])
def test_service_of_the_second_step_takes_a_tenant(example, tmp_path, redis_server):
    """It says to make a tenant, which needs a token for administration."""
    text = (GATEWAYS / example / "README.md").read_text()
    step = re.search(r"^2\. `(export .*?)`, then `(ratekit serve .*?)`", text, re.MULTILINE)
    assert step is not None
    port = free_port()
    commands = [
        step[1].replace("redis://localhost", redis_server.url), 'printf %s "$RATEKIT_ADMIN_TOKEN" > token',
        step[2].replace("8080", str(port)).replace("ratekit serve", "exec python -m ratekit.cli serve"),
    ]  # fmt: skip
    with process(["bash", "-c", "; ".join(commands)], port, tmp_path, PATH=PATH):
        headers = {"authorization": f"Bearer {(tmp_path / 'token').read_text()}"}
        made = httpx2.post(f"http://127.0.0.1:{port}/v1/admin/tenants", json={"name": "acme"}, headers=headers, timeout=20)
        assert made.status_code == 201, made.text
        assert (tmp_path / "ratekit.db").exists()
