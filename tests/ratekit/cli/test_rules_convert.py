from __future__ import annotations

import json

from click.testing import CliRunner

from ratekit.cli.program import program
from ratekit.rules.document import Document
from ratekit.rules.formats import parse

FILE = """
domain: shop
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: path, rate_limit: {unit: day}}
"""


def run(tmp_path, text: str, *options: str):
    file = tmp_path / "ratelimit.yaml"
    file.write_text(text)
    return CliRunner().invoke(program, ["rules", "convert", str(file), *options])


def test_convert_prints_a_document_and_names_what_is_left_out(tmp_path):
    result = run(tmp_path, FILE, "--header", "user=x-user")
    document = Document.parse(parse(result.stdout, "yaml"))
    assert [str(rule.by) for rule in document.rules] == ["user=header:x-user"]
    assert result.stderr.splitlines() == ["path: is left out: a document cannot count by each value of 'path'"]


def test_convert_writes_json(tmp_path):
    values = json.loads(run(tmp_path, FILE, "--format", "json").stdout)
    assert values["rules"][0]["limits"] == "5/min aligned"


def test_convert_names_a_fault_of_the_file(tmp_path):
    result = run(tmp_path, FILE.replace("minute", "blink"))
    assert "descriptors[0].rate_limit.unit: 'blink' is no unit" in str(result.exception)


def test_convert_names_a_wrong_header(tmp_path):
    assert "--header 'user' is not a key and the name of a header" in run(tmp_path, FILE, "--header", "user").stderr
