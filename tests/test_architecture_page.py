"""Every module, function and path that docs/architecture.md names exists, and every folder is drawn."""

from __future__ import annotations

import importlib
import re

import pytest

from support.pages import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text()
DOTTED = sorted(set(re.findall(r"`(ratekit\w*(?:\.\w+)+)`", PAGE)))
PATHS = sorted(set(re.findall(r"`((?:[\w.]+/)+[\w.]*)`", PAGE)))
TREE = next(block for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) if "ratekit/" in block)


def exists(name: str) -> bool:
    """Whether there is a file or folder of that path, or a module or a member of one of that dotted name."""
    if "/" in name:
        return (ROOT / name).exists()
    try:
        return _resolves(name.split("."))
    except ImportError:
        return False


def _resolves(parts: list[str]) -> bool:
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name is None or not ".".join(parts).startswith(error.name):
                raise
            continue
        for name in parts[length:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@pytest.mark.parametrize("name", [*DOTTED, *PATHS])
def test_name_on_the_page_exists(name):
    assert exists(name)


def test_tree_draws_every_folder_and_every_door():
    folders = {path.parent.name for path in (ROOT / "ratekit").glob("*/__init__.py")}
    doors = {path.name for path in (ROOT / "ratekit").glob("*.py")} - {"__init__.py"}
    assert {f"{name}/" for name in folders} | doors <= set(TREE.split())
    drawn = set(re.findall(r"^ {2}(\w+)/", TREE, re.MULTILINE))
    assert drawn == folders


@pytest.mark.parametrize("name", ["ratekit.core.nothing", "ratekit.core.limits.Nothing", "ratekit/core/nothing.py"])
def test_name_that_does_not_exist_is_found(name):
    assert not exists(name)
