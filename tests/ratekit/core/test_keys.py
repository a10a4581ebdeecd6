"""Keys: two different triples never meet, and a key can be taken apart again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekit import ConfigurationError, Limit, Policy
from ratekit.core import keys
from ratekit.core.protocol import encode

awkward = st.text(alphabet=st.sampled_from("ab:%{}\n \t*/é\u2028\ud800@") | st.characters(), min_size=1, max_size=40)
parts = awkward | awkward.map(lambda text: text * 6000)


def names(endpoint: str, subject: str, **options) -> tuple[bytes, ...]:
    return encode(Policy("p", [Limit(1, 60)]), subject, endpoint, **options).keys


@given(st.tuples(parts, parts), st.tuples(parts, parts))
def test_different_pairs_never_share_a_key(one, other):
    if one != other:
        shared = set(names(*one)) & set(names(*other))
        assert shared == ({keys.wide_override_key("ratelimit", one[1]).encode()} if one[1] == other[1] else set())
        assert keys.base_key("p", *one) != keys.base_key("p", *other)
        assert keys.override_key("p", *one) != keys.override_key("p", *other)


@given(parts, parts)
def test_key_is_short_printable_and_has_one_hash_tag(endpoint, subject):
    override, wide, state = (name.decode() for name in names(endpoint, subject))
    for name in (override, wide, state):
        assert len(name.encode()) < 1100
        assert name.isprintable()
        assert not any(char.isspace() for char in name)
        assert (name.count("{"), name.count("}")) == (1, 1)
    assert len({name[name.index("{") : name.index("}")] for name in (override, wide, state)}) == 1


@given(awkward, awkward)
def test_override_key_is_parsed_back(endpoint, subject):
    parsed = keys.parse_override_key(keys.override_key("ratelimit", endpoint, subject))
    longest = max(len(part.encode("utf-8", "surrogatepass")) for part in (endpoint, subject))
    if longest <= keys.LONGEST_PART:
        assert (parsed.endpoint, parsed.subject) == (endpoint, subject)


def test_key_has_the_endpoint_first_and_the_ids_last():
    assert names("/api/v1/search", "7:42") == (
        b"ratelimit_override:/api/v1/search:{7:42}",
        b"ratelimit_override:*:{7:42}",
        b"ratelimit:/api/v1/search:{7:42}:60s",
    )


def test_endpoint_that_is_called_star_does_not_have_the_override_of_all_endpoints():
    assert names("*", "u")[0] == b"ratelimit_override:%2A:{u}"
    assert keys.parse_override_key(names("*", "u")[0]) == ("*", "u")


def test_override_key_of_a_project_is_parsed_from_the_right():
    key = keys.override_key("ratelimit", "POST:/api:v2/{item}", keys.project_subject(7, 42))
    assert keys.parse_override_key(key.encode()) == ("POST:/api:v2/{item}", "7:42")
    assert keys.parse_override_key(key).project == ("7", "42")
    for subject in ("alone", "header:x-api-key:1234", "ip:2001:db8::/64", ":1", "1:"):
        assert keys.parse_override_key(keys.override_key("r", "e", subject)).project is None


@given(st.tuples(awkward, awkward), st.tuples(awkward, awkward))
def test_different_projects_are_never_one_subject_and_are_parsed_back(one, other):
    subject = keys.project_subject(*one)
    assert (subject == keys.project_subject(*other)) == (one == other)
    assert keys.OverrideKey("e", subject).project == one


def test_colon_within_an_id_is_escaped():
    assert keys.project_subject("a:b", "c") == "a%3Ab:c" != keys.project_subject("a", "b:c")
    assert keys.project_subject("a%3Ab", "c") == "a%253Ab:c"
    assert keys.project_subject(1, 42) == "1:42"


def test_braces_of_a_route_template_do_not_become_the_hash_tag():
    assert names("/items/{id}", "u")[2] == b"ratelimit:/items/%7Bid%7D:{u}:60s"


def test_long_parts_are_hashed():
    name = names("e", "x" * (1 << 20))[2]
    assert len(name) < 120
    assert keys.parse_override_key(keys.override_key("r", "e", "x" * 201)) == ("e", None)


@pytest.mark.parametrize(
    ("limit", "suffix"),
    [
        (Limit(1, 60), ":60s"),
        (Limit(1, 0.5), ":0.5s"),
        (Limit(1, 123456789), ":123456789s"),
        (Limit(1, 60, name="minute"), ":minute"),
        (Limit(1, 60, burst=5), ":60s@token_bucket"),
        (Limit(1, 60, algorithm="sliding_window_log"), ":60s@sliding_window_log"),
        (Limit(1, 60, shadow=True), ":60s-shadow@shadow"),
        (Limit(1, 60, name="minute", shadow=True), ":minute@shadow"),
    ],
)
def test_limit_is_always_part_of_the_key(limit, suffix):
    assert keys.limit_suffix(limit) == suffix


def test_element_endpoint_has_counters_of_its_own():
    assert keys.element_endpoint("/matrix") == "/matrix:/elements"
    assert keys.element_endpoint("/matrix", "/cells") == "/matrix:/cells"


def test_endpoint_limited_as_a_whole_has_a_reserved_subject():
    assert keys.whole_endpoint_subject("/hook") == "*/hook"


@pytest.mark.parametrize("subject", ["", None, 7, b"u", ["u"]])
def test_subject_that_is_no_text_is_refused(subject):
    with pytest.raises(ConfigurationError, match="subject"):
        names("e", subject)


@pytest.mark.parametrize("prefix", ["", "a b", "a{b}", "a%", None])
def test_prefix_that_would_break_keys_is_refused(prefix):
    with pytest.raises(ConfigurationError, match="prefix"):
        keys.check_prefix(prefix)


@pytest.mark.parametrize("key", ["", "ratelimit:e:{s}:60s", "ratelimit_override:e:s", "x"])
def test_key_of_no_override_is_refused(key):
    with pytest.raises(ConfigurationError, match="override"):
        keys.parse_override_key(key)


@pytest.mark.parametrize(("org", "project"), [("", 1), (1, "")])
def test_empty_id_of_a_project_is_refused(org, project):
    with pytest.raises(ConfigurationError, match="id"):
        keys.project_subject(org, project)
