"""The command serve: runs the check service."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import click

from ratekit import stores
from ratekit.core.errors import ConfigurationError, MissingExtraError
from ratekit.database import urls

_HELP = """Run the check service: limits over HTTP, for services in any language.

Every setting can be given as an option, as an environment variable, or in a file; the first of these counts.
The database is migrated at the start. SIGTERM or SIGHUP ends the service when the requests that were begun are answered.

\b
Try it, with nothing installed beside it:
  ratekit serve --demo

\b
In production: counters in Redis, the rest in Postgres, any number of instances
  export RATE_LIMIT_STORE_URL=redis://redis:6379
  export RATEKIT_DATABASE_URL=postgresql://ratekit:secret@postgres/ratekit
  export RATEKIT_ADMIN_TOKEN=$(openssl rand -hex 32)
  ratekit serve --host 0.0.0.0 --port 8080

\b
Then, with the token, a tenant, a plan and a key; and with the key, a check:
  curl localhost:8080/v1/admin/tenants -H "authorization: Bearer $RATEKIT_ADMIN_TOKEN" \\
    -H 'content-type: application/json' -d '{"name":"acme"}'
  curl localhost:8080/v1/admin/plans -H "authorization: Bearer $RATEKIT_ADMIN_TOKEN" \\
    -H 'content-type: application/json' -d '{"tenant_id":"ten_...","name":"five","limits":["5/min"]}'
  curl localhost:8080/v1/admin/keys -H "authorization: Bearer $RATEKIT_ADMIN_TOKEN" \\
    -H 'content-type: application/json' -d '{"tenant_id":"ten_...","name":"prod","plan_id":"plan_..."}'
  curl localhost:8080/v1/check -H "x-api-key: $KEY" \\
    -H 'content-type: application/json' -d '{"resource":"GET:/orders","subject":"user:42"}'

\b
With Envoy's rate limit service, in the same process:
  ratekit serve --port 8080 --grpc-port 8081 --rules ratelimit.yaml

\b
Other variables:
  RATEKIT_ADMIN_TOKEN     the bearer token of /v1/admin; without it, administration is off
  RATEKIT_KEY_PEPPER      a secret that API keys are hashed with, the same in all instances
  RATEKIT_ON_OUTAGE       what plans do that say nothing: open, closed or local
  RATEKIT_TENANT_LIMIT    what one tenant may ask of one instance, such as 2000/s
  RATEKIT_BODY_BYTES, RATEKIT_BODY_SECONDS, RATEKIT_POLL_SECONDS, RATEKIT_DEADLINE, RATEKIT_SHUTDOWN_SECONDS
  RATE_LIMIT_MODE         on, off or monitor, for everybody; ratekit mode weakens it while the service runs
  OTEL_EXPORTER_OTLP_ENDPOINT   where spans go, if anywhere
"""


@click.command(help=_HELP, short_help="Run the check service: limits over HTTP, for services in any language.")
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="The port to listen on.  [default: 8080]")
@click.option("--grpc-port", type=int, help="With --rules: the port of Envoy's rate limit service.")
@click.option(
    "--rules", metavar="FILE", help="The limits of Envoy's descriptors: a file of envoyproxy/ratelimit, or a document."
)
@click.option("--workers", type=int, help="How many processes. They need a redis:// store.  [default: 1]")
@click.option(
    "--store", "store_url", metavar="URL", help=f"Where counters are: {stores.URL_VARIABLE}.  [default: memory://]"
)
@click.option("--database", "database_url", metavar="URL", help=f"Where tenants, plans and keys are: {urls.URL_VARIABLE}.")
@click.option("--log-checks", type=click.Choice(["all", "refused", "none"]), help="Which checks have a log line.")
@click.option("--tls-certificate", metavar="FILE", help="With --tls-key: serve HTTPS, and gRPC with TLS.")
@click.option("--tls-key", metavar="FILE")
@click.option("--grpc-client-authority", metavar="FILE", help="Accept only gRPC clients with a certificate of it.")
@click.option(
    "--config", "file", metavar="FILE", help="A TOML file with settings, by the names of these options, or of settings."
)
@click.option("--demo", is_flag=True, default=None, help="A tenant with plans and a key, in places of its own, to try.")
def serve(file: str | None, **given: Any) -> None:
    """Run the check service."""
    try:
        from ratekit_service import demo, settings
        from ratekit_service.server import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ratekit"):
            raise
        raise MissingExtraError("ratekit serve", "service") from None
    chosen = settings.load(given, file)
    if not chosen.demo:
        run(chosen)
        return
    if given["store_url"] or given["database_url"]:
        raise ConfigurationError("--demo has a store and a database of its own: leave out --store and --database")
    with tempfile.TemporaryDirectory(prefix="ratekit-demo-") as folder:
        run(dataclasses.replace(demo.apart(chosen, Path(folder)), log_checks=given["log_checks"] or "none"))
