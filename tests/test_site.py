"""The site is built from the pages and the docstrings, without a warning."""

from __future__ import annotations

import subprocess
import sys

from support.pages import ROOT


def test_site_has_every_page_and_what_each_module_offers(tmp_path):
    command = [sys.executable, "docs/build_site.py", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"} | {"index", "api", "changelog"}
    assert pages <= {path.stem for path in tmp_path.glob("*.html")}
    reference = (tmp_path / "api.html").read_text()
    named = (
        *("ratekit.RateLimiter", "ratekit.flask.rate_limit", "ratekit_fastapi.install", "ratekit_django.RateLimitMixin"),
        *("ratekit.rules.RateKit", "ratekit.client.RateKitClient", "ratekit_service.create_app"),
        "ratekit.report.read_report",
    )
    for name in named:
        assert f'id="{name}"' in reference, name
