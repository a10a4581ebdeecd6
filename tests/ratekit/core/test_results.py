"""What a result tells of its figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekit import Limit
from ratekit.core.figures import ADMITS, OVERRIDDEN, SOFTLY, UNLIMITED
from ratekit.core.results import RateLimitResult

small = st.integers(min_value=0, max_value=3)
flags = st.sampled_from([0, ADMITS, ADMITS, ADMITS, ADMITS + OVERRIDDEN, SOFTLY, ADMITS + UNLIMITED])
tiers = st.tuples(flags, st.just(9), small, small, st.integers(min_value=-1, max_value=3), small)


def rank(limit, figures):
    """Say how binding a limit is, as the documentation has it: the least is the binding one."""
    flags, _, _, remaining, retry_us, reset_us = figures
    if limit.shadow:
        return (3, remaining, -reset_us)
    if not flags & ADMITS:
        return (0, -retry_us if retry_us >= 0 else float("-inf"), 0)
    return (2 if flags & UNLIMITED else 1, remaining, -reset_us)


@given(st.lists(st.tuples(tiers, st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_the_binding_limit_refuses_for_the_longest_or_is_closest_to_exhaustion(drawn):
    limits = tuple(Limit(9, n, name=f"limit{n}", shadow=a and b) for n, (_, a, b) in enumerate(drawn, 1))
    figures = [figure for figures, _, _ in drawn for figure in figures]
    result = RateLimitResult(limits, figures, 0)
    ranks = [rank(limit, figures) for limit, (figures, _, _) in zip(limits, drawn, strict=True)]
    best = ranks.index(min(ranks))
    assert result.limit == limits[best].name
    assert result.allowed == all(limit.shadow or part[0] & ADMITS for limit, (part, _, _) in zip(limits, drawn, strict=True))
    assert result.reset_after == drawn[best][0][5] / 1_000_000
    assert result.window == (result.max_requests, result.remaining, result.ttl)


def test_a_result_cannot_be_changed():
    result = RateLimitResult((Limit(9, 60),), (ADMITS, 9, 1, 8, 0, 60_000_000), 0)
    with pytest.raises(AttributeError):
        result.figures = ()
    with pytest.raises(AttributeError):
        result.allowed = False
