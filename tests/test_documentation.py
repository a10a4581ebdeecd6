"""What README and docs show, runs; what they say that it prints, it prints; what they link to, is there."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from support import django_ready  # noqa: F401 - its snippets read settings
from support.fetching import fetch
from support.servers import free_port

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "example_projects").glob("*/README.md"))]


def snippets() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        found += [(f"{page.relative_to(ROOT)}-{number}", block) for number, block in enumerate(blocks)]
    return found


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in snippets()])
@pytest.mark.usefixtures("ratekit_store", "ratekit_clock")
def test_snippet_runs_and_prints_what_it_says(code, tmp_path):
    if "def test_" in code:
        (tmp_path / "test_snippet.py").write_text(code)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert "1 passed" in finished.stdout, finished.stdout
        return
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "snippet", "exec"), {})
    promised = re.findall(r"^# (.*)$", code, re.MULTILINE)
    assert output.getvalue().splitlines() == promised


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_link_within_the_repository_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_demo_says_where_it_is_and_refuses_the_sixth_request():
    port = free_port()
    command = [sys.executable, "main.py", "--port", str(port)]
    folder = ROOT / "example_projects/fastapi_quickstart"
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert f"http://127.0.0.1:{port}" in process.stdout.readline()
            assert "curl" in process.stdout.readline()
            answers = [answer for _ in range(7) if (answer := fetch(f"http://127.0.0.1:{port}/search"))]
            page = fetch(f"http://127.0.0.1:{port}/")
        finally:
            process.terminate()
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert answers[0].headers["RateLimit-Remaining"] == "4"
    assert 1 <= int(answers[5].headers["Retry-After"]) <= 10
    assert answers[5].headers["Content-Type"] == "application/problem+json"
    assert answers[5].json()["violated-policies"] == ["10s"]
    assert "Send ten requests" in page.text


def test_django_quickstart_refuses_the_sixth_request_and_shows_browsers_a_page():
    port = free_port()
    command = [sys.executable, "main.py", "--port", str(port)]
    folder = ROOT / "example_projects/django_quickstart"
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert f"http://127.0.0.1:{port}" in process.stdout.readline()
            answers = [fetch(f"http://127.0.0.1:{port}/search") for _ in range(7)]
            reports = [fetch(f"http://127.0.0.1:{port}/report") for _ in range(3)]
            page = httpx2.get(f"http://127.0.0.1:{port}/search", headers={"Accept": "text/html"})
        finally:
            process.terminate()
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert [answer.status_code for answer in reports] == [200, 200, 429]
    assert answers[5].headers["Content-Type"] == "application/problem+json"
    assert "Too many requests" in page.text
