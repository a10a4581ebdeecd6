"""Whether a store's answer is what the models say, within what rounding allows."""

from __future__ import annotations

import math
from fractions import Fraction

from lua.models import SECOND_US, Answer, Request, rounding_error

from ratekit import Algorithm
from ratekit.core.results import Tier

FADING = {Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.TOKEN_BUCKET}


def assert_same(answer: Answer, tier: Tier, request: Request) -> None:
    numbers, tolerance_us = answer.numbers, 2 if tier.limit.algorithm in FADING else 0
    flags = (answer.allowed, numbers.capacity, numbers.overridden, numbers.unlimited)
    assert (tier.allowed, tier.max_requests, tier.overridden, tier.unlimited) == flags
    assert_rounded_down(tier.used, answer.used + answer.slack)
    assert_rounded_down(tier.remaining, max(numbers.capacity - answer.used + answer.slack, Fraction(0)))
    assert_wait(tier.reset_after, answer.reset_us, tolerance_us)
    if request.operation != "renew":
        assert (tier.retry_after is None) == (answer.retry_us is None)
        assert_wait(tier.retry_after or 0, Fraction(answer.retry_us or 0), tolerance_us)


def assert_wait(seconds: float, exact_us: Fraction, tolerance_us: int) -> None:
    assert abs(seconds * SECOND_US - exact_us) <= tolerance_us + rounding_error(exact_us) + 0.01


def assert_rounded_down(figure: int, exact: Fraction) -> None:
    error = rounding_error(exact)
    assert isinstance(figure, int)
    assert math.floor(exact - error) <= figure <= math.floor(exact + error)
