"""The manifests are valid, fit together, and the configuration of the Redis does what it says on a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import redis
import yaml

from ratekit import Limit, RateLimiter
from ratekit.overrides import get_rate_limit_override, set_rate_limit_override
from support.servers import Server, start_server, stop_server, wheel_server

FOLDER = Path(__file__).parents[2] / "example_projects/kubernetes"
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()


def documents() -> list[Any]:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return [one for name in kustomization["resources"] for one in yaml.safe_load_all((FOLDER / name).read_text())]


def found(kind: str, name: str) -> Any:
    return next(one for one in documents() if one["kind"] == kind and one["metadata"]["name"] == name)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("document", documents(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_manifest_is_valid(document, version):
    kubernetes_validate.validate(document, version, strict=True)


def test_wrong_manifest_is_found():
    wrong = found("Deployment", "search")
    wrong["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_compose_file_is_valid():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"]
    finished = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_image_gets_what_it_needs():
    """The ignore file of the repository leaves the examples out, so this image has one of its own."""
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = re.findall(r"^COPY (\S+) ", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert set(copied) - {"."} <= allowed
    service = (FOLDER.parents[1] / ".dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in service if line.startswith("!")} <= allowed  # what `pip install` builds of
    assert all((FOLDER.parents[1] / name).exists() for name in allowed)


def test_names_and_passwords_fit_together():
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    generated = {one["name"] for key in ("configMapGenerator", "secretGenerator") for one in kustomization[key]}
    pod = found("StatefulSet", "redis-ratelimit")["spec"]["template"]["spec"]
    sources = pod["volumes"][0]["projected"]["sources"]
    used = {source.get("configMap", source.get("secret"))["name"] for source in sources}
    container = found("Deployment", "search")["spec"]["template"]["spec"]["containers"][0]
    used |= {one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one}
    assert used == generated
    url = kustomization["secretGenerator"][1]["literals"][0].partition("=")[2]
    compose = yaml.safe_load((FOLDER / "docker-compose.yml").read_text())["services"]["search"]["environment"]
    assert url == compose["RATE_LIMIT_STORE_URL"]
    assert found("Service", "redis-ratelimit")["spec"]["selector"] == {"app": "redis-ratelimit"}
    instances = next(one["value"] for one in container["env"] if one["name"] == "RATE_LIMIT_INSTANCES")
    assert int(instances) == found("Deployment", "search")["spec"]["replicas"]


def test_memory_of_the_container_has_room_for_rewriting_the_file():
    limits = found("StatefulSet", "redis-ratelimit")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "300Mi"}
    assert "\nmaxmemory 200mb\n" in (FOLDER / "redis.conf").read_text()


def conf_server(tmp_path: Path) -> Server:
    """Start a real server with the configuration of the example, and with its users beside one that looks on."""
    users = (FOLDER / "users.acl").read_text().replace("user default off", "user default on nopass ~* &* +@all")
    (tmp_path / "users.acl").write_text(users)
    path = tmp_path / "redis.conf"
    path.write_text((FOLDER / "redis.conf").read_text().replace("/etc/redis/users.acl", str(tmp_path / "users.acl")))
    return start_server(wheel_server(), configuration=path.read_text())


@pytest.fixture
def limits(tmp_path):
    server = conf_server(tmp_path)
    yield server
    stop_server(server)


def test_user_of_the_application_may_do_what_ratekit_does_and_no_more(limits):
    url = limits.url.replace("redis://", "redis://limiter:change-me@") + "?socket_timeout=5"
    limiter = RateLimiter(url, on_outage="closed")
    assert [limiter.check(Limit(2, 60), "user:1", endpoint="/x").allowed for _ in range(3)] == [True, True, False]
    set_rate_limit_override(limiter, endpoint="/x", subject="user:1", max_requests=5)
    assert get_rate_limit_override(limiter, endpoint="/x", subject="user:1").max_requests == 5
    with redis.Redis.from_url(url) as client:
        for command in (["FLUSHALL"], ["CONFIG", "GET", "*"], ["GET", "session:1"], ["KEYS", "*"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)


def test_probe_may_only_ping(limits):
    with redis.Redis.from_url(limits.url.replace("redis://", "redis://probe:@")) as client:
        assert client.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("x")


def test_server_never_evicts(limits):
    with limits.client() as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("maxmemory") == {"maxmemory": str(200 * 1024 * 1024)}


def test_overrides_outlive_a_restart(tmp_path):
    (tmp_path / "users.acl").write_text("user default on nopass ~* &* +@all\n")
    configuration = (FOLDER / "redis.conf").read_text().replace("/etc/redis/users.acl", str(tmp_path / "users.acl"))
    assert "\nappendonly yes\n" in configuration
    options = ("--appendonly", "yes", "--dir", str(tmp_path))  # what start_server itself turns off
    first = start_server(wheel_server(), *options, configuration=configuration)
    set_rate_limit_override(RateLimiter(f"{first.url}?socket_timeout=5"), endpoint="/x", subject="u", max_requests=5)
    first.process.terminate()
    first.process.wait(20)
    second = start_server(wheel_server(), *options, configuration=configuration)
    found = get_rate_limit_override(RateLimiter(f"{second.url}?socket_timeout=5"), endpoint="/x", subject="u")
    for server in (first, second):
        stop_server(server)
    assert found is not None
    assert found.max_requests == 5
