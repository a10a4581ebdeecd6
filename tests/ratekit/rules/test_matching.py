"""The index agrees with a matcher that asks one rule after the other, and custom limits with one that tries all."""

from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratekit.rules.custom import KeyTable, split_stars
from ratekit.rules.document import Document, Match
from ratekit.rules.matching import Candidate, Facts, Index
from ratekit.web.patterns import Pattern
from support.rule_documents import matches

HEADERS = ["x-tier", "x-tenant", "accept"]
facts = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["GET", "HEAD", "post", "PUT", "OPTIONS", "", "BREW"]),
        "path": st.one_of(
            st.none(),
            st.text(),
            st.lists(st.sampled_from(["a", "b", "v1", "a-7", "c.json", ""]), max_size=5).map("/".join).map("/{}".format),
        ),
        "endpoint": st.sampled_from([None, "a", "b", "/a", "c"]),
        "host": st.one_of(
            st.none(),
            st.text(max_size=10),
            st.sampled_from(["A.example.com:8000", "b.org.", "b.org", "x.y.com", "[::1]:80", "c.net, b.org:1,x.y.com"]),
        ),
        "headers": st.dictionaries(st.sampled_from(HEADERS), st.sampled_from(["gold", "t1", "*", "other"])),
    }
)  # fmt: skip


def naive(match: Match, asked: dict) -> bool:
    """Whether a rule matches, by asking for one thing after the other."""
    path = None if asked["path"] is None else "/" + re.sub("/+", "/", asked["path"]).strip("/")
    method = asked["method"].upper()
    hosts = [re.sub(r":\d*$", "", host.strip(" \t")).removesuffix(".") for host in (asked["host"] or "").lower().split(",")]
    if match.path is not None and (path is None or not Pattern(match.path).matches(path)):
        return False
    if match.method and not {method, "GET" if method == "HEAD" else method} & set(match.method):
        return False
    if match.endpoint and not {asked["endpoint"], path} & set(match.endpoint):
        return False
    if match.host and not any(_host_fits(wanted.lower(), host) for wanted in match.host for host in hosts if host):
        return False
    sent = asked["headers"]
    return all(
        name.lower() in sent and ("*" in wanted or sent[name.lower()] in wanted) for name, wanted in match.headers.items()
    )


def _host_fits(wanted: str, host: str) -> bool:
    return host.endswith(wanted[1:]) if wanted.startswith("*.") else wanted == host


def indexed(candidates: list[Candidate], asked: dict) -> tuple[int, ...]:
    index = Index(candidates)
    headers = tuple(asked["headers"].get(name) for name in index.header_names)
    endpoints = (asked["endpoint"],) if asked["endpoint"] else ()
    return index.find(Facts(asked["method"], asked["path"], endpoints, asked["host"], headers))


@settings(max_examples=600)
@given(given_matches=st.lists(matches, max_size=12), finals=st.lists(st.booleans(), min_size=12, max_size=12), asked=facts)
@example(
    given_matches=[{"path": "/*"}, {"path": "/a/{x}"}, {"path": "/a/{y}/*"}],
    finals=[False] * 12,
    asked={"method": "GET", "path": "/a/b", "endpoint": None, "host": None, "headers": {}},
)
def test_index_agrees_with_a_naive_matcher(given_matches, finals, asked):
    rules = Document.parse({"rules": [{"limits": "1/s", "match": match} for match in given_matches]}).rules
    candidates = [Candidate(rule.match, is_final) for rule, is_final in zip(rules, finals, strict=False)]
    expected = [at for at, candidate in enumerate(candidates) if naive(candidate.match, asked)]
    last = next((at for at, position in enumerate(expected) if candidates[position].is_final), len(expected))
    assert indexed(candidates, asked) == tuple(expected[: last + 1])


keys = st.text("ab:*", max_size=8)


@settings(max_examples=500)
@given(patterns=st.lists(keys.filter(bool), max_size=8, unique=True), key=st.text("ab:", max_size=10))
def test_custom_limits_are_the_exact_ones_then_the_longest(patterns, key):
    table = KeyTable({pattern: pattern for pattern in patterns})
    fitting = [pattern for pattern in patterns if "*" in pattern and fnmatch.fnmatchcase(key, pattern)]
    longest = min(fitting, key=lambda pattern: (-len(pattern.replace("*", "")), patterns.index(pattern)), default=None)
    assert table.find(key) == (key if key in patterns else longest)


def test_escaped_star_of_a_key_is_a_star():
    assert split_stars(r"a\*b*c\\d\e") == ("a*b", r"c\d\e")
    table = KeyTable({r"a\*": 1, "a*": 2})
    assert [table.find("a*"), table.find("ab")] == [1, 2]


@pytest.mark.parametrize("stars", [1, 5, 40])
def test_key_pattern_does_not_run_away(stars):
    table = KeyTable({"a*" * stars + "b": 1})
    started = time.process_time()
    assert table.find("a" * 100_000) is None
    assert time.process_time() - started < 0.5


def test_path_pattern_does_not_run_away():
    index = Index([Candidate(Match(path="/" + "{a:path}x" * 20 + "/end"), True)])
    started = time.process_time()
    assert index.find(Facts("GET", "/" + "x" * 50_000)) == ()
    assert time.process_time() - started < 0.5
