"""The URL of a store: nothing of its user or password is shown to anybody."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekit import AsyncRateLimiter, ConfigurationError, RateLimiter
from ratekit.stores.redis.url import parse

SCHEMES = {
    "redis": "h1:6379/0",
    "rediss": "h1",
    "unix": "/run/limits.sock?db=1",
    "redis+cluster": "h1:7000,h2:7001",
    "redis+sentinel": "h1,h2:5/limits/0?sentinel_password=QQ",
    "ftp": "h1",
}
# Letters that occur in no other part of these URLs, so that each of them is a leak; and what has a meaning in a URL.
SECRETS = st.text("XYZ789@:/?#%&=,[]", min_size=1).map(lambda text: f"X{text}")
SECRET_LETTERS = set("XYZQ")


@given(st.sampled_from(sorted(SCHEMES)), SECRETS, SECRETS, st.sampled_from([RateLimiter, AsyncRateLimiter]))
def test_nothing_of_a_login_is_shown_whatever_its_characters(scheme, user, password, kind):
    url = f"{scheme}://{user}:{password}@{SCHEMES[scheme]}"
    try:
        location = parse(url)
        shown = f"{location} {location!r} {location.label} {location.place}"
    except ValueError as error:
        shown = str(error)
    try:
        shown += repr(kind(url).store.place)
    except ConfigurationError as error:
        shown += str(error)
    assert not SECRET_LETTERS & set(shown), (url, shown)


@given(SECRETS, SECRETS)
def test_escaped_login_is_used_whatever_its_characters(user, password):
    for scheme in ("redis", "redis+cluster", "redis+sentinel"):
        location = parse(f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{SCHEMES[scheme]}")
        assert location.label in ("redis://h1:6379/0", "cluster h1:7000,h2:7001", "sentinel limits")


def test_password_with_a_plain_at_sign_ends_at_the_last_one():
    location = parse("redis://u:pa@hunter2@h1:6379")
    assert location.label == "redis://h1:6379"
    assert "hunter2" not in repr(location)
    assert parse("redis+cluster://u:pa@hunter2@h1:6379").nodes == (("h1", 6379),)


@pytest.mark.parametrize(
    "url", ["redis://u:p/w@h", "redis://u:12?w@h", "redis+sentinel://u:12/s@h", "redis://h?password=p@w"]
)
def test_url_whose_password_has_no_clear_end_is_refused_with_the_remedy(url):
    with pytest.raises(ConfigurationError, match="%40"):
        RateLimiter(url)


def test_databases_of_one_server_are_places_of_their_own():
    assert parse("redis://h?db=1").place != parse("redis://h?db=2").place
    assert parse("redis://u:p@h/1").place == parse("redis://h/1?socket_timeout=1").place
