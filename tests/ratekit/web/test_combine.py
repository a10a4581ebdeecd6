"""Combinations of key functions, and key functions that are awaited."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekit import ConfigurationError
from ratekit.core.errors import UnusableRequestError, WrongTypeError
from ratekit.web.client_address import TrustedProxies
from ratekit.web.identity import asubject_of, combine, first_of, form_field, json_field, subject_of
from ratekit.web.requests import AsgiRequest

TEXTS = st.text(st.sampled_from("ab|%2C7:"), min_size=1, max_size=5)


def request(body: bytes | None = None, **headers: str) -> AsgiRequest:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    made = AsgiRequest({"type": "http", "path": "/", "headers": lines, "client": ("192.0.2.7", 1)}, TrustedProxies())
    made.body = body
    return made


def saying(text: str | None) -> Any:
    return lambda request: text


def later(text: Any) -> Any:
    async def answer(request: Any) -> Any:
        await asyncio.sleep(0)
        return text

    return answer


def awaited(by: Any, asked: AsgiRequest | None = None) -> str | None:
    return asyncio.run(asubject_of(by, asked or request()))


@given(st.lists(TEXTS, min_size=1, max_size=4), st.lists(TEXTS, min_size=1, max_size=4))
def test_two_different_combinations_are_never_one_subject(one, other):
    subjects = [subject_of(combine(*map(saying, texts)), request()) for texts in (one, other)]
    assert (subjects[0] == subjects[1]) == (one == other)


def test_combination_has_the_parts_in_their_order():
    assert subject_of(combine(saying("org:7"), saying("large")), request()) == "org:7|large"


def test_combination_that_lacks_a_part_is_the_address_if_a_part_is_built_in():
    assert subject_of(combine(saying("ann"), "header:X-Model"), request()) == "ip:192.0.2.7"
    assert subject_of(combine(saying("ann"), saying(None)), request()) is None


def test_combinations_and_choices_are_within_each_other():
    by = first_of(combine("header:X-Tenant", "header:X-User"), combine("header:X-Tenant", "ip"))
    assert by.name == "first_of(combine(header:x-tenant, header:x-user), combine(header:x-tenant, client_ip))"
    subjects = {subject_of(by, request(x_tenant="a", x_user=user)) for user in ("ann", "bob")}
    assert len(subjects) == 2
    assert str(subject_of(by, request(x_tenant="a"))).endswith("|ip:192.0.2.7")


def test_combination_looks_into_the_body_if_a_part_does():
    by = combine("header:X-User", json_field("model", plain=True, most_body=99))
    assert by.needs_body
    assert by.most_body == 99
    assert by.looks_into_body(request())
    assert str(subject_of(by, request(b'{"model": "large"}', x_user="ann"))).endswith("|json:model:large")


@pytest.mark.parametrize("make", [first_of, combine])
def test_nothing_to_combine_is_an_error(make):
    with pytest.raises(ConfigurationError, match="has nothing to choose from"):
        make()


@pytest.mark.parametrize("make", [first_of, combine])
def test_one_that_is_awaited_makes_the_whole_awaited(make):
    assert make("ip", later("ann")).aread is not None
    assert make("ip", saying("ann")).aread is None


def test_choices_are_awaited_in_their_order():
    assert awaited(first_of(later(None), later("ann"), saying("bob"))) == "ann"
    assert awaited(first_of(later(None), "header:X-User", "ip")) == "ip:192.0.2.7"
    assert awaited(combine(later(5), saying("large"))) == "5|large"


def test_body_that_is_not_json_may_be_a_form_where_choices_are_awaited_too():
    by = first_of(later(None), json_field("email"), form_field("email", plain=True), later("nobody"))
    asked = request(b"email=ann", content_type="application/x-www-form-urlencoded")
    assert awaited(by, asked) == "form:email:ann"


def test_awaited_answer_of_a_wrong_type_is_a_bug_and_a_value_error_is_a_400():
    async def failing(request: Any) -> str:
        raise ValueError("secret")

    with pytest.raises(WrongTypeError, match="type dict"):
        awaited(first_of(later({"password": "hunter2"})))
    with pytest.raises(UnusableRequestError) as caught:
        awaited(first_of(failing))
    assert "secret" not in str(caught.value)


def test_callable_object_with_an_async_call_is_awaited():
    class Lookup:
        async def __call__(self, request: Any) -> str:
            return "ann"

    assert awaited(first_of(Lookup())) == "ann"
