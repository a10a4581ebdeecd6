"""Which policy a path has: exact paths, patterns, methods, a default, what is exempt; and what cannot evade it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekit import ConfigurationError, Limit, Policy
from ratekit.web.client_address import TrustedProxies
from ratekit.web.plans import as_rule_policy
from ratekit.web.requests import AsgiRequest, WsgiRequest
from ratekit.web.table import DEFAULT_ENDPOINT, Rules


def endpoint(rules: Rules, path: str, method: str = "GET") -> str | None:
    rule = rules.at(method, path)
    return None if rule is None else rule.endpoint


def names(rules: Rules, path: str, method: str = "GET") -> list[str] | None:
    """Return the names of the limits of a request."""
    rule = rules.at(method, path)
    return None if rule is None else [limit.name for limit in rule.policy.limits]


def table(*patterns: str, exempt: tuple[str, ...] = (), default: str | None = None) -> Rules:
    return Rules(dict.fromkeys(patterns, "5/min"), default, exempt)


def asgi_path(path: str, root_path: str = "") -> str:
    return AsgiRequest({"type": "http", "path": path, "root_path": root_path, "headers": []}, TrustedProxies()).path


def wsgi_path(path: str, script_name: str = "") -> str:
    raw = path.encode().decode("latin-1")  # as servers hand it over
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": raw, "SCRIPT_NAME": script_name}
    return WsgiRequest(environ, TrustedProxies()).path


def test_exact_path_has_its_rule():
    rules = table("/search", "/")
    assert endpoint(rules, "/search") == "/search"
    assert endpoint(rules, "/") == "/"
    assert endpoint(rules, "/search/more") is None
    assert endpoint(rules, "/SEARCH") is None


@pytest.mark.parametrize(
    "path", ["/items/5", "/items/a b", "/items/ü", "/items/a.b", "/items/a\nb", "/items/{id}", "/items/%2F"]
)
def test_parameter_is_one_segment_of_anything(path):
    assert endpoint(table("/items/{id}"), path) == "/items/{id}"


@pytest.mark.parametrize("path", ["/items", "/items/", "/items/5/6", "/items/5/parts", "/item/5", "/xitems/5"])
def test_parameter_is_neither_none_nor_two_segments(path):
    assert endpoint(table("/items/{id}"), path) is None


def test_parameters_may_stand_anywhere():
    rules = table("/a/{x}/b/{y_2}", "/v{major}.{minor}/x")
    assert endpoint(rules, "/a/1/b/2") == "/a/{x}/b/{y_2}"
    assert endpoint(rules, "/a/1/c/2") is None
    assert endpoint(rules, "/v1.2/x") == "/v{major}.{minor}/x"
    assert endpoint(rules, "/v1-2/x") is None


def test_path_parameter_is_several_segments():
    rules = table("/files/{name:path}", "/repos/{name:path}/raw")
    for path in ("/files/a", "/files/a/b/c.txt", "/files/a\nb"):
        assert endpoint(rules, path) == "/files/{name:path}"
    assert endpoint(rules, "/repos/a/b/raw") == "/repos/{name:path}/raw"
    assert endpoint(rules, "/repos/a/b/cooked") is None


def test_path_parameter_that_is_empty_is_not_evaded():
    """Starlette gives "/files/" to the route "/files/{name:path}"."""
    assert endpoint(table("/files/{name:path}"), "/files/") == "/files/{name:path}"


@pytest.mark.parametrize("path", ["/static", "/static/", "/static/a", "/static/a/b.css", "/static/*"])
def test_star_is_everything_below_and_the_path_itself(path):
    assert endpoint(table("/static/*"), path) == "/static/*"


def test_star_ends_at_a_segment_unless_it_is_part_of_one():
    assert endpoint(table("/static/*"), "/statics") is None
    assert endpoint(table("/static*"), "/statics/a") == "/static*"
    assert endpoint(table("/users/{id}/*"), "/users/5/a/b") == "/users/{id}/*"


@pytest.mark.parametrize("path", ["/", "", "/a", "/a/b/"])
def test_star_alone_is_everything(path):
    assert endpoint(table("/*"), path) == "/*"


@pytest.mark.parametrize("pattern", ["POST /login", "POST /{any}", "POST /login/*"])
def test_method_is_part_of_a_pattern(pattern):
    rules = table(pattern, default="9/min")
    assert endpoint(rules, "/login", "POST") == pattern.removeprefix("POST ")
    assert endpoint(rules, "/login", "GET") == DEFAULT_ENDPOINT


def test_rule_of_the_method_wins_over_that_of_all():
    rules = Rules({"/login": "9/min", "POST /login": "5/min"})
    assert rules.at("POST", "/login").policy.limits[0].max_requests == 5
    assert rules.at("PUT", "/login").policy.limits[0].max_requests == 9


def test_method_is_part_of_the_name_of_a_limit_and_not_of_the_endpoint():
    """So an override for the path applies to all of its methods, and "post-60s.max_requests" to one."""
    rules = Rules({"POST /x": ["5/min", "hourly=9/h"], "GET /x": "5/min", "/x": "5/min", "DELETE /x/*": Policy("p", "1/s")})
    assert names(rules, "/x", "POST") == ["post-60s", "post-hourly"]
    assert names(rules, "/x", "GET") == names(rules, "/x", "HEAD") == ["get-60s"]
    assert names(rules, "/x", "PUT") == ["60s"]
    assert names(rules, "/x/1", "DELETE") == ["delete-1s"]
    assert {endpoint(rules, "/x", method) for method in ("POST", "GET", "HEAD", "PUT")} == {"/x"}


@pytest.mark.parametrize("method", ["POST", "post", "Post", "pOsT"])
def test_case_of_a_method_does_not_evade_its_rule(method):
    rules = table("POST /login", "POST /items/{id}", default="9/min")
    assert endpoint(rules, "/login", method) == "/login"
    assert endpoint(rules, "/items/5", method) == "/items/{id}"


@pytest.mark.parametrize("method", ["head", "HEAD"])
def test_head_counts_as_get(method):
    assert endpoint(table("GET /x", default="9/min"), "/x", method) == "/x"


def test_method_of_a_pattern_may_be_in_lower_case():
    assert names(table("post /login"), "/login", "POST") == ["post-60s"]


@pytest.mark.parametrize("path", ["/search", "/items/5", "/other"], ids=["exact", "pattern", "default"])
def test_invented_methods_share_the_counter_of_a_rule_that_names_no_method(path):
    rules = table("/search", "/items/{id}", default="9/min")
    found = {rules.at(method, path) for method in ("GET", "POST", "FOO1", "FOO2", "foo3", "", "X" * 5000)}
    assert len(found) == 1


@pytest.mark.parametrize("path", ["/search", "/items/5", "/other"], ids=["exact", "pattern", "default"])
@pytest.mark.parametrize("method", ["OPTIONS", "options"])
def test_options_has_one_counter_of_its_own_where_no_method_is_named(path, method):
    rules = table("/search", "/items/{id}", default="9/min")
    assert names(rules, path, method) == ["options-60s"]
    assert endpoint(rules, path, method) == endpoint(rules, path)
    assert rules.at(method, path) is rules.at("OPTIONS", path)


def test_options_has_the_rule_that_names_it():
    rules = Rules({"OPTIONS /x": "3/min", "/x": "9/min", "POST /y": "9/min"}, exempt=["OPTIONS /z"], default="1/s")
    assert rules.at("OPTIONS", "/x").policy.limits[0].max_requests == 3
    assert names(rules, "/y", "OPTIONS") == ["options-1s"]
    assert names(rules, "/z", "OPTIONS") is None


def test_options_of_an_exempt_path_is_exempt():
    assert names(table(exempt=("/health",), default="9/min"), "/health", "OPTIONS") is None


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [("PSOT /login", "POST"), ("GTE /x", "GET"), ("DEL /x", "DELETE"), ("PTACH /x", "PATCH"), ("OPTION /x", "OPTIONS")],
)
def test_misspelt_method_is_refused_with_the_one_that_was_meant(pattern, meant):
    for make in (lambda: table(pattern), lambda: table(exempt=(pattern,))):
        with pytest.raises(
            ConfigurationError, match=rf"pattern '{pattern}' names the unknown method .*did you mean {meant}\?"
        ):
            make()


def test_method_that_nobody_knows_is_refused():
    with pytest.raises(ConfigurationError, match="'FOO1 /x' names the unknown method 'FOO1': methods are GET"):
        table("FOO1 /x")


@pytest.mark.parametrize("method", ["PROPFIND", "QUERY", "PURGE", "VERSION-CONTROL", "M-SEARCH"])
def test_rare_method_is_known(method):
    assert names(table(f"{method} /x"), "/x", method) == [f"{method.lower()}-60s"]


def test_cost_of_the_middleware_is_part_of_the_names_of_limits():
    rules = Rules({"/x": "9/min", "POST /x": "9/min"}, "9/h", cost=5)
    assert [names(rules, "/x"), names(rules, "/x", "POST"), names(rules, "/y")] == [
        ["cost-5-60s"],
        ["post-cost-5-60s"],
        ["cost-5-3600s"],
    ]
    assert names(rules, "/x", "OPTIONS") == ["options-cost-5-60s"]


@pytest.mark.parametrize(
    "pattern", ["/users/<int:id>", "/users/<id>", "/users/<uuid:id>", "/users/{id:int}", "/users/<slug:s>"]
)
def test_parameter_of_a_framework_is_one_segment(pattern):
    rules = table(pattern)
    assert endpoint(rules, "/users/5") == pattern
    assert endpoint(rules, "/users/5/posts") is None
    assert endpoint(rules, "/users") is None


def test_parameters_of_flask_may_have_arguments():
    rules = table("/<any(de, en):lang>/<string(length=2):code>/x", "/files/<path:name>", "/r/<path:name>/raw")
    assert endpoint(rules, "/de/ab/x") == "/<any(de, en):lang>/<string(length=2):code>/x"
    assert endpoint(rules, "/files/a/b") == endpoint(rules, "/files") == "/files/<path:name>"
    assert endpoint(rules, "/r/a/b/raw") == "/r/<path:name>/raw"


@pytest.mark.parametrize("pattern", ["/{x:date}", "/<date:x>", "/a/{x:paths}"])
def test_parameter_of_an_unknown_type_is_refused(pattern):
    with pytest.raises(
        ConfigurationError, match=r"unknown type .*write \{name\} for one segment, \{name:path\} for several"
    ):
        table(pattern)


def test_spaces_between_method_and_path_do_not_matter():
    rules = table("POST  /login", "POST   /items/{id}")
    assert rules.at("POST", "/login") is not None
    assert rules.at("POST", "/items/5") is not None


def test_exact_path_wins_over_a_pattern_and_the_first_pattern_over_the_next():
    rules = table("/items/*", "/items/{id}", "/items/new")
    assert endpoint(rules, "/items/new") == "/items/new"
    assert endpoint(rules, "/items/5") == "/items/*"


def test_default_is_for_what_fits_no_rule():
    rules = table("/search", default="9/min")
    assert endpoint(rules, "/other") == DEFAULT_ENDPOINT
    assert rules.at("GET", "/other").policy.limits == (Limit(9, 60),)
    assert endpoint(table("/search"), "/other") is None


@pytest.mark.parametrize("pattern", ["/health", "/static/*", "/docs/{page}", "GET /metrics"])
def test_exempt_path_has_no_rule(pattern):
    path = pattern.removeprefix("GET ").replace("{page}", "intro").replace("*", "a/b")
    assert endpoint(table(exempt=(pattern,), default="9/min"), path) is None


def test_exempt_method_leaves_the_others_limited():
    assert endpoint(table(exempt=("GET /metrics",), default="9/min"), "/metrics", "POST") == DEFAULT_ENDPOINT


def test_exempt_pattern_wins_over_a_rule_of_the_same_kind():
    assert endpoint(table("/a", "/b/*", exempt=("/a", "/b/*"), default="9/min"), "/a") is None
    assert endpoint(table("/a", "/b/*", exempt=("/a", "/b/*"), default="9/min"), "/b/c") is None


def test_exact_rule_inside_what_is_exempt_still_counts():
    assert endpoint(table("/static/export", exempt=("/static/*",)), "/static/export") == "/static/export"


@pytest.mark.parametrize("path", ["/search/", "//search", "/search//", "///search///", "search"])
def test_slashes_do_not_evade_an_exact_rule(path):
    assert endpoint(table("/search", default="9/min"), path) == "/search"


@pytest.mark.parametrize("path", ["/items/5/", "//items/5", "/items//5", "/items///5//"])
def test_slashes_do_not_evade_a_pattern(path):
    assert endpoint(table("/items/{id}", default="9/min"), path) == "/items/{id}"


def test_slashes_do_not_make_a_path_exempt():
    assert endpoint(table(exempt=("/health",), default="9/min"), "/health/../search") == DEFAULT_ENDPOINT
    assert endpoint(table(exempt=("/static/*",), default="9/min"), "/search//static/a") == DEFAULT_ENDPOINT


@pytest.mark.parametrize("path_of", [asgi_path, wsgi_path], ids=["asgi", "wsgi"])
@pytest.mark.parametrize("path", ["/größe", "/日本/ü", "/a b", "/%", "/"])
def test_unicode_path_is_the_same_in_every_front(path_of, path):
    assert path_of(path) == path
    assert endpoint(table(path), path_of(path)) == path


def test_bytes_that_are_no_utf8_are_a_path_all_the_same():
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/\xff\xfe"}
    assert endpoint(table("/{any}"), WsgiRequest(environ, TrustedProxies()).path) == "/{any}"


@pytest.mark.parametrize(
    ("path", "root"),
    [("/api/search", "/api"), ("/search", ""), ("/search", "/api"), ("/api/search", "/api/"), ("/a/b/search", "/a/b")],
)
def test_prefix_of_a_mount_is_no_part_of_the_path(path, root):
    assert endpoint(table("/search"), asgi_path(path, root)) == "/search"


def test_path_of_the_mount_itself_is_the_root():
    assert endpoint(table("/"), asgi_path("/api", "/api")) == "/"
    assert endpoint(table("/"), wsgi_path("", "/api")) == "/"


def test_root_path_is_cut_off_at_a_segment_only():
    """A server that leaves the prefix out of the path must not have "/search" read as "/earch"."""
    assert endpoint(table("/search"), asgi_path("/search", "/s")) == "/search"
    assert endpoint(table("/apiary"), asgi_path("/apiary", "/api")) == "/apiary"


def test_script_name_is_no_part_of_the_path():
    assert endpoint(table("/search"), wsgi_path("/search", "/api")) == "/search"


BAD_PATTERNS = [
    "",
    "search",
    "*",
    "/a/",
    "//",
    "/*/a",
    "/a*b",
    "/a**",
    "/{",
    "/}",
    "/{}",
    "/{1}",
    "/{a b}",
    "/<",
    "/<a",
    "/a>",
    "/<1>",
    "/<int:>",
    "GET",
    "GET a",
]


@pytest.mark.parametrize("pattern", BAD_PATTERNS)
def test_bad_pattern_is_refused(pattern):
    with pytest.raises(ConfigurationError, match="pattern|name"):
        table(pattern)
    with pytest.raises(ConfigurationError, match="pattern"):
        table(exempt=(pattern,))


@pytest.mark.parametrize("pattern", [5, None, b"/a", ("/a",)])
def test_pattern_that_is_no_text_is_refused(pattern):
    with pytest.raises(ConfigurationError, match="pattern|name"):
        table(pattern)
    with pytest.raises(ConfigurationError, match="pattern"):
        table(exempt=(pattern,))


@pytest.mark.parametrize("pattern", ["/{user-id}/{id}", "/a}/{id}", "/<a/{id}", "/{/{id}"])
def test_brace_of_no_parameter_is_refused_before_a_parameter_too(pattern):
    with pytest.raises(ConfigurationError, match="brace"):
        table(pattern)


@pytest.mark.parametrize("pattern", ["/a//b", "//a", "/a//{id}", "/a//*", "GET //a"])
def test_pattern_that_no_path_can_fit_is_refused(pattern):
    with pytest.raises(ConfigurationError, match="pattern"):
        table(pattern)


def test_one_text_for_exempt_is_refused():
    with pytest.raises(ConfigurationError, match="exempt '/health' is one text"):
        Rules(exempt="/health")


@pytest.mark.parametrize(
    "limits",
    [
        "100",
        "x/min",
        "100/fortnight",
        "",
        "-1/min",
        "0/fortnight",
        5,
        None,
        object(),
        [],
        ["20/s", "x"],
        [5],
        ["1/s", "2/s"],
    ],
)
def test_malformed_rate_is_refused(limits):
    with pytest.raises(ConfigurationError):
        Rules({"/search": limits})


@pytest.mark.parametrize("limits", ["x/min", 5, ["20/s", "x"]])
def test_malformed_default_is_refused(limits):
    with pytest.raises(ConfigurationError):
        Rules(default=limits)


def test_sentence_of_a_bad_rate_names_the_value():
    with pytest.raises(ConfigurationError, match="rate '100/fortnight'"):
        Rules({"/search": "100/fortnight"})


def test_rule_is_a_rate_or_a_limit_or_a_policy_or_several():
    policy = Policy("mine", "20/s")
    assert as_rule_policy("/a", "20/s") == Policy("/a", [Limit(20, 1)])
    assert as_rule_policy("/a", Limit(20, 1)) == Policy("/a", [Limit(20, 1)])
    assert as_rule_policy("/a", ["20/s", Limit(1000, 60)]) == Policy("/a", [Limit(20, 1), Limit(1000, 60)])
    assert as_rule_policy("/a", policy) is policy


def test_endpoint_is_the_pattern_whatever_the_policy_is_called():
    assert endpoint(Rules({"/a/{id}": Policy("mine", "20/s")}), "/a/5") == "/a/{id}"


def test_policies_are_those_of_rules_and_default():
    rules = Rules({"/a": "1/s", "/b/*": "2/s"}, "3/s", ["/c"])
    assert sorted(policy.limits[0].max_requests for policy in rules.policies) == [1, 2, 3]


def test_no_number_of_paths_makes_the_table_forget():
    rules = table("/items/{id}", default="9/min")
    for index in range(10_000):
        assert endpoint(rules, f"/items/{index}") == "/items/{id}"
    assert endpoint(rules, "/other") == DEFAULT_ENDPOINT


SEGMENT = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=6)
FORMS = {
    "/{word}": [],
    "/{word}/{{id}}": [1],
    "/{word}/{{a}}/x/{{b}}": [1, "x", 1],
    "/{word}/{{rest:path}}": [3],
    "/{word}/*": [2],
}


@st.composite
def tables(draw):
    """A table of patterns of which no two begin alike, the path that fits one of them, and that one."""
    forms = draw(st.lists(st.sampled_from(list(FORMS)), min_size=1, max_size=6))
    patterns = [form.format(word=f"word-{index}") for index, form in enumerate(forms)]
    chosen = draw(st.integers(0, len(forms) - 1))
    rest: list[str] = []
    for part in FORMS[forms[chosen]]:
        rest += [part] if isinstance(part, str) else draw(st.lists(SEGMENT, min_size=min(part, 1), max_size=part))
    slashes = st.sampled_from(["/", "//", "///"])
    path = "".join(draw(slashes) + segment for segment in [f"word-{chosen}", *rest])
    return patterns, path + draw(st.sampled_from(["", "/", "//"])), patterns[chosen]


@given(case=tables(), order=st.randoms(use_true_random=False))
def test_path_that_fits_one_pattern_has_its_rule_whatever_the_order_and_the_slashes(case, order):
    patterns, path, expected = case
    order.shuffle(patterns)
    assert endpoint(table(*patterns, default="9/min"), path) == expected


@given(path=st.text(max_size=30), method=st.sampled_from(["GET", "POST", "BREW", ""]))
def test_every_path_has_a_rule_when_there_is_a_default(path, method):
    assert endpoint(table("/a", "/b/{id}", "/c/*", default="9/min"), path, method) is not None


PIECES = st.lists(st.sampled_from(["/", "a", "{id}", "{rest:path}", "*", "{", "}", "ü"]), max_size=6).map("".join)


@settings(max_examples=300)
@given(pattern=st.builds("".join, st.tuples(st.sampled_from(["/", "GET /", "GET  /"]), PIECES)))
def test_pattern_is_refused_or_fits_some_path(pattern):
    try:
        rules = table(pattern)
    except ConfigurationError:
        return
    method, path = re.fullmatch(r"(?:([A-Z]+) +)?(/.*)", pattern).groups()
    assert rules.at(method or "GET", path.replace(":path", "").replace("*", "x")) is not None


def test_long_paths_find_their_rule_and_are_not_kept():
    rules = table("/files/*", default=None)
    assert endpoint(rules, "/files/" + "x" * 60_000) == "/files/*"
    assert not rules.found


@pytest.mark.parametrize("path", ["/login\n", "/login/\n", "//login\n"])
def test_line_break_at_the_end_of_a_path_is_no_way_around_its_rule(path):
    """Starlette runs the route of "/login" for it."""
    table = Rules({"POST /login": "5/min", "/files/{name:path}": "3/min"}, "9/min")
    assert table.at("POST", path).endpoint == "/login"
    assert table.at("GET", "/files/a\n").endpoint == "/files/{name:path}"
    assert table.at("GET", "/other\n").endpoint == "default"


def test_line_break_at_the_end_of_a_path_makes_nothing_exempt():
    """Flask runs a route for any path with it, and not that of "/health"."""
    table = Rules({"/x": "5/min"}, "9/min", exempt=["/health", "/static/*"])
    assert table.at("GET", "/health") is None
    assert [table.at("GET", path).endpoint for path in ("/health\n", "/static/a\n")] == ["default", "default"]
