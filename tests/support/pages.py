"""The pages of the documentation, and what is on them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "example_projects" / "README.md",
    *sorted((ROOT / "example_projects").glob("*/README.md")),
]


def name_of(page: Path) -> str:
    """The path of a page within the repository."""
    return str(page.relative_to(ROOT))


def snippets() -> dict[str, str]:
    """Every Python snippet, by its page and its number on the page."""
    found = {}
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        found |= {f"{name_of(page)}-{number}": block for number, block in enumerate(blocks)}
    return found


def sentences(page: Path) -> list[str]:
    """The sentences of a page: of its paragraphs, list items and table cells, without code blocks and comments."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", page.read_text(), flags=re.DOTALL)
    blocks = re.split(r"\n\s*\n|\n(?=- |\d+\. |\|)", text)
    prose = [block.replace("\n", " ") for block in blocks if not block.startswith(("    ", "#"))]
    cells = [cell for block in prose for cell in (block.split(" | ") if block.startswith("|") else [block])]
    return [sentence for cell in cells for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[(])", cell)]
