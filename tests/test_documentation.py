"""What README and docs show runs and prints what they say; links lead somewhere; sentences are short."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from support import django_ready  # noqa: F401 - its snippets read settings
from support.fetching import fetch
from support.pages import PAGES, ROOT, name_of, sentences, snippets
from support.servers import free_port, missing

each_page = pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in snippets().items()])
@pytest.mark.usefixtures("ratekit_store", "ratekit_clock")
def test_snippet_runs_and_prints_what_it_says(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some snippets write files
    if "def test_" in code:
        (tmp_path / "test_snippet.py").write_text(code)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert "1 passed" in finished.stdout, finished.stdout
        return
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})
    promised = re.findall(r"^# (.*)$", code, re.MULTILINE)
    assert output.getvalue().splitlines() == promised


@each_page
def test_link_within_the_repository_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_link_to_a_heading_finds_it(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        assert anchor in anchors_of(page.parent / target if target else page), f"{target}#{anchor}"


@each_page
def test_sentence_has_at_most_45_words(page):
    assert [sentence for sentence in sentences(page) if len(sentence.split()) > 45] == []


def test_readme_has_no_line_that_is_too_long_to_read():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert [line for line in lines if len(line) > 125 and not line.startswith("|")] == []


def _heed_ctrl_c() -> None:
    """Undo what a shell does to the commands that it runs in the background: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def example(name: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the server of an example project, and yield its URL and its process; Ctrl-C ends it without a traceback."""
    port = free_port()
    command = [sys.executable, "main.py", "--port", str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    folder = ROOT / "example_projects" / name
    with subprocess.Popen(command, cwd=folder, preexec_fn=_heed_ctrl_c, **pipes) as process:
        try:
            yield f"http://127.0.0.1:{port}", process
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=20)
        finally:
            process.kill()  # if it has not ended
    assert process.returncode == 0, rest
    assert "Traceback" not in rest, rest


@pytest.mark.parametrize("name", ["fastapi_quickstart", "django_quickstart"])
def test_example_prints_a_curl_loop_that_shows_what_it_says(name):
    if not shutil.which("curl"):
        missing("no curl: install the package curl")
    with example(name) as (url, process):
        printed = [process.stdout.readline() for _ in range(4)]
        fetch(f"{url}/")
        shown = subprocess.check_output(["sh", "-c", printed[3]], text=True)
    assert url in printed[0]
    assert "200 five times, then 429 twice" in printed[2]
    assert shown.split() == ["200"] * 5 + ["429"] * 2


def test_demo_refuses_the_sixth_request():
    with example("fastapi_quickstart") as (url, _):
        answers = [fetch(f"{url}/search") for _ in range(7)]
        page = fetch(f"{url}/")
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert answers[0].headers["RateLimit-Remaining"] == "4"
    assert 1 <= int(answers[5].headers["Retry-After"]) <= 10
    assert answers[5].headers["Content-Type"] == "application/problem+json"
    assert answers[5].json()["violated-policies"] == ["10 seconds"]
    assert "Send ten requests" in page.text


def test_django_quickstart_refuses_the_sixth_request_and_shows_browsers_a_page():
    with example("django_quickstart") as (url, _):
        answers = [fetch(f"{url}/search") for _ in range(7)]
        reports = [fetch(f"{url}/report") for _ in range(3)]
        page = httpx2.get(f"{url}/search", headers={"Accept": "text/html"})
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert [answer.status_code for answer in reports] == [200, 200, 429]
    assert answers[5].headers["Content-Type"] == "application/problem+json"
    assert "Too many requests" in page.text
