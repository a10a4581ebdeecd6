"""Settings: from the command line, the environment, and a file; checked when the service starts."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratekit import stores
from ratekit.core.errors import ConfigurationError
from ratekit.core.outages import as_on_outage
from ratekit.database import urls
from ratekit_service.configuration.records import requests_policy

LOGGED = ("all", "refused", "none")
SHORTEST_TOKEN = 16
_VARIABLES = {"store_url": stores.URL_VARIABLE}  # the others are RATEKIT_ and the name in capitals
_OPTIONS = {"store": "store_url", "database": "database_url"}  # the names of options that are not those of settings
_SERVICE_LINK = "tcp://"  # what Kubernetes sets RATEKIT_PORT to, where there is a Service with the name ratekit
_LIKENESS = 0.9  # of a variable that is nearly one of ours
_TYPES = {"int": "a whole number", "float": "a number", "bool": "on or off", "str": "a text"}
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the service is told.

    - store_url, database_url: where counters are, and where tenants, plans and keys are
    - admin_token: the bearer token of /v1/admin; without one, administration is off
    - key_pepper: a secret that API keys are hashed with, beside their salt; all instances need the same
    - log_checks: which checks have a log line: all, refused, none
    - poll_seconds: how often the version of the configuration is looked at
    - tenant_limit: how much one tenant may ask of one instance, as a limit ("2000/s"); empty for no bound
    - failure_limit: how many wrong keys and tokens one address may send
    - on_outage: what a plan does that says nothing about it; deadline: seconds that the store has for an answer
    - body_bytes, body_seconds: how large a request may be, and how long it may take to arrive
    - grpc_port, rules: where Envoy's rate limit service listens, and the file, or the folder of files, of its limits: of
      envoyproxy/ratelimit, or documents of rules
    - tls_certificate, tls_key: serve HTTPS, and gRPC with TLS; grpc_client_authority: only gRPC clients with its certificate
    - front: answer the hot paths before FastAPI, which is faster; off for comparing
    - tracing: "on", "off", or "auto": on if OTEL_EXPORTER_OTLP_ENDPOINT is set
    """

    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int = 0
    rules: str = ""
    workers: int = 1
    tls_certificate: str = ""
    tls_key: str = field(default="", repr=False)
    grpc_client_authority: str = ""
    store_url: str = field(default=stores.DEFAULT_URL, repr=False)
    database_url: str = field(default=urls.DEFAULT_URL, repr=False)
    admin_token: str = field(default="", repr=False)
    key_pepper: str = field(default="", repr=False)
    log_checks: str = "all"
    poll_seconds: float = 0.5
    tenant_limit: str = ""
    failure_limit: str = "300/min"
    on_outage: str = "open"
    deadline: float = 0.05
    body_bytes: int = 65_536
    body_seconds: float = 10.0
    shutdown_seconds: float = 10.0
    front: bool = True
    tracing: str = "auto"
    demo: bool = False

    def __post_init__(self) -> None:
        if not self.demo:  # which has a database of its own
            urls.parsed(self.database_url)
        self._check_secrets()
        self._check_choices()
        for name in ("poll_seconds", "deadline", "body_seconds", "shutdown_seconds"):
            _refuse_outside(name, getattr(self, name), 0.001, 3600)
        _refuse_outside("port", self.port, 0, 65_535)
        _refuse_outside("grpc_port", self.grpc_port, 0, 65_535)
        if bool(self.grpc_port) != bool(self.rules):
            raise ConfigurationError("grpc_port and rules belong together: give both, or none")
        if self.port == self.grpc_port != 0:
            raise ConfigurationError(f"port and grpc_port are both {self.port}: give each its own")
        _refuse_outside("workers", self.workers, 1, 256)
        _refuse_outside("body_bytes", self.body_bytes, 256, 16_777_216)

    def _check_secrets(self) -> None:
        if self.admin_token and len(self.admin_token) < SHORTEST_TOKEN:
            raise ConfigurationError(f"admin_token has {len(self.admin_token)} characters: give it {SHORTEST_TOKEN} or more")
        if not self.admin_token.isascii() or not self.admin_token.isprintable():
            raise ConfigurationError("admin_token has characters that a header cannot carry: use letters and digits")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigurationError("tls_certificate and tls_key belong together: give both, or none")
        if self.grpc_client_authority and not (self.tls_key and self.grpc_port):
            raise ConfigurationError("grpc_client_authority needs a grpc_port, and tls_certificate and tls_key")

    def _check_choices(self) -> None:
        as_on_outage(self.on_outage)
        if self.log_checks not in LOGGED:
            raise ConfigurationError(f"log_checks {self.log_checks!r} is unknown: it is one of {', '.join(LOGGED)}")
        if self.tracing not in ("on", "off", "auto"):
            raise ConfigurationError(f"tracing {self.tracing!r} is unknown: it is one of on, off, auto")
        for name in ("tenant_limit", "failure_limit"):
            if text := getattr(self, name):
                _refuse_bad_limit(name, text)


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return _VARIABLES.get(name) or f"RATEKIT_{name.upper()}"


def load(
    given: Mapping[str, Any] | None = None, file: str | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings: what is given, else what the environment says, else the file, else the default.

    The file is TOML, with the names of the settings. Raises ConfigurationError, which names the setting and its source.
    """
    environment = os.environ if environment is None else environment
    _refuse_misspelt(environment)
    values = _of_file(file) if file else {}
    for one in dataclasses.fields(Settings):
        text = environment.get(variable_of(one.name), "")
        if text and not (one.name == "port" and text.startswith(_SERVICE_LINK)):
            values[one.name] = _converted(one, text, variable_of(one.name))
    values |= {name: value for name, value in (given or {}).items() if value is not None}
    return Settings(**values)


def _of_file(path: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigurationError(f"the settings file {path!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings file {path!r} is not TOML: {error}") from None
    known = {one.name: one for one in dataclasses.fields(Settings)}
    found = {}
    for given, value in values.items():
        name = _OPTIONS.get(given, given.replace("-", "_"))
        if name not in known:
            raise ConfigurationError(f"{given!r} in {path!r} is no setting: it is one of {', '.join(known)}")
        found[name] = _checked(known[name], value, path)
    return found


def _refuse_misspelt(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a variable that is nearly one of ours: its writer believes that it counts."""
    known = {one.name: variable_of(one.name) for one in dataclasses.fields(Settings)}
    others = {f"RATEKIT_{name.upper()}": variable for name, variable in known.items()}
    for name in environment:
        if not name.startswith("RATEKIT_") or name in known.values():
            continue
        near = difflib.get_close_matches(name, known.values(), 1, _LIKENESS)
        if meant := others.get(name) or next(iter(near), None):
            raise ConfigurationError(f"the variable {name} is no setting: {meant} is")


def _refuse_bad_limit(name: str, text: str) -> None:
    try:
        requests_policy(name, text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def _checked(one: dataclasses.Field[Any], value: object, source: str) -> Any:
    if one.type == "float" and type(value) is int:
        return float(value)
    if type(value).__name__ != one.type:
        raise ConfigurationError(f"{one.name} in {source!r} is not {_TYPES[str(one.type)]}")
    return value


def _converted(one: dataclasses.Field[Any], text: str, source: str) -> Any:
    try:
        if one.type == "bool":
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text.lower()]
        return {"int": int, "float": float, "str": str}[str(one.type)](text)
    except (ValueError, KeyError):
        raise ConfigurationError(f"{source} {text!r} is not {_TYPES[str(one.type)]}") from None


def _refuse_outside(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigurationError(f"{name} {value!r} is not between {least} and {most}")
