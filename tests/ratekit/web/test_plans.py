"""Plans: what an answer of limits= stands for, how plans are replaced, and what a change of plan does to counters."""

from __future__ import annotations

import threading
from enum import StrEnum

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Flask

from ratekit import ConfigurationError, Limit, Policy, RateLimiter, flask
from ratekit.asgi import RateLimitMiddleware
from ratekit.core.errors import UnknownLimitsError, WrongTypeError
from ratekit.core.limit_names import Meaning
from ratekit.stores.memory import MemoryStore
from ratekit.web.plans import Plans
from ratekit_fastapi import PathRateLimiter, install

PLANS = {"free": "10/min", "pro": ["100/min", "1000/h"]}


class Plan(StrEnum):
    PRO = "pro"


def test_name_of_a_plan_stands_for_its_limits_under_the_name_of_the_plan():
    policy = Plans(PLANS).policy("pro")
    assert (policy.name, [str(limit) for limit in policy.limits]) == ("pro", ["100/min", "1000/h"])
    assert Plans(PLANS).policy(Plan.PRO) == policy


@pytest.mark.parametrize(
    ("answer", "limits"),
    [
        ("20/s", ["20/s"]),
        ("20/s; 100/min", ["20/s", "100/min"]),
        (Limit(5, 60), ["5/min"]),
        (["20/s", Limit(5, 60)], ["20/s", "5/min"]),
        (("20/s",), ["20/s"]),
        (Policy("own", "7/min"), ["7/min"]),
    ],
)
def test_answer_stands_for_limits(answer, limits):
    assert [str(limit) for limit in Plans(PLANS).policy(answer).limits] == limits


def test_answer_none_is_not_limited():
    assert Plans(PLANS).policy(None) is None


@pytest.mark.parametrize("answer", ["pro", "20/s", Limit(5, 60), ["20/s", "5/min"], Policy("own", "7/min")])
def test_answer_that_was_seen_before_makes_no_new_policy(answer):
    plans = Plans(PLANS)
    again = list(answer) if isinstance(answer, list) else answer
    assert plans.policy(answer, "post", Meaning(5)) is plans.policy(again, "post", Meaning(5))


def test_method_and_cost_of_the_limiter_are_in_the_names_of_the_limits():
    assert [limit.name for limit in Plans(PLANS).policy("pro", "post", Meaning(5)).limits] == [
        "post-cost-5-60s",
        "post-cost-5-3600s",
    ]


@pytest.mark.parametrize("answer", [5, 1.5, b"pro", object(), {"free": 1}, {"10/min"}, [5], ["1/s", None], True])
def test_answer_of_a_wrong_type_is_a_bug_that_is_told_without_the_value(answer, caplog):
    with pytest.raises(WrongTypeError) as caught:
        Plans(PLANS).policy(answer)
    assert type(answer).__name__ in str(caught.value)
    assert str(caught.value) in caplog.text


def test_unknown_plan_is_named_beside_those_that_there_are(caplog):
    with pytest.raises(UnknownLimitsError, match="'gold' is neither a plan nor a rate: the plans are free, pro"):
        Plans(PLANS).policy("gold")
    assert "'gold'" in caplog.text


@pytest.mark.parametrize("answer", [["1/fortnight"], [], ["1/s", "2/s"]])
def test_list_that_is_no_limits_is_a_bug(answer):
    with pytest.raises(UnknownLimitsError):
        Plans(PLANS).policy(answer)


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ("free", "plans 'free' is not a mapping"),
        ({"": "1/s"}, "plan '' is not a name"),
        ({5: "1/s"}, "plan 5 is not a name"),
        ({"10/min": "1/s"}, "plan '10/min' is called like a rate"),
        ({"free": "1/fortnight"}, r"plans\['free'\]: .*1/fortnight"),
        ({"free": []}, r"plans\['free'\]: "),
        ({"free": None}, r"plans\['free'\]: "),
    ],
)
def test_plans_that_make_no_sense_are_refused(plans, message):
    with pytest.raises(ConfigurationError, match=message):
        Plans(plans)


def test_replaced_plans_are_in_force_at_once_and_wrong_ones_change_nothing():
    plans = Plans(PLANS)
    plans.policy("free")
    plans.replace({"free": "20/min", "gold": "1/s"})
    assert plans.policy("free").limits == (Limit(20, 60),)
    assert list(plans) == ["free", "gold"]
    with pytest.raises(ConfigurationError):
        plans.replace({"free": "30/min", "gold": "nonsense"})
    assert plans.policy("free").limits == (Limit(20, 60),)


def test_answers_are_of_one_set_of_plans_while_others_replace_them():
    plans = Plans({"a": "1/s", "b": "1/s"})
    stop = threading.Event()

    def replace() -> None:
        most = 1
        while not stop.is_set():
            most = most % 9 + 1
            plans.replace({"a": f"{most}/s", "b": f"{most}/s"})

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(20_000):
            policies = plans.policies
            assert policies["a"].limits == policies["b"].limits
            assert 1 <= plans.policy("a").limits[0].max_requests <= 9
    finally:
        stop.set()
        thread.join()


def test_change_of_plan_keeps_what_was_used_in_a_window_of_the_same_length():
    plans = Plans({"free": ["3/min", "5/h"], "pro": ["10/min", "50/day"]})
    limiter = RateLimiter(MemoryStore())

    def used(plan: str) -> dict[str, int]:
        result = limiter.check(plans.policy(plan), "user:1", endpoint="/x")
        return {tier.name: tier.used for tier in result.tiers}

    assert used("free") == {"60s": 1, "3600s": 1}
    assert used("pro") == {"60s": 2, "86400s": 1}  # the minute goes on; the day begins
    assert used("free") == {"60s": 3, "3600s": 2}  # the hour goes on where it was
    assert limiter.check(plans.policy("free"), "user:1", endpoint="/x").is_over_limit
    assert limiter.check(plans.policy("pro"), "user:1", endpoint="/x").allowed


def test_change_of_plan_never_reads_what_another_algorithm_has_written():
    plans = Plans({"free": "3/min", "pro": Limit(10, 60, algorithm="token_bucket")})
    limiter = RateLimiter(MemoryStore())
    for _ in range(3):
        assert limiter.check(plans.policy("free"), "user:1", endpoint="/x").allowed
    assert limiter.check(plans.policy("pro"), "user:1", endpoint="/x").remaining == 9
    assert limiter.check(plans.policy("free"), "user:1", endpoint="/x").is_over_limit


@pytest.mark.parametrize("answer", ["1000/s", "gold", ""])
def test_lookup_of_plans_names_a_plan_and_nothing_else(answer):
    plans = Plans(PLANS)
    assert plans.policy("pro", is_plan=True) is plans.policy("pro")
    with pytest.raises(UnknownLimitsError, match=f"'{answer}' is no plan: the plans are free, pro"):
        plans.policy(answer, is_plan=True)


@pytest.mark.parametrize("answer", [["5/min"], ("5/min",), Limit(5, 60), Policy("p", "5/min"), 7])
def test_lookup_of_plans_that_answers_limits_is_a_bug(answer):
    with pytest.raises(WrongTypeError, match="plan_of gave a value of the type"):
        Plans(PLANS).policy(answer, is_plan=True)


def test_cost_that_cannot_be_hashed_has_a_policy():
    class Cost:
        __hash__ = None  # as that of a dataclass that can be compared

        def __call__(self, request):
            return 2

    assert [limit.name for limit in Plans(PLANS).policy("free", meaning=Meaning(Cost())).limits] == ["cost-cost-60s"]


def test_rate_in_place_of_a_plan_is_a_fault_in_every_front():
    def asked(request):
        return "1000/s"

    fast = FastAPI()
    install(fast, store=MemoryStore(), plans=PLANS, plan_of=asked)
    fast.get("/", dependencies=[Depends(PathRateLimiter(limits="plan", by="ip"))])(lambda: None)
    plain = RateLimitMiddleware(fast, store=MemoryStore(), plans=PLANS, plan_of=asked, default="plan")
    for app in (fast, plain):
        assert TestClient(app, raise_server_exceptions=False).get("/").status_code == 500
    flask_app = Flask("plans")
    flask.install(flask_app, store=MemoryStore(), plans=PLANS, plan_of=asked, default={"limits": "plan", "by": "ip"})
    assert flask_app.test_client().get("/").status_code == 500
