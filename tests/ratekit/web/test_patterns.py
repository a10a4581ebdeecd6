"""Patterns of paths: what they match is what a regular expression would, in linear time whatever the pattern."""

from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratekit import ConfigurationError
from ratekit.web.patterns import Pattern
from ratekit.web.table import Rules

LONG = 64 * 1024  # characters: more than any server takes in a request line
PARTS = ["/", "a", "b", "ab", "/a", "b/", "a/b", "{x}", "{x}", "{y:path}", "{y:path}"]


def naive(pattern: str) -> re.Pattern[str]:
    """Return the regular expression that says the same, and backtracks."""
    pattern = re.sub(r"/\{y:path\}$", "/*", pattern)
    end = ""
    if pattern.endswith("/*"):
        pattern, end = pattern[:-2], "(?:/.*)?"
    elif pattern.endswith("*"):
        pattern, end = pattern[:-1], ".*"
    texts = re.split(r"(\{x\}|\{y:path\})", pattern)
    parts = [{"{x}": "[^/]+", "{y:path}": ".+"}.get(text, re.escape(text)) for text in texts]
    return re.compile("".join(parts) + end, re.DOTALL)


def one_slash(path: str) -> str:
    return "/" + re.sub("/+", "/", path).strip("/")


def filled(pattern: str, rng: random.Random) -> str:
    """Return a path that probably fits a pattern."""
    path = re.sub(r"\{x\}", lambda _: "".join(rng.choices("ab", k=rng.randint(1, 3))), pattern)
    return re.sub(r"\{y:path\}|\*$", lambda _: "".join(rng.choices("ab/", k=rng.randint(1, 6))), path)


PATTERNS = st.builds(
    lambda parts, end: "/" + "".join(parts) + end,
    st.lists(st.sampled_from(PARTS), max_size=8),
    st.sampled_from(["", "*", "/*"]),
)


@settings(max_examples=500, deadline=None)
@given(pattern=PATTERNS, rng=st.randoms(use_true_random=False))
@example(pattern="/{y:path}a{x}b{y:path}b", rng=random.Random(1))
def test_pattern_matches_what_a_regular_expression_would(pattern, rng):
    try:
        mine = Pattern(pattern)
    except ConfigurationError:
        return
    expected = naive(pattern)
    for _ in range(20):
        random_path = "".join(rng.choices("ab/", k=rng.randint(0, 12)))
        for path in {one_slash(random_path), one_slash(filled(pattern, rng))}:
            assert mine.matches(path) == bool(expected.fullmatch(path)), (pattern, path)


SLOW = [
    "/{a:path}/x/{b:path}/y/{c:path}/z",
    "/{a:path}a{b:path}a{c:path}a{d:path}b",
    "/{a}{b}{c}{d}{e}/x",
    "/{a}a{b}a{c}a{d}x",
    "/{p:path}a{x}b{q:path}c",
    "/{p:path}/a/{x}/a/{y}/b/{q:path}/c",
    "/{p:path}{x}/a{y}{q:path}a/zz",
    "/" + "{p:path}a" * 40 + "z",
    "/{p:path}" + "{x}a" * 40 + "z",
    "/{p:path}" + "/{x}/a" * 40 + "/z/{q:path}/z",
    "/{p:path}/" + "a" * 500 + "b/{q:path}/z",
]
ENDS = ["", "z", "/z", "b", "/x", "x", "c", "/c", "a/zz"]  # of these patterns: the last text of a pattern is looked at first
LONG_PATHS = [path * (LONG // len(path)) for path in ("a", "/a", "ab/", "/x/y", "/aab", "/a/a/b")]


@pytest.mark.parametrize("pattern", SLOW)
def test_long_path_is_matched_in_no_time_whatever_the_pattern(pattern):
    """A regular expression took 16 s for 6.4 kB of the first of these."""
    matcher = Pattern(pattern)
    for path in (one_slash(path + end) for path in LONG_PATHS for end in ENDS):
        began = time.process_time()
        matcher.matches(path)
        assert time.process_time() - began < 1


def test_time_grows_with_the_path_and_not_with_its_square():
    matcher = Pattern("/{p:path}/a/{x}/a/{y}/b/{q:path}/c")

    def seconds(length: int) -> float:
        path = "/a" * (length // 2) + "/c"
        began = time.process_time()
        for _ in range(3):
            matcher.matches(path)
        return time.process_time() - began

    seconds(LONG)
    assert seconds(16 * LONG) < 16 * 8 * max(seconds(LONG), 0.01), "16 times the path takes 256 times as long if quadratic"


def test_table_finds_the_rule_of_a_long_path_in_no_time():
    rules = Rules(dict.fromkeys(SLOW, "5/min"), "9/min")
    began = time.process_time()
    assert rules.at("GET", "/a" * (LONG // 2) + "/c").endpoint == "default"
    assert time.process_time() - began < 2
