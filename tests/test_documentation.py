"""What README and docs show runs and prints what they say; links lead somewhere; sentences are short."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import django_ready  # noqa: F401 - its snippets read settings
from support.examples import example
from support.pages import PAGES, ROOT, name_of, sentences, snippets
from support.servers import missing

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


@pytest.mark.parametrize("name", ["fastapi_quickstart", "django_quickstart"])
def test_example_prints_a_curl_loop_that_shows_what_it_says(name, tmp_path):
    if not shutil.which("curl"):
        missing("no curl: install the package curl")
    with example(name, tmp_path) as running:
        shown = subprocess.check_output(["sh", "-c", running.commands()[0]], text=True)
    printed = running.printed.splitlines()
    assert running.url in printed[0]
    assert "200 five times, then 429 twice" in printed[2]
    assert shown.split() == ["200"] * 5 + ["429"] * 2


def test_demo_refuses_the_sixth_request(tmp_path):
    with example("fastapi_quickstart", tmp_path) as running:
        answers = [running.client.get("/search") for _ in range(7)]
        page = running.client.get("/")
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert answers[0].headers["RateLimit-Remaining"] == "4"
    assert 1 <= int(answers[5].headers["Retry-After"]) <= 10
    assert answers[5].headers["Content-Type"] == "application/problem+json"
    assert answers[5].json()["violated-policies"] == ["10 seconds"]
    assert "Send ten requests" in page.text


def test_django_quickstart_refuses_the_sixth_request_and_shows_browsers_a_page(tmp_path):
    with example("django_quickstart", tmp_path) as running:
        answers = [running.client.get("/search") for _ in range(7)]
        reports = [running.client.get("/report") for _ in range(3)]
        page = running.client.get("/search", headers={"Accept": "text/html"})
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert [answer.status_code for answer in reports] == [200, 200, 429]
    assert answers[5].headers["Content-Type"] == "application/problem+json"
    assert "Too many requests" in page.text


def test_names_of_other_limiters_still_exist():
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / "docs/coming-from.md").read_text(), re.DOTALL)
    imports = [line for block in blocks for line in re.findall(r"^from \w+.* import .+$", block, re.MULTILINE)]
    assert {line.split()[1].partition(".")[0] for line in imports} == {
        "slowapi", "fastapi_limiter", "pyrate_limiter", "flask_limiter", "django_ratelimit", "limits",
    }  # fmt: skip
    for line in imports:
        exec(line, {})


def test_readme_is_short_and_opens_with_a_sentence_an_application_and_a_picture():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200
    first, second = text.split("\n\n")[1:3]
    assert first.count(". ") == 0
    assert second.startswith("```python")
    assert text.index("![") < text.index("<!-- comparison: begin -->") < text.index("## Without a framework")
