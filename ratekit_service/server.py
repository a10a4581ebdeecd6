"""Running the service by uvicorn: one worker or several, TLS, graceful shutdown."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import MutableMapping
from functools import partial
from typing import Any

import uvicorn

from ratekit import stores
from ratekit.core.errors import ConfigurationError
from ratekit.database import urls
from ratekit_service import preflight
from ratekit_service.app import create_app
from ratekit_service.checks.front import App, Front, Receive, Scope, Send
from ratekit_service.connections import BoundedProtocol
from ratekit_service.demo import seeded
from ratekit_service.settings import Settings, load, variable_of
from ratekit_service.telemetry import logs

_log = logging.getLogger("ratekit.service")
_GC_THRESHOLD = 50_000  # the default of 700 has the collector run several times a second


def run(settings: Settings) -> None:
    """Serve until a signal ends it. Requests that were begun are finished."""
    preflight.check(settings)
    logs.configure()
    app = ending_in_time(
        application(settings), settings.shutdown_seconds
    )  # with several workers, too: what is wrong is told once, not by each of them again and again
    _tell(settings)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when all is done
    _end_on_hangup()
    try:
        if settings.workers == 1:
            uvicorn.run(app, **_options(settings))
        else:
            with tempfile.TemporaryDirectory(prefix="ratekit-metrics-") as folder:
                _export(settings, folder)
                uvicorn.run(f"{__name__}:from_environment", factory=True, workers=settings.workers, **_options(settings))
    except KeyboardInterrupt:
        return
    except SystemExit as ended:
        if ended.code:
            raise ConfigurationError("the service could not start: its log says why") from None


def _end_on_hangup() -> None:
    """Have SIGHUP end the service as SIGTERM does, if it would kill it. Several workers are started anew by uvicorn."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is signal.SIG_DFL:
        signal.signal(hangup, lambda *_: signal.raise_signal(signal.SIGTERM))


def from_environment() -> App:
    """Return the application of a worker, whose settings are in the environment."""
    logs.configure()
    settings = load()
    return ending_in_time(application(settings), settings.shutdown_seconds)


def application(settings: Settings) -> App:
    """Return the application as it is served: with the demo's tenant if asked for, and a quiet garbage collector."""
    front: Front = create_app(settings)
    return quiet_collector(seeded(front) if settings.demo else front)


def ending_in_time(app: App, seconds: float) -> App:
    """End the process so many seconds after its last answer at the latest, even if the database hangs."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def watch() -> MutableMapping[str, Any]:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                timer = threading.Timer(seconds, _give_up, [seconds])
                timer.daemon = True
                timer.start()
            return message

        await app(scope, watch if scope["type"] == "lifespan" else receive, send)

    return wrapped


def _give_up(seconds: float) -> None:
    """End now. Threads that wait for a database would be waited for without end."""
    _log.error("the service ends, as something has hung for %g s: violations of the last second may be lost", seconds)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def quiet_collector(app: App) -> App:
    """Run the garbage collector less often, and never over what was there when the service had started."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return

        async def watch(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                gc.collect()
                gc.freeze()
                gc.set_threshold(_GC_THRESHOLD, 20, 20)
            await send(message)

        await app(scope, receive, watch)

    return wrapped


def _tell(settings: Settings) -> None:
    """Log where counters and configuration are, without passwords, and whether there is administration."""
    _log.info(
        "counters are in %s, tenants in %s; administration is %s",
        stores.shown(settings.store_url),
        urls.shown(settings.database_url),
        "on" if settings.admin_token else "off: RATEKIT_ADMIN_TOKEN is not set",
    )


def _options(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": max(1, round(settings.shutdown_seconds)),
        "timeout_keep_alive": 30,
        "http": partial(BoundedProtocol, head_seconds=settings.body_seconds, body_bytes=settings.body_bytes),
    }
    if settings.tls_certificate:
        options |= {"ssl_certfile": settings.tls_certificate, "ssl_keyfile": settings.tls_key}
    return options


def _export(settings: Settings, metrics_folder: str) -> None:
    """Put the settings into the environment, for workers, and the folder where they show their metrics to each other."""
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        os.environ[variable_of(one.name)] = str(value)
    os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", metrics_folder)
