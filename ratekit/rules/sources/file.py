"""Rules from a file: replaced by renaming another over it, or by the symbolic links of a Kubernetes volume.

The file is looked at twice a second. Its identity (device, inode, size, time) tells whether it has to be read again, and
follows links: Kubernetes changes a link to a folder, and leaves the path of the file as it is.

A file that is written in place is read once nothing has been written to it for a moment: half a document may make sense, and
would put half of the rules in force.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

from ratekit.core.errors import DocumentError, SourceUnavailable
from ratekit.rules.formats import MOST_BYTES, Format, format_of, write
from ratekit.rules.sources.contract import Loaded, Stop, Text

INTERVAL = 0.5  # seconds
_SETTLED = 0.05  # seconds without a change, after which a file that is written in place is complete
_MOST_WAITS = 20


class FileSource:
    """A file in TOML, YAML or JSON, by the ending of its name."""

    is_trusted = True

    def __init__(self, path: str | os.PathLike[str], *, interval: float = INTERVAL) -> None:
        self.path = Path(path)
        self.interval = interval
        self._format: Format = format_of(self.path.name)
        self._seen: tuple[str, tuple[int, ...]] | None = None  # a version, and the identity of the file that has it

    @property
    def origin(self) -> str:
        """The path."""
        return str(self.path)

    def load(self, known: str | None, pace: Callable[[], None]) -> Loaded | None:
        """Return the document, None if it is still the one of the known version."""
        try:
            identity = self._identity()
            if known is not None and self._seen == (known, identity):
                return None
            if self._is_written_in_place(identity):
                identity = self._settled(identity)
            content = self._content()
        except OSError as error:
            raise SourceUnavailable(f"{self.origin} cannot be read: {error.strerror or error}") from None
        if len(content) > MOST_BYTES:  # it grew, or is no file of a known size
            raise DocumentError([f"the document has more than {MOST_BYTES} bytes"])
        version = hashlib.sha256(content).hexdigest()[:12]
        self._seen = version, identity
        return None if version == known else Loaded(Text(content, self._format), version)

    def watch(self, changed: Callable[[], None]) -> Stop | None:
        """Only look: a look costs one system call."""
        return None

    def save(self, values: dict[str, Any]) -> str:
        """Write a document to a file beside it, and rename that over it."""
        content = write(values, self._format).encode()
        try:
            with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=f".{self.path.name}.", delete=False) as file:
                file.write(content)
            Path(file.name).chmod(0o644)
            Path(file.name).replace(self.path)
        except OSError as error:
            raise SourceUnavailable(f"{self.origin} cannot be written: {error.strerror or error}") from None
        return hashlib.sha256(content).hexdigest()[:12]

    def close(self) -> None:
        """Nothing is open."""

    def _is_written_in_place(self, identity: tuple[int, ...]) -> bool:
        return self._seen is not None and self._seen[1] != identity and self._seen[1][:2] == identity[:2]

    def _settled(self, identity: tuple[int, ...]) -> tuple[int, ...]:
        """Return the identity of the file once it has stayed the same."""
        for _ in range(_MOST_WAITS):
            before = identity
            sleep(_SETTLED)
            identity = self._identity()
            if identity == before:
                return identity
        raise SourceUnavailable(f"{self.origin} cannot be read: it is being written all the time")

    def _content(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(MOST_BYTES + 1)

    def _identity(self) -> tuple[int, ...]:
        found = self.path.stat()
        if found.st_size > MOST_BYTES:
            raise DocumentError([f"the document has {found.st_size} bytes: at most {MOST_BYTES} are read"])
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
