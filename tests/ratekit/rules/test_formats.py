"""JSON, YAML and TOML: the same values from each, within bounds, and never more than text."""

from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekit.core.errors import DocumentError
from ratekit.rules.document import Document
from ratekit.rules.formats import MOST_BYTES, format_of, parse, write

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def problem(text, form) -> str:
    with pytest.raises(DocumentError) as caught:
        parse(text, form)
    return caught.value.problems[0]


def test_one_document_in_three_formats_is_one_document():
    of_json = '{"plans": {"pro": "9/s"}, "rules": [{"name": "a", "match": {"path": "/a"}, "limits": {"plan": "pro"}}]}'
    of_yaml = "plans: {pro: 9/s}\nrules:\n- name: a\n  match: {path: /a}\n  limits: {plan: pro}\n"
    of_toml = '[plans]\npro = "9/s"\n[[rules]]\nname = "a"\nmatch.path = "/a"\nlimits.plan = "pro"\n'
    read = [Document.parse(parse(text, form)) for text, form in ((of_json, "json"), (of_yaml, "yaml"), (of_toml, "toml"))]
    assert read[0] == read[1] == read[2]


@given(values)
def test_json_is_read_as_the_standard_library_reads_it(value):
    assert parse(json.dumps(value), "json") == value


@given(values)
def test_what_is_written_as_yaml_is_read_back(value):
    assert parse(write(value, "yaml"), "yaml") == value


@given(st.text(alphabet='{}[]":,0123 ab\\\n', max_size=30))
def test_text_that_is_no_json_is_refused_in_words(text):
    try:
        expected = json.loads(text)
    except ValueError:
        assert problem(text, "json")
    else:
        try:
            assert parse(text, "json") == expected
        except DocumentError as error:
            assert "stands twice" in str(error)


def test_yaml_is_read_as_json_is():
    assert parse("a: on\nb: 2026-01-01\nc: 1:30\nd: 0x10\ne: ~\nf: 1.5\ng: '5'\nh: -3", "yaml") == {
        "a": "on", "b": "2026-01-01", "c": "1:30", "d": "0x10", "e": None, "f": 1.5, "g": "5", "h": -3
    }  # fmt: skip


def test_yaml_aliases_and_merge_keys_share_limits():
    text = "base: &base {limits: 5/s, mode: monitor}\nrules:\n- {<<: *base, mode: on}\n- *base\n"
    assert parse(text, "yaml")["rules"] == [{"limits": "5/s", "mode": "on"}, {"limits": "5/s", "mode": "monitor"}]


@pytest.mark.parametrize(
    "line", ["- &{a} [{b}]", "- &{a} {{<<: [{b}], k{i}: 1}}", "- &{a} {{x: [{b}]}}"], ids=["lists", "merges", "mappings"]
)
def test_yaml_aliases_that_explode_are_refused_quickly(line):
    lines = ["- &a0 {k: 1}"]
    for index in range(1, 12):
        before = ", ".join([f"*a{index - 1}"] * 9)
        lines.append(line.format(a=f"a{index}", b=before, i=index))
    started = time.process_time()
    assert "values, with its aliases written out" in problem("\n".join(lines), "yaml")
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("text", "form", "sentence"),
    [
        ("{", "json", "the document is not JSON: "),
        ('{"a": 1, "a": 2}', "json", "the key 'a' stands twice in one object"),
        ('{"b": {"c": [{"a": 1, "a": 2}]}}', "json", "the key 'a' stands twice in one object"),
        ('{"a": NaN}', "json", "the document is not JSON: NaN is not a number"),
        ('{"a": ' + "9" * 5000 + "}", "json", "the document is not JSON: "),
        ("[" * 100_000, "json", "the document is nested more than"),
        ("a: 1\na: 2", "yaml", "the key 'a' stands twice in one mapping in line 1"),
        ("a: &a [*a]", "yaml", "the alias *a in line 1 stands for nothing, or for itself"),
        ("a: !!python/object/apply:os.system [ls]", "yaml", "the tag 'tag:yaml.org,2002:python/object/apply:os.system'"),
        ("a: [", "yaml", "the document is not YAML: "),
        ("? [a]\n: 1", "yaml", "the key in line 1 is not a text"),
        ("a: 1\n---\nb: 2", "yaml", "the text has a second YAML document in line 2"),
        ("[" * 1000, "yaml", "the document is nested more than"),
        ("a = ", "toml", "the document is not TOML: "),
        (b"\xff\xfe", "json", "the document is not UTF-8"),
    ],
)
def test_fault_of_a_text_is_told(text, form, sentence):
    assert problem(text, form).startswith(sentence)


def test_document_of_a_hundred_megabytes_is_refused_unread():
    started = time.process_time()
    assert problem(b" " * 100 * 1024 * 1024, "json") == (
        f"the document has {100 * 1024 * 1024} bytes: at most {MOST_BYTES} are read"
    )
    assert time.process_time() - started < 1


def test_format_is_known_by_the_ending_of_the_name():
    assert [format_of(name) for name in ("a.JSON", "b.yml", "c.yaml", "d.toml")] == ["json", "yaml", "yaml", "toml"]
    with pytest.raises(DocumentError, match=r"the file 'rules.txt' ends in none of .json, .yaml, .yml, .toml"):
        format_of("rules.txt")


def test_large_document_is_read_in_pieces():
    text = json.dumps({"rules": [{"name": f"r{index}", "limits": "5/s"} for index in range(20_000)]})
    pauses = []
    parse(text, "json", lambda: pauses.append(threading.get_ident()))
    assert len(pauses) == 20_000
