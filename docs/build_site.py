"""Build the site from the pages of docs/ and the docstrings. `make site` writes build/site.

The index is docs/README.md, with its lists as the table of contents.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import django
from sphinx.cmd.build import main as sphinx

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "support.django_settings")
# What users import; each becomes a section of the API reference.
MODULES = {
    "ratekit": "The core",
    "ratekit.asgi": "ASGI middleware",
    "ratekit.wsgi": "WSGI middleware",
    "ratekit.flask": "Flask",
    "ratekit_fastapi": "FastAPI",
    "ratekit_django": "Django",
    "ratekit.rules": "Rules from documents",
    "ratekit.client": "Client of the check service",
    "ratekit_service": "The check service",
    "ratekit.identity": "Key functions",
    "ratekit.overrides": "Overrides",
    "ratekit.admin.durable_overrides": "Overrides that last",
    "ratekit.report": "The report",
    "ratekit.admin.fleet_mode": "Fleet mode",
    "ratekit.admin.explain": "Explanations",
    "ratekit.telemetry": "Events",
    "ratekit.core.events": "More events",
    "ratekit.telemetry.prometheus": "Prometheus",
    "ratekit.telemetry.opentelemetry": "OpenTelemetry",
    "ratekit.telemetry.datadog": "Datadog",
    "ratekit.telemetry.logs": "Logs",
    "ratekit.testing": "Testing",
}


def reference() -> str:
    """Return the page of the API reference: what each module offers, each thing where it is offered first."""
    seen: set[int] = set()
    sections = [_section(name, title, seen) for name, title in MODULES.items()]
    return "API reference\n=============\n\n" + "\n".join(sections)


def _section(name: str, title: str, seen: set[int]) -> str:
    module = importlib.import_module(name)
    lines = [title, "-" * len(title), "", f".. automodule:: {name}", "   :no-members:", ""]
    for public in offered(module):
        thing = getattr(module, public)
        if id(thing) not in seen and (inspect.isclass(thing) or inspect.isroutine(thing)):
            seen.add(id(thing))
            lines += [f".. auto{'class' if inspect.isclass(thing) else 'function'}:: {name}.{public}", ""]
    return "\n".join(lines)


def offered(module: ModuleType) -> list[str]:
    """Return the names that a module offers: those of __all__, else those that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
    return [name for name in own if not name.startswith("_")]


def index(page: str) -> str:
    """Return the start page: the list of pages, which is also the table of contents."""
    names = [name.removesuffix(".md") for name in re.findall(r"\]\((\w[\w-]*\.md)\)", page)]
    contents = "\n".join(["api", *dict.fromkeys(names), "changelog"])
    return f"{page}\n```{{toctree}}\n:hidden:\n\n{contents}\n```\n"


def prepare(folder: Path) -> None:
    """Copy the pages into a folder, with the index, the reference and the changelog beside them."""
    shutil.copytree(ROOT / "docs", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build_site.py", "__pycache__"))
    (folder / "index.md").write_text(index((folder / "README.md").read_text()))
    (folder / "api.rst").write_text(reference())
    shutil.copy(ROOT / "CHANGELOG.md", folder / "changelog.md")
    configuration = folder / "conf.py"
    configuration.write_text(configuration.read_text().replace("Path(__file__).parents[1]", f"Path({str(ROOT)!r})"))


def build(out: Path) -> int:
    """Build the site, and return the exit code. A warning is an error."""
    with tempfile.TemporaryDirectory() as folder:
        django.setup()  # parts of the front for Django can only be imported then
        prepare(Path(folder))
        return sphinx(["-b", "html", "-q", "-W", "--keep-going", folder, str(out)])


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/site"))
