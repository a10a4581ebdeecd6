"""Sphinx: the site is made of the same pages, and of an API reference from the docstrings. `make site`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import ratekit  # noqa: E402

project, author, copyright = "ratekit", "the ratekit authors", "the ratekit authors"  # noqa: A001 - Sphinx's names
version = release = ratekit.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"ratekit {release}"
root_doc = "index"
exclude_patterns = ["README.md"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_use_unqualified_type_names = True
# Pages link to files of the repository, which the site does not have.
suppress_warnings = ["myst.xref_missing", "myst.header", "autodoc.mocked_object", "ref.python"]
nitpicky = False
