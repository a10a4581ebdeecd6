"""The Lua files: in the wheel they are inside the package, in a checkout beside it."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from pathlib import Path


@cache
def read(name: str) -> bytes:
    """Return one of the Lua files, by its name without the ending."""
    packaged = resources.files("ratekit").joinpath("lua", f"{name}.lua")
    if packaged.is_file():
        return packaged.read_bytes()
    return (Path(__file__).parents[2] / "lua" / f"{name}.lua").read_bytes()


@cache
def digest() -> str:
    """Return the name under which Redis knows the script."""
    return hashlib.sha1(read("ratekit"), usedforsecurity=False).hexdigest()
