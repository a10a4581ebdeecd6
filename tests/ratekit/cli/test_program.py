"""Help, exit codes, one sentence on stderr, pipes and terminals."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import ratekit as package
from ratekit.cli.program import COMMANDS, program
from support.servers import free_port


def all_commands() -> list[list[str]]:
    found = [[]]
    for command in COMMANDS:
        found.append([command.name])
        found += [[command.name, name] for name in getattr(command, "commands", {})]
    return found


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(words, ratekit):
    ended = ratekit(*words, "--help")
    assert ended.code == 0
    usage, text = ended.out.split("\n", 1)
    assert usage.startswith("Usage: ratekit")
    assert f"ratekit {' '.join(words)}".rstrip() in text
    assert ended.err == ""


@pytest.mark.parametrize("words", [[], ["overrides"]], ids=["ratekit", "overrides"])
def test_program_without_a_command_prints_its_whole_help(words, ratekit):
    ended = ratekit(*words)
    assert (ended.code, ended.err) == (2, "")
    assert ended.out == ratekit(*words, "--help").out
    assert ended.out.count("\n") > 10


def test_commands_are_those_of_the_table():
    assert list(program.commands) == [command.name for command in COMMANDS]
    assert {"check", "inspect", "reset", "overrides", "mode", "explain", "doctor"} <= set(program.commands)


def test_version_is_told(ratekit):
    assert package.__version__ in ratekit("--version").out


BAD = {
    "--max-requests -1": ["overrides", "set", "/x", "u", "--max-requests", "-1"],
    "expiry 0.0": ["overrides", "set", "/x", "u", "--expiry", "0"],
    "--ttl 0.0": ["overrides", "set", "/x", "u", "--max-requests", "1", "--ttl", "0"],
    "'7 parsecs'": ["overrides", "set", "/x", "u", "--expiry", "7 parsecs"],
    "'many'": ["overrides", "set", "/x", "u", "--max-requests", "many"],
    r"endpoint '/a\x1b[2J'": ["overrides", "set", "/a\x1b[2J", "u", "--max-requests", "1"],
    "give --max-requests, --expiry, --burst, --until or --unlimited": ["overrides", "set", "/x", "u"],
    "give SUBJECT, or --org and --project": ["overrides", "set", "/x", "--org", "1", "--max-requests", "1"],
    "whose override it is": ["overrides", "get", "/x", "u", "--org", "1"],
    "subject 'user:*' has a wildcard": ["overrides", "set", "/x", "user:*", "--max-requests", "1"],
    "project '*' has a wildcard": ["overrides", "set", "/x", "--org", "1", "--project", "*", "--max-requests", "1"],
    "'no-such-file'": ["overrides", "import", "no-such-file"],
    "'audit'": ["mode", "audit"],
    "'5/fortnight'": ["check", "/x", "u", "--limit", "5/fortnight"],
    "algorithm 'gcra'": ["check", "/x", "u", "--limit", "5/s@gcra"],
    "give --limit or --rules": ["check", "/x", "u"],
    "give one of them": ["check", "/x", "u", "--limit", "1/s", "--rules", "a:b"],
    "'nowhere:RULES'": ["check", "/x", "u", "--rules", "nowhere:RULES"],
    "cost '-1'": ["check", "/x", "u", "--limit", "1/s", "--cost", "-1"],
    "subject ''": ["check", "/x", "", "--limit", "1/s"],
    "'nope'": ["nope"],
    "ENDPOINT": ["explain"],
    "--bogus": ["doctor", "--bogus"],
    "give --yes": ["overrides", "clear"],
    "prefix 'a b'": ["mode", "--prefix", "a b"],
    "store URL 'mysql://h'": ["mode", "--store", "mysql://h"],
    "cursor 'x'": ["overrides", "list", "--cursor", "x"],
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(words, url, redis_server, ratekit):
    ended = ratekit(*BAD[words])
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("ratekit: ")
    assert ended.err.count("\n") == 1
    assert words in ended.err
    with redis_server.client() as client:
        assert client.dbsize() == 0


def test_store_that_nobody_names_is_a_usage_error(ratekit):
    ended = ratekit("mode")
    assert (ended.code, ended.out) == (2, "")
    assert "RATE_LIMIT_STORE_URL" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ["check", "/x", "u", "--limit", "1/s"],
        ["inspect", "/x", "u"],
        ["reset", "/x", "u", "--limit", "1/s"],
        ["overrides", "set", "/x", "u", "--max-requests", "5"],
        ["overrides", "list"],
        ["mode", "monitor"],
        ["explain", "/x", "u", "--limit", "1/s"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_store_that_is_away_is_one_sentence_and_exit_code_3(words, ratekit):
    port = free_port()
    ended = ratekit(*words, "--store", f"redis://:secret@127.0.0.1:{port}")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("ratekit: ")
    assert ended.err.count("\n") == 1
    assert "secret" not in ended.err


@pytest.mark.parametrize("words", [["mode"], ["check", "/x", "u", "--limit", "1/s"], ["doctor"]], ids=" ".join)
def test_sentinel_that_is_away_is_one_short_sentence_without_objects(words, ratekit):
    ended = ratekit(*words, "--store", f"redis+sentinel://127.0.0.1:{free_port()}/mymaster")
    assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1)
    assert ended.err.startswith("ratekit: the store does not answer: connection: ")
    assert "'mymaster'" in ended.err
    assert "<" not in ended.err
    assert len(ended.err) < 200


def test_process_in_pipes_has_no_colours_no_traceback_and_its_exit_code(url, piped):
    words = ["check", "/x", "u", "--limit", "1/min"]
    first, second = piped(*words), piped(*words)
    assert (first.code, second.code) == (0, 1)
    assert first.out.startswith("allowed: u on /x")
    assert second.out.startswith("refused: u on /x")
    assert (first.err, second.err) == ("", "")
    away = piped(*words, "--store", f"redis://127.0.0.1:{free_port()}")
    assert (away.code, away.out, away.err.count("\n")) == (3, "", 1)
    wrong = piped("overrides", "set", "/x", "u", "--max-requests", "-1")
    assert (wrong.code, wrong.out) == (2, "")
    told = "--max-requests -1 is not a whole number between 0 and 1000000000000 (see 'ratekit overrides set --help')"
    assert wrong.err == f"ratekit: {told}\n"


def test_terminal_has_colours_unless_they_are_not_wanted(url, terminal):
    shown = terminal("mode", "monitor")
    assert shown.code == 0
    assert "\x1b[33m" in shown.out
    assert "\x1b" not in terminal("mode", NO_COLOR="1").out
    answer = terminal("mode", "--json").out
    assert "\x1b" not in answer
    assert json.loads(answer)["mode"] == "monitor"
    assert answer.count("\n") > 3


def test_terminal_is_asked_before_many_are_deleted(url, terminal, piped):
    piped("overrides", "set", "/x", "u", "--max-requests", "5")
    refused = terminal("overrides", "clear", answer="n")
    assert "Delete every override?" in refused.out
    assert refused.code == 130
    assert len(piped("overrides", "list", "--json").json["overrides"]) == 1
    assert terminal("overrides", "clear", "--endpoint", "/x", answer="y").code == 0
    assert piped("overrides", "list", "--json").json["overrides"] == []


def test_reader_that_has_seen_enough_is_no_error(url, piped):
    for number in range(3):
        piped("overrides", "set", "/x", f"u{number}", "--max-requests", "5")
    script = f"{sys.executable} -m ratekit.cli overrides list | true; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("0\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell_completes_commands(shell, ratekit):
    ended = ratekit("completion", shell)
    assert ended.code == 0
    assert "_RATEKIT_COMPLETE" in ended.out


def test_words_are_completed(piped, monkeypatch):
    monkeypatch.setenv("_RATEKIT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ratekit overrides s")
    monkeypatch.setenv("COMP_CWORD", "2")
    ended = piped()
    assert ended.out == "plain,set\n"


def test_missing_extra_is_told_in_one_sentence():
    code = "import sys; sys.modules['click'] = None; from ratekit.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == ("ratekit: the command line needs a package that is not installed: pip install 'ratekit[cli]'\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["overrides", "set", "/x", "u", "--max-requests", "-1"], "--max-requests -1 is not a whole number between"),
        (["overrides", "set", "/x", "u", "--expiry", "0"], "--expiry 0.0 is not a number of seconds"),
        (["overrides", "set", "/x", "u", "--burst", "5", "--unlimited"], "--unlimited contradicts --burst: give only one"),
        (["overrides", "list", "--page-size", "0"], "--page-size 0 is not a whole number above 0"),
        (["check", "", "u", "--limit", "5/min"], "the endpoint is empty"),
        (["explain", "/x", "u", "--rules", "json:dumps"], "--rules 'json:dumps' is a function: it has to be an application"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_errors_are_in_the_words_of_the_command_line(words, said, ratekit, url):
    ended = ratekit(*words)
    assert (ended.code, ended.err.startswith(f"ratekit: {said}"), ended.err.count("\n")) == (2, True, 1), ended.err
