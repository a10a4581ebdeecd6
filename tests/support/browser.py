"""A real headless browser, for pages: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from support.servers import missing

PICTURES = Path(__file__).parents[2] / "build" / "pictures"  # what the tests have seen, to look at
_OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run")


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        missing("no browser: install the package chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=_OPTIONS)
        try:
            yield started
        finally:
            started.close()


def picture(page: Page, name: str, *, full_page: bool = True) -> Path:
    """Keep a picture of a page, or of what of it is seen, and return its path."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, full_page=full_page)
    return path
