"""Envoy's rate limit service as a process of its own: a limiter, files of rules that may change, gRPC."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ratekit.admin import fleet_mode
from ratekit.core.errors import ConfigurationError, DocumentError
from ratekit.limiter.limiters import AsyncRateLimiter
from ratekit.rules import formats
from ratekit.rules.descriptors.documents import DocumentDomain
from ratekit.rules.descriptors.file import DescriptorFile, is_descriptor_file
from ratekit.rules.descriptors.tree import Domains
from ratekit_service.envoy.grpc_host import GrpcServer, Tls
from ratekit_service.envoy.service import RateLimitService

_log = logging.getLogger("ratekit.envoy")
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_Stamp = tuple[tuple[str, int, int, int], ...]


class RuleFiles:
    """Files of envoyproxy/ratelimit, documents of rules, or folders of them.

    A change that makes no sense is logged, and changes nothing.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._paths = [Path(path) for path in paths]
        self._seen = self._stamp()
        self.domains = self._load()

    def changed(self) -> Domains | None:
        """Return the limits if the files have changed since the last call, and make sense; else None."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            self.domains = self._load()
        except ConfigurationError as error:
            _log.error("the rules are not changed: %s", error)
            return None
        _log.info("the rules have changed")
        return self.domains

    def _load(self) -> Domains:
        files = [(path, _loaded(path)) for path in self._files()]
        for path, file in files:
            for note in file.notes if isinstance(file, DescriptorFile) else ():
                _log.warning("%s: %s", path, note)
        return Domains.of([file for _, file in files])

    def _files(self) -> list[Path]:
        found = [sorted(path.iterdir()) if path.is_dir() else [path] for path in self._paths]
        return [file for files in found for file in files if file in self._paths or file.suffix in _SUFFIXES]

    def _stamp(self) -> _Stamp:
        stamps = []
        for path in self._files():
            with suppress(OSError):
                status = path.stat()
                stamps.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(stamps)


def _loaded(path: Path) -> DescriptorFile | DocumentDomain:
    """Read a file of either form: one with a `domain` is envoyproxy/ratelimit's, one with rules is ratekit's own."""
    return DocumentDomain.load(path) if _is_document(path) else DescriptorFile.load(path)


def _is_document(path: Path) -> bool:
    if path.suffix not in _SUFFIXES:
        return False
    try:
        return not is_descriptor_file(formats.parse(path.read_bytes(), formats.format_of(str(path))))
    except (DocumentError, OSError):
        return False  # the reader of the other form says what is wrong


async def follow(files: RuleFiles, service: RateLimitService, interval: float = 1.0) -> None:
    """Let a service use the limits of files whenever these change."""
    while True:
        await asyncio.sleep(interval)
        domains = await asyncio.to_thread(files.changed)
        if domains is not None:
            service.use(domains)


class EnvoyHost:
    """Envoy's rate limit service in the running event loop: its gRPC server, and the files of its limits."""

    def __init__(
        self, address: str, files: RuleFiles, limiter: AsyncRateLimiter, *, tls: Tls | None = None, shares_port: bool = False
    ) -> None:
        self._files = files
        self._service = RateLimitService(limiter, files.domains)
        self._server = GrpcServer(self._service, address, tls=tls, shares_port=shares_port)
        self._following: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Accept calls, and follow the files."""
        await self._server.start()
        self._following = asyncio.ensure_future(follow(self._files, self._service))

    async def stop(self, grace: float = 5.0) -> None:
        """Let calls that were begun finish for so many seconds, and close."""
        if self._following is not None:
            self._following.cancel()
        await self._server.stop(grace)


async def serve(address: str, files: RuleFiles, limiter: AsyncRateLimiter, *, tls: Tls | None = None) -> None:
    """Serve until SIGTERM or SIGINT, and then let calls that were begun finish."""
    host = EnvoyHost(address, files, limiter, tls=tls)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await limiter.warm()
    fleet = fleet_mode.follow(limiter)
    await asyncio.to_thread(fleet.refresh)
    await host.start()
    await stopped.wait()
    await host.stop()
    fleet.close()
    await limiter.aclose()
