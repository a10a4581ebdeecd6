from __future__ import annotations

import pytest

from ratekit.core.errors import DocumentError
from ratekit.rules.descriptors.file import Descriptor, DescriptorFile, RateLimit, is_descriptor_file


def limit_file(rate_limit: str, more: str = "") -> str:
    return f"domain: shop\ndescriptors:\n- key: user\n  rate_limit: {rate_limit}\n{more}"


def test_file_becomes_a_model():
    file = DescriptorFile.parse(
        """
        domain: messaging
        descriptors:
          - key: message_type
            value: marketing
            descriptors:
              - key: to_number
                rate_limit: {unit: DAY, requests_per_unit: 5, name: few, replaces: [{name: many}]}
                shadow_mode: true
        """
    )
    (outer,) = file.descriptors
    (inner,) = outer.descriptors
    assert (file.domain, outer.key, outer.value, outer.rate_limit) == ("messaging", "message_type", "marketing", None)
    assert inner.rate_limit is not None
    assert inner.rate_limit.unit is not None
    assert inner.rate_limit.unit.seconds == 86_400
    assert (inner.rate_limit.requests_per_unit, inner.rate_limit.name, inner.rate_limit.replaces) == (5, "few", ("many",))
    assert inner.is_shadow


@pytest.mark.parametrize(("written", "read"), [("1.10", "1.10"), ("true", "true"), ("0123", "0123"), ("'x'", "x"), ("", "")])
def test_value_is_the_text_that_stands_there(written, read):
    file = DescriptorFile.parse(f"domain: d\ndescriptors:\n- key: version\n  value: {written}\n")
    assert file.descriptors == (Descriptor("version", read),)


def test_values_of_json_are_accepted():
    values = {"domain": "d", "descriptors": [{"key": "a", "value": 5, "rate_limit": {"unlimited": True}}]}
    assert is_descriptor_file(values)
    assert DescriptorFile.of(values).descriptors == (Descriptor("a", "5", RateLimit()),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("descriptors: []", "domain: it is missing or empty"),
        ("[]", "the document: [] is not a mapping with descriptors, domain"),
        ("domain: [a]", "domain: ['a'] is not a text"),
        ("domain: a\ndescriptors: 5", "descriptors: '5' is not a list"),
        ("domain: a\ndescriptors:\n- value: x", "descriptors[0].key: it is missing or empty"),
        ("domain: a\ndescriptors:\n- key: k\n- key: k", "descriptors[1]: key 'k' with value '' stands there a second time"),
        ("domain: a\ndescriptors:\n- key: k\n  limit: 5", "descriptors[0].limit: the field is unknown: there are"),
        (limit_file("{unit: fortnight, requests_per_unit: 5}"), "[0].rate_limit.unit: 'fortnight' is no unit: it is one of"),
        (limit_file("{requests_per_unit: 5}"), "[0].rate_limit.unit: '' is no unit"),
        (limit_file("{unit: day, requests_per_unit: -5}"), ".requests_per_unit: '-5' is not a whole number between 0 and"),
        (limit_file("{unit: day, requests_per_unit: 4294967296}"), ".requests_per_unit: '4294967296' is not a whole number"),
        (limit_file("{unit: day, unlimited: true}"), ".unit: 'day' makes no sense beside unlimited: true"),
        (limit_file("{unit: day, replaces: [{name: ''}]}"), ".replaces[0].name: it is empty"),
        (limit_file("{unit: day, name: a, replaces: [{name: a}]}"), ".replaces[0].name: 'a' is the name of the limit"),
        (limit_file("{unit: day}", "  shadow_mode: perhaps"), "[0].shadow_mode: 'perhaps' is neither true nor false"),
        (limit_file("{unit: day}", "  share_threshold: true"), "[0].share_threshold: it needs a value that ends in '*'"),
        ("domain: a\ndomain: b", "it is not YAML in line 1: a key stands twice in one mapping"),
        ("domain: 'a", "it is not YAML in line 1: found unexpected end of stream"),
        ("domain: a\n? [x]\n: y", "it is not a file of descriptors: unhashable type"),
        ("domain: !!python/object:os.system {}", "domain: {} is not a text"),
    ],
)  # fmt: skip
def test_fault_is_named_with_its_place(text, sentence):
    with pytest.raises(DocumentError) as caught:
        DescriptorFile.parse(text, "limits.yaml")
    assert str(caught.value).startswith("limits.yaml: ")
    assert sentence in str(caught.value)


def test_all_faults_are_named_at_once():
    with pytest.raises(DocumentError) as caught:
        DescriptorFile.parse("domain: ''\ndescriptors:\n- key: ''\n- key: a\n  rate_limit: {unit: x}")
    assert str(caught.value).count(": it is missing or empty") == 2
    assert "'x' is no unit" in str(caught.value)


def test_fields_without_effect_are_named():
    file = DescriptorFile.parse(
        limit_file("{unit: day, requests_per_unit: 1}", "  detailed_metric: true\n  quota_mode: true\n")
    )
    assert [note.partition(": ")[0] for note in file.notes] == [
        "descriptors[0].detailed_metric",
        "descriptors[0].quota_mode",
    ]
    assert file.descriptors[0].is_shadow  # a quota never refuses


def test_aliases_that_stand_for_too_much_are_refused():
    levels = ["a0: &a0 [{key: k}]"] + [
        f"a{n}: &a{n} [" + ", ".join(f"{{key: k{i}, descriptors: *a{n - 1}}}" for i in range(10)) + "]" for n in range(1, 8)
    ]
    text = "\n".join([*levels, "domain: d", "descriptors: *a7"])
    with pytest.raises(DocumentError) as caught:
        DescriptorFile.parse(text)
    assert any("more than 100000 descriptors" in problem for problem in caught.value.problems)


def test_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(DocumentError, match="no.yaml: the file cannot be read: No such file"):
        DescriptorFile.load(tmp_path / "no.yaml")
