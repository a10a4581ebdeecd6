"""python -m ratekit_service.envoy: Envoy's rate limit service alone, without the check service and its database."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

from ratekit import stores
from ratekit.core.errors import ConfigurationError, MissingExtraError
from ratekit.core.outages import OnOutage
from ratekit.limiter.limiters import AsyncRateLimiter
from ratekit.limiter.operations import DEADLINE
from ratekit_service.ports import check_port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ratekit_service.envoy", description=__doc__)
    parser.add_argument("--rules", required=True, nargs="+", help="files of envoyproxy/ratelimit, or folders of them")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--grpc-port", type=int, default=8081, help="the port to listen on (8081)")
    parser.add_argument("--store", default=None, help=f"where counters are ({stores.URL_VARIABLE}, else memory://)")
    parser.add_argument("--on-outage", default="open", choices=list(OnOutage), help="when the store is away (open)")
    parser.add_argument(
        "--deadline", type=float, default=DEADLINE, help=f"seconds that the store has for an answer ({DEADLINE})"
    )
    parser.add_argument("--tls-certificate", type=Path, help="with --tls-key: TLS")
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--tls-client-authority", type=Path, help="only clients with a certificate of this authority")
    return parser


def main() -> None:
    """Run the service."""
    parser = _parser()
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if bool(given.tls_certificate) != bool(given.tls_key):
        parser.error("--tls-certificate and --tls-key belong together")
    try:
        _run(given)
    except ConfigurationError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _run(given: argparse.Namespace) -> None:
    try:
        from ratekit_service.envoy.grpc_host import Tls
        from ratekit_service.envoy.serving import RuleFiles, serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ratekit"):
            raise
        raise MissingExtraError("Envoy's rate limit service", "grpc") from None
    check_port(given.host, given.grpc_port, "--grpc-port")
    tls = Tls(given.tls_certificate, given.tls_key, given.tls_client_authority) if given.tls_key else None
    limiter = AsyncRateLimiter(given.store, on_outage=given.on_outage, deadline=given.deadline)
    asyncio.run(serve(f"{given.host}:{given.grpc_port}", RuleFiles(given.rules), limiter, tls=tls))


if __name__ == "__main__":
    main()
