"""Documents of rules that hypothesis makes, and those that were published."""

from __future__ import annotations

from datetime import date
from typing import Any

from hypothesis import strategies as st

SERVICE = {
    "_id": "service-unique-id",
    "last_updated": "2025-10-10T14:23:00Z",
    "general_rate_limit": {"rps": 20, "rpm": 1000, "rph": 50000, "rpd": 100000},
    "custom_rate_limits": {
        "user:1234": {"rps": 10, "rpm": 500, "rpd": 50000},
        "apiKey:premium-tier": {"rps": 100, "rpm": 5000, "rpd": 500000},
        "tenant:client-corp:lang:en": {"rpm": 500, "rph": 20000, "rpd": 250000},
    },
}
ROWS = {
    "rate_limit_rules": [
        {
            "rule_id": 1, "client_key": "user:42", "endpoint": "/api/v1/search", "algorithm": "token_bucket",
            "max_requests": 100, "window_secs": 60, "burst_size": 200, "enabled": 1,
            "created_at": "2026-01-01 00:00:00", "updated_at": "2026-01-02 00:00:00",
        },
        {
            "rule_id": 2, "client_key": "user:42", "endpoint": "*", "algorithm": "sliding_window_counter",
            "max_requests": 1000, "window_secs": 3600, "burst_size": 0, "enabled": 1,
        },
        {
            "rule_id": 3, "client_key": "*", "endpoint": "/api/v1/search", "algorithm": "fixed_window",
            "max_requests": 10, "window_secs": 60, "burst_size": 5, "enabled": True,
        },
        {
            "rule_id": 4, "client_key": "user:7", "endpoint": "*", "algorithm": "sliding_window_log",
            "max_requests": 1, "window_secs": 1, "enabled": 0,
        },
    ],
    "rate_limit_overrides": [
        {"override_id": 1, "client_key": "user:9", "rule_id": 3, "max_requests": 500, "valid_until": "2199-01-01 00:00:00"},
    ],
}  # fmt: skip

words = st.text("abcxyz019-_", min_size=1, max_size=8)
segments = st.sampled_from(["a", "b", "v1", "{x}", "{y}", "a-{x}", "{x}.json"])
paths = st.builds(
    lambda parts, end: ("/" + "/".join(parts) + end) if parts else "/" + end.lstrip("/"),
    st.lists(segments, max_size=4),
    st.sampled_from(["", "", "", "/*", "/{rest:path}"]),
)
rates = st.builds(
    lambda count, unit, end: f"{count}/{unit}{end}",
    st.integers(1, 9999),
    st.sampled_from(["s", "min", "15min", "h", "day"]),
    st.sampled_from(["", "", " shadow", " burst 20", "@sliding_window_log", " soft 0.5"]),
)
windows = st.dictionaries(st.sampled_from(["rps", "rpm", "rph", "rpd"]), st.integers(0, 10**6), min_size=1)
objects = st.fixed_dictionaries(
    {"max_requests": st.integers(0, 10**6), "window": st.one_of(st.integers(1, 86400), st.sampled_from(["1s", "15min"]))},
    optional={
        "algorithm": st.sampled_from(["fixed_window", "sliding_window_counter", "sliding_window_log"]),
        "name": st.text("abc", min_size=1, max_size=4),
        "shadow": st.booleans(),
    },
)
limits = st.one_of(rates, windows, objects, st.lists(rates, min_size=1, max_size=1), st.just("unlimited"))
parts = st.one_of(
    st.sampled_from(["ip", "principal", "everyone"]),
    st.builds("{}:{}".format, st.sampled_from(["header", "query", "cookie", "json", "form", "body"]), words),
)
combinations = st.dictionaries(st.text("abc", min_size=1, max_size=3), parts, min_size=1, max_size=3)
identities = st.one_of(parts, combinations, st.lists(st.one_of(parts, combinations), min_size=1, max_size=3))
times = st.datetimes().map(lambda moment: moment.isoformat() + "Z")
matches = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from(["a.example.com", "*.example.com", ["b.org", "*.com"]]),
        "method": st.sampled_from(["GET", "post", ["PUT", "HEAD"], "OPTIONS"]),
        "path": paths,
        "endpoint": st.sampled_from(["a", "/a", ["b", "/a/b"]]),
        "headers": st.dictionaries(
            st.sampled_from(["X-Tier", "x-tenant", "Accept"]), st.sampled_from(["gold", "*", ["t1", "t2"]]), max_size=2
        ),
    },
)
rules = st.fixed_dictionaries(
    {"limits": limits},
    optional={
        "match": matches,
        "by": identities,
        "cost": st.one_of(st.integers(0, 100), st.just("json:n"), st.just({"requests": 2}), st.just({"requests": "json:n"})),
        "count": st.sampled_from([401, "4xx", [401, "5xx"]]),
        "reset_when": st.sampled_from([200, "2xx"]),
        "share": st.sampled_from([0.5, 1]),
        "actual": st.just("header:x-usage"),
        "hide": st.just(False),
        "custom": st.dictionaries(st.sampled_from(["a", "user:*", "*:en", "t:*:x", "\\*"]), limits, max_size=3),
        "overrides": st.dictionaries(words, st.fixed_dictionaries({"limits": limits, "valid_until": times}), max_size=2),
        "mode": st.sampled_from(["on", "off", "monitor"]),
        "on_outage": st.sampled_from(["open", "closed", "local"]),
        "anonymous": st.sampled_from(["ip", "pass", "refuse"]),
        "enabled": st.booleans(),
        "plain": st.booleans(),
        "valid_from": times,
        "counter": words,
        "note": st.text(max_size=5),
    },
)
estimated = st.builds(
    lambda rule, estimate: {name: value for name, value in rule.items() if name != "cost"} | {"estimate": estimate},
    rules,
    st.one_of(st.integers(0, 100), st.just("json:n"), st.just({"requests": "json:n"})),
)
anchored = st.builds(
    lambda rule, rate, anchor: rule | {"limits": rate, "custom": {}, "overrides": {}, "anchor": anchor},
    rules,
    st.sampled_from(["9/month", "100/month Europe/Berlin"]),
    st.one_of(st.integers(1, 31), st.dates(date(2000, 1, 1), date(2100, 1, 1)).map(date.isoformat)),
)


def _named(document: dict[str, Any]) -> dict[str, Any]:
    rules = [rule | {"name": f"rule-{index}"} if index % 2 else rule for index, rule in enumerate(document["rules"])]
    return document | {"rules": rules}


def _planned(document: dict[str, Any]) -> dict[str, Any]:
    """Let the first rule ask for the plan of a request, where there are plans and it can be."""
    rules = document["rules"]
    if not document.get("plans") or not rules or rules[0].keys() & {"anchor", "cost", "estimate"}:
        return document
    return document | {"rules": [rules[0] | {"limits": "plan"}, *rules[1:]]}


documents = (
    st.fixed_dictionaries(
        {"rules": st.lists(st.one_of(rules, rules, estimated, anchored), max_size=8)},
        optional={
            "service": words,
            "version": st.one_of(st.integers(), words),
            "last_updated": times,
            "apply": st.sampled_from(["first", "all"]),
            "by": identities,
            "mode": st.sampled_from(["on", "off", "monitor"]),
            "plans": st.dictionaries(words, limits, max_size=2),
        },
    )
    .map(_named)
    .map(_planned)
)
