"""Documents of ratekit's own decide what Envoy asks: descriptors are looked at as requests."""

from __future__ import annotations

import json

import httpx2
import pytest

from ratekit import AsyncRateLimiter, ConfigurationError
from ratekit.asgi import RuleMiddleware
from ratekit.rules.descriptors.convert import convert
from ratekit.rules.descriptors.documents import DocumentDomain
from ratekit.rules.descriptors.file import DescriptorFile
from ratekit.rules.descriptors.tree import Domains
from ratekit.rules.document import Document
from ratekit.stores.memory import MemoryStore
from ratekit_service.envoy.service import RateLimitService
from ratekit_service.envoy.serving import RuleFiles
from support.envoy_messages import OK, OVER_LIMIT, Response, headers_of, request

DOCUMENT = {
    "service": "shop",
    "rules": [
        {"name": "health", "match": {"path": "/health"}, "limits": "unlimited"},
        {"name": "search", "match": {"path": "/search/*", "method": "GET"}, "by": "ip", "limits": ["2/min", "9/h"]},
        {"name": "orders", "match": {"path": "/orders/{id}"}, "by": "header:x-user", "limits": "3/min", "cost": 2},
        {"name": "trial", "match": {"headers": {"x-trial": "yes"}}, "by": "everyone", "limits": "1/min", "mode": "monitor"},
        {
            "name": "tokens",
            "by": {"org": "header:org", "model": "header:model"},
            "limits": ["5/min", "1000 tokens/min"],
            "cost": {"tokens": 1},
        },
        {
            "name": "users",
            "by": "header:user",
            "limits": "2/min",
            "custom": {"header:user:vip": "4/min"},
            "overrides": {"header:user:new": {"limits": "1/min", "valid_until": "2030-01-01T00:00:00Z"}},
        },
    ],
}


ENVOY = "domain: other\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1}}]\n"


class Asked:
    def __init__(self, document=DOCUMENT):
        self.store = MemoryStore()
        self.use(document)

    def use(self, document):
        domain = DocumentDomain(Document.parse(document))
        self.service = RateLimitService(AsyncRateLimiter(self.store), Domains.of([domain]))

    async def __call__(self, *descriptors, hits=0):
        message = request("shop", *descriptors, hits=hits).SerializeToString()
        return Response.FromString(await self.service.should_rate_limit(message))

    async def codes(self, count, *descriptors, hits=0):
        return [(await self(*descriptors, hits=hits)).overall_code for _ in range(count)]


@pytest.fixture
def asked(ratekit_clock):
    return Asked()


async def test_rule_is_found_by_the_keys_and_values_of_a_descriptor(asked):
    search = [("path", "/search/shoes"), ("method", "GET"), ("remote_address", "192.0.2.1")]
    assert await asked.codes(3, search) == [OK, OK, OVER_LIMIT]
    assert await asked.codes(1, [*search[:2], ("remote_address", "192.0.2.2")]) == [OK]
    refused = await asked(search)
    assert headers_of(refused)["x-ratekit-rule"] == "search"
    assert headers_of(refused)["ratelimit-limit"] == "2"
    assert refused.statuses[0].current_limit.unit == 2
    assert await asked.codes(5, [(":path", "/health?x=1")]) == [OK] * 5


async def test_rule_that_does_not_look_at_every_entry_is_not_for_the_descriptor(asked):
    other = [("path", "/search/shoes"), ("method", "GET"), ("remote_address", "192.0.2.1"), ("colour", "red")]
    assert await asked.codes(5, other, [("method", "GET")], [("org", "7")]) == [OK] * 5


async def test_all_descriptors_of_a_request_are_one_decision(asked):
    user, order = [("user", "42")], [(":path", "/orders/%37"), ("x-user", "42")]
    assert await asked.codes(1, user) == [OK]
    assert await asked.codes(2, user, order, hits=1) == [OK, OVER_LIMIT]
    assert await asked.codes(2, order, hits=2) == [OK, OVER_LIMIT]  # the refused request had spent nothing


async def test_cost_of_a_rule_and_hits_and_units(asked):
    order = [("path", "/orders/7"), ("x-user", "42")]
    assert await asked.codes(2, order) == [OK, OVER_LIMIT]  # it costs 2 of 3
    tokens = [("org", "7"), ("model", "large")]
    assert await asked.codes(3, tokens, hits=400) == [OK, OK, OVER_LIMIT]
    assert await asked.codes(1, tokens, hits=200) == [OK]


async def test_custom_limits_and_temporary_ones_and_modes(asked, ratekit_clock):
    assert await asked.codes(5, [("user", "vip")]) == [OK] * 4 + [OVER_LIMIT]
    ratekit_clock.set(1_893_455_990)  # ten seconds before 2030
    assert await asked.codes(2, [("user", "new")]) == [OK, OVER_LIMIT]
    ratekit_clock.advance(70)
    assert await asked.codes(3, [("user", "new")]) == [OK, OK, OVER_LIMIT]
    assert await asked.codes(3, [("x-trial", "yes")]) == [OK] * 3


async def test_envoy_and_an_application_share_counters(ratekit_clock):
    document = {"service": "shop", "rules": [{"match": {"path": "/x"}, "by": "header:user", "limits": "2/min"}]}
    asked = Asked(document)

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = RuleMiddleware(application, rules=document, store=asked.store)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://shop") as client:
        assert (await client.get("/x", headers={"user": "42"})).status_code == 200
        assert await asked.codes(2, [("path", "/x"), ("user", "42")]) == [OK, OVER_LIMIT]
        assert (await client.get("/x", headers={"user": "42"})).status_code == 429


async def test_converted_file_decides_as_the_file_does(ratekit_clock):
    text = """
domain: shop
descriptors:
  - {key: type, rate_limit: {unit: minute, requests_per_unit: 3}}
  - key: type
    value: marketing
    rate_limit: {unit: minute, requests_per_unit: 2}
    descriptors: [{key: to_number, rate_limit: {unit: minute, requests_per_unit: 1}}]
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 2}}
"""
    document = Asked(convert(DescriptorFile.parse(text)).values)
    limiter = AsyncRateLimiter(MemoryStore())
    file = RateLimitService(limiter, Domains.of([DescriptorFile.parse(text)]))
    descriptors = (
        [("type", "marketing")], [("type", "marketing"), ("to_number", "1")], [("type", "other")],
        [("type", "other"), ("to_number", "1")], [("remote_address", "192.0.2.1")], [("unknown", "x")],
    )  # fmt: skip
    for descriptor in descriptors:
        for _ in range(5):
            message = request("shop", descriptor).SerializeToString()
            theirs = Response.FromString(await file.should_rate_limit(message)).overall_code
            assert (await document(descriptor)).overall_code == theirs, descriptor


@pytest.mark.parametrize("name", ["rules.yaml", "rules.json", "rules.toml"])
def test_files_of_both_forms_stand_in_one_folder_and_may_change(tmp_path, name):
    texts = {
        "rules.yaml": "service: shop\nrules: [{name: all, by: everyone, limits: 5/min}]\n",
        "rules.json": json.dumps({"service": "shop", "rules": [{"name": "all", "by": "everyone", "limits": "5/min"}]}),
        "rules.toml": 'service = "shop"\n[[rules]]\nname = "all"\nby = "everyone"\nlimits = "5/min"\n',
    }
    (tmp_path / name).write_text(texts[name])
    (tmp_path / "envoy.yaml").write_text(
        "domain: other\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1}}]\n"
    )
    (tmp_path / "notes.txt").write_text("not a file of rules")
    files = RuleFiles([tmp_path])
    assert sorted(files.domains.by_name) == ["other", "shop"]
    (tmp_path / name).write_text(texts[name].replace("5/min", "5/fortnight"))
    assert files.changed() is None
    (tmp_path / name).write_text(texts[name].replace("shop", "store"))
    changed = files.changed()
    assert changed is not None
    assert sorted(changed.by_name) == ["other", "store"]


def test_warning_about_a_file_of_a_folder_names_the_file(tmp_path, caplog):
    for name in ("shop", "other"):
        limit = "detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}"
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\ndescriptors: [{{key: a, {limit}}}]\n")
    RuleFiles([tmp_path])
    told = [record.getMessage().partition(": names of metrics")[0] for record in caplog.records]
    assert told == [f"{tmp_path}/{name}.yaml: descriptors[0].detailed_metric" for name in ("other", "shop")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules: [{limits: 5/min}]", "service is missing: it is the domain of descriptors"),
        ("service: shop\nrules: [{limits: 5/fortnight}]", "rules\\[0\\].limits"),
        ("service: shop\nrules: [{limits: 5/min@concurrency}]", "concurrency"),
    ],
)
def test_document_that_makes_no_sense_is_named(tmp_path, text, words):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"rules.yaml.*{words}"):
        RuleFiles([path])
