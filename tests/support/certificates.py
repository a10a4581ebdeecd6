"""Certificates for tests, made by openssl: an authority with a server's and a client's, and a stranger."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support.servers import missing


def make_certificates(folder: Path) -> Path:
    """Make authority.pem, server.pem and client.pem with their keys, signed by it, and stranger.pem, another authority."""
    if not shutil.which("openssl"):
        missing("no certificates: install the package openssl")
    for name in ("authority", "stranger"):
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        _openssl(folder, "req", "-x509", *key, "-subj", f"/CN={name}", "-days", "2")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    signing = ("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    for name in ("server", "client"):
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", "request.pem")
        _openssl(folder, "req", *key, "-subj", "/CN=127.0.0.1")
        _openssl(folder, "x509", "-req", "-in", "request.pem", "-out", f"{name}.pem", *signing)
    return folder


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
