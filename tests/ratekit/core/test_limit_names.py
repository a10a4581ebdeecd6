"""The names of limits that count apart: by declared methods, and by cost; the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from ratekit import Limit, Policy
from ratekit.core.limit_names import Meaning, by_methods, by_operation, qualified, with_meaning

POLICY = Policy("x", ["100/min", "units=5000/h"])


def names(policy: Policy) -> list[str]:
    return [limit.name for limit in policy.limits]


def elements(request):
    return 3


def costing(amount):
    def cost(request):
        return amount

    return cost


class Pricing:
    def __call__(self, request):
        return 1

    def price(self, request):
        return 2


@pytest.mark.parametrize(
    ("methods", "declared", "operation"),
    [
        (["GET"], "get", ""),
        (["GET", "HEAD"], "get", ""),
        (["HEAD"], "head", ""),
        (["POST"], "post", "post"),
        (["POST", "GET"], "get-post", "get-post"),
        ({"get", "Head", "put"}, "get-put", "get-put"),
        (["VERSION-CONTROL"], "version-control", "version-control"),
    ],
)
def test_methods_make_a_qualifier(methods, declared, operation):
    assert (by_methods(methods), by_operation(methods)) == (declared, operation)


def test_qualifier_stands_before_every_name():
    assert names(qualified(POLICY, "post")) == ["post-60s", "post-units"]
    assert qualified(POLICY, "") is POLICY
    assert qualified(POLICY, "post") is qualified(POLICY, "post"), "compiled once"


def test_qualified_limit_is_the_same_but_for_its_name():
    limit = Limit(5, 60, burst=10, soft=0.5, shadow=True).with_title("mine")
    (made,) = qualified(Policy("x", limit), "post").limits
    assert (made.name, made.title, made.burst, made.soft, made.shadow) == ("post-60s-shadow", "mine", 10, 0.5, True)
    assert qualified(Policy("x", "0/s"), "post").limits[0].max_requests == 0


@pytest.mark.parametrize("cost", [0, 1])
def test_cost_of_one_and_a_look_count_requests(cost):
    assert with_meaning(POLICY, Meaning(cost)) is POLICY


def test_cost_is_part_of_the_name_unless_the_limit_has_one():
    assert names(with_meaning(POLICY, Meaning(50))) == ["cost-50-60s", "units"]
    assert names(qualified(with_meaning(POLICY, Meaning(50)), "post")) == ["post-cost-50-60s", "post-units"]


def test_slots_have_no_cost():
    policy = Policy("x", Limit(5, 60, algorithm="concurrency"))
    assert with_meaning(policy, Meaning(50)) is policy


@pytest.mark.parametrize(
    ("cost", "name"),
    [(elements, "cost-elements-60s"), (Pricing(), "cost-pricing-60s"), (Pricing().price, "cost-pricing.price-60s")],
)
def test_callable_gives_its_name(cost, name):
    assert names(with_meaning(Policy("x", "100/min"), Meaning(cost))) == [name]


def test_callables_that_differ_count_apart():
    costs = [
        elements,
        lambda request: 1,
        lambda request: 50,
        lambda request, most=4: most,
        lambda request, most=5: most,
        costing(3),
        costing(4),
        partial(elements, 1),
        partial(elements, 2),
        partial(elements, most=2),
        lambda request: 1 if request in {"a", "b"} else 2,
    ]
    assert len({names(with_meaning(POLICY, Meaning(cost)))[0] for cost in costs}) == len(costs)


def test_callables_that_are_alike_count_together():
    assert names(with_meaning(POLICY, Meaning(costing(3)))) == names(with_meaning(POLICY, Meaning(costing(3))))


def test_name_is_the_same_in_every_process():
    code = (
        "from ratekit import Policy; from ratekit.core.limit_names import Meaning, with_meaning; x = object()\n"
        "def make(n, other): return lambda request: n if request in {'a', 'bc', 'def'} else other\n"
        "print(with_meaning(Policy('x', '1/s'), Meaning(make(3, x))).limits[0].name)"
    )
    seeds = ["0", "1", "2", "3"]
    said = {
        subprocess.check_output([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}) for seed in seeds
    }
    assert len(said) == 1


def test_outcomes_are_part_of_a_name_and_slots_and_given_names_are_not_changed():
    policy = Policy("x", ["100/min", "mine=5/h", Limit(3, 300, algorithm="concurrency")])
    assert names(with_meaning(policy, Meaning(1, "count-401"))) == ["count-401-60s", "mine", names(policy)[2]]
    titles = [limit.title for limit in qualified(with_meaning(policy, Meaning(1, "count-401-reset-200")), "post").limits]
    assert titles[:2] == ["outcomes minute", "post-mine"]  # which outcomes count is not for those who guess
    assert names(with_meaning(Policy("x", "5/min"), Meaning(50, "count-401"))) == ["cost-50-count-401-60s"]
    tokens = Policy("x", Limit(5, 60, unit="tokens"))
    assert names(with_meaning(tokens, Meaning(50, "count-401"))) == ["count-401-tokens-60s"]
