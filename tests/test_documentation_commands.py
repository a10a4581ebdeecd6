"""The commands of README and docs: the program takes them, targets and extras exist, and they print what is shown."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from ratekit.cli.program import program
from support.mongo import mongo_server
from support.pages import PAGES, ROOT, name_of
from support.servers import free_port, missing, serving, start_server, stop_server, wheel_server

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
REDIS, MONGO = "redis://localhost:6379", "mongodb://localhost/limits"  # as the pages write them


def without_blocks(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def lines_of(page: Path) -> list[str]:
    """The indented lines of a page, without a prompt, without what is told about them."""
    indented = re.findall(r"^    (\S.*)$", without_blocks(page), re.MULTILINE)
    return [re.sub(r"\s+# .*$", "", line).removeprefix("$ ") for line in indented]


def whole_commands(page: Path) -> list[str]:
    """The commands of the program that a page shows on lines of their own."""
    return re.findall(r"(?:^|(?<=&& )|(?<=if ))ratekit(?: [^;&>\n]*)?", "\n".join(lines_of(page)), re.MULTILINE)


def mentioned_commands(page: Path) -> list[str]:
    """The commands of the program that a sentence or a table mentions."""
    return re.findall(r"`(?:flask |manage\.py )?(ratekit [a-z][^`>\n]*)(?:>[^`\n]*)?`", without_blocks(page))


def parse(command: str) -> None:
    """Parse a command as the program does, without running it."""
    words = [word for word in shlex.split(command)[1:] if word not in ("…", "--help")]
    context, found = click.Context(program, info_name="ratekit"), program
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        name, found, words = found.resolve_command(context, words)
        context = click.Context(found, parent=context, info_name=name)
    found.make_context(context.info_name, words, parent=context.parent).close()


WHOLE = sorted({(name_of(page), command.strip()) for page in PAGES for command in whole_commands(page) if " " in command})
MENTIONED = sorted({(name_of(page), command) for page in PAGES for command in mentioned_commands(page)})


@pytest.fixture
def named_files(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that a command names, empty."""
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"[\w-]+\.(?:jsonl|yaml)", command):
        (tmp_path / name).touch()


@pytest.mark.parametrize(("page", "command"), WHOLE)
@pytest.mark.usefixtures("named_files")
def test_command_on_a_line_of_its_own_is_complete(page, command):
    parse(command)


@pytest.mark.parametrize(("page", "command"), MENTIONED)
@pytest.mark.usefixtures("named_files")
def test_command_that_is_mentioned_exists_with_its_options(page, command):
    with contextlib.suppress(click.MissingParameter):
        parse(command)


def test_a_wrong_command_would_be_found():
    with pytest.raises(click.UsageError, match="(?i)no such option"):
        parse("ratekit report --shares 1%")
    with pytest.raises(click.UsageError):
        parse("ratekit overides list")
    with pytest.raises(click.UsageError, match="(?i)missing"):
        parse("ratekit explain")


# They need no file, no database and no application, and end by themselves.
BY_STORE = ("check", "inspect", "reset", "explain", "overrides set", "overrides list", "mode", "report", "doctor")
RUN = [
    (page, command)
    for page, command in WHOLE
    if command.removeprefix("ratekit ").startswith(BY_STORE) and "--store" not in command
]


@pytest.mark.parametrize(("page", "command"), RUN)
def test_command_runs_on_a_store(page, command, redis_server):
    environment = os.environ | {"RATE_LIMIT_STORE_URL": redis_server.url}
    words = [sys.executable, "-m", "ratekit.cli", *shlex.split(command)[1:]]
    finished = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_targets_and_extras_of_a_page_exist(page):
    text = "\n".join([*lines_of(page), *re.findall(r"`([^`\n]+)`", without_blocks(page))])
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) - TARGETS == set()
    named = {extra.strip() for extras in re.findall(r"ratekit\[([\w, -]+)\]", text) for extra in extras.split(",")}
    assert named - set(EXTRAS) == set()


def sessions(page: Path) -> list[list[tuple[str, list[str]]]]:
    """What is typed and printed on a page, one session for each block: (command, lines of its output)."""
    blocks = re.findall(r"(?:^    .*\n)+", without_blocks(page), re.MULTILINE)
    found = []
    for block in blocks:
        parts = re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]
        typed = [part.splitlines() for part in parts]
        found.append([(command, [line.removeprefix("    ") for line in output]) for command, *output in typed])
    return [session for session in found if session]


def as_pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split("…")))


def test_sessions_of_the_command_line_print_what_is_shown(tmp_path):
    (document,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/rules.md").read_text(), re.DOTALL)
    (tmp_path / "rules.yaml").write_text(document)
    server, documents = start_server(wheel_server()), mongo_server()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        for command, shown in [step for session in sessions(ROOT / "docs/cli.md") for step in session]:
            typed = command.replace(REDIS, server.url).replace(MONGO, shlex.quote(documents.url("limits")))
            options = {"cwd": tmp_path, "env": os.environ | {"PATH": path}, "text": True}
            finished = subprocess.run(["sh", "-c", f"{typed} 2>&1"], capture_output=True, check=False, **options)
            printed = finished.stdout.replace(server.url, REDIS).replace(f"127.0.0.1:{documents.port}", "localhost")
            assert re.fullmatch("\n".join(map(as_pattern, shown)), printed.strip()), f"{command}\n{printed}"
    finally:
        stop_server(server)


def test_first_example_of_the_readme_answers_as_it_shows(tmp_path):
    if not shutil.which("curl"):
        missing("no curl: install the package curl")
    text = (ROOT / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / "main.py").write_text(code)
    (_, (serve, _), (ask, shown)) = sessions(ROOT / "README.md")[0]
    port = free_port()
    command = shlex.split(serve.removesuffix("&").replace("8000", str(port)))
    with serving([sys.executable, "-m", *command], port, tmp_path):
        printed = subprocess.check_output(["sh", "-c", ask.replace("8000", str(port))], text=True)
    assert printed.split() == " ".join(shown).split()
    assert "429" in printed


def test_redis_of_the_operations_page_starts_and_pleases_the_doctor():
    page = (ROOT / "docs/operations.md").read_text()
    (block,) = re.findall(r"(?:^    .*\n)*^    maxmemory-policy .*\n(?:^    .*\n)*", page, re.MULTILINE)
    lines = [re.sub(r"\s+#.*$", "", line.strip()) for line in block.splitlines()]
    options = [word for line in lines for word in (f"--{line.split()[0]}", *shlex.split(line)[1:])]
    server = start_server(wheel_server(), *options)
    try:
        words = [sys.executable, "-m", "ratekit.cli", "doctor", "--store", server.url]
        finished = subprocess.run(words, capture_output=True, text=True, check=False)
    finally:
        stop_server(server)
    assert finished.returncode == 0, finished.stdout
    assert "warning" not in finished.stdout, finished.stdout
