"""Key functions: who is limited, from headers, queries, cookies, bodies, addresses, chains and callables."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlencode

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekit import ConfigurationError, asgi, wsgi
from ratekit.core import events
from ratekit.core.errors import UnusableRequestError, WrongTypeError
from ratekit.core.pseudonyms import pseudonym
from ratekit.identity import form
from ratekit.web.client_address import TrustedProxies
from ratekit.web.identity import (
    as_key_function,
    client_ip,
    cookie,
    counted_subject,
    first_of,
    form_field,
    header,
    json_field,
    passes,
    query,
)
from ratekit.web.requests import AsgiRequest, FrontRequest, WsgiRequest

SECRET = "sk-live-Zm9vYmFy"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MOBILITY = first_of(header("X-API-Key"), header("X-User-Id"), client_ip())  # mission C3


def asgi_request(headers=(), query_string="", peer="192.0.2.7", body=None) -> FrontRequest:
    lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in dict(headers).items()]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": lines, "query_string": query_string.encode("latin-1")}
    request = AsgiRequest(scope | {"client": peer and (peer, 1)}, TrustedProxies())
    request.body = body
    return request


def wsgi_request(headers=(), query_string="", peer="192.0.2.7", body=None) -> FrontRequest:
    names = {name: name.upper().replace("-", "_") for name in dict(headers)}
    lines = {key if key == "CONTENT_TYPE" else f"HTTP_{key}": dict(headers)[name] for name, key in names.items()}
    environ = {"REQUEST_METHOD": "POST", "QUERY_STRING": query_string, "REMOTE_ADDR": peer or ""}
    request = WsgiRequest(environ | lines, TrustedProxies())
    request.body = body
    return request


@pytest.fixture(params=[asgi_request, wsgi_request], ids=["asgi", "wsgi"])
def request_of(request):
    return request.param


async def asgi_app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def wsgi_app(environ, start_response):
    start_response("200 OK", [])
    return [b"ok"]


def ask_asgi(url="/", method="GET", *, headers=None, content=None, **options) -> httpx2.Response:
    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(asgi.RateLimitMiddleware(asgi_app, **options), client=("192.0.2.7", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
            return await client.request(method, url, headers=headers, content=content)

    return asyncio.run(ask())


def ask_wsgi(url="/", method="GET", *, headers=None, content=None, **options) -> httpx2.Response:
    transport = httpx2.WSGITransport(wsgi.RateLimitMiddleware(wsgi_app, **options), remote_addr="192.0.2.7")
    with httpx2.Client(transport=transport, base_url="http://api") as client:
        return client.request(method, url, headers=headers, content=content)


@pytest.fixture(params=[ask_asgi, ask_wsgi], ids=["asgi", "wsgi"])
def ask(request, ratekit_store):
    """Send one request through a middleware on the empty memory://, built of the options, and return the response."""
    return request.param


def digest(value: str) -> str:
    return pseudonym(value, digits=32)


def names_in(store) -> list[str]:
    return sorted(name.decode() for name in store.execute("KEYS", "ratelimit"))


def test_header_is_read_whatever_its_case(request_of):
    request = request_of({"X-Api-KEY": "abc"})
    assert header("X-API-Key")(request) == header("x-api-key")(request) == f"header:x-api-key:{digest('abc')}"


def test_header_is_stripped(request_of):
    assert header("X-API-Key", plain=True)(request_of({"X-API-Key": "  abc "})) == "header:x-api-key:abc"


@pytest.mark.parametrize("value", ["", "   "])
def test_empty_header_says_nothing(request_of, value):
    assert header("X-API-Key")(request_of({"X-API-Key": value})) is None


def test_query_is_read_by_the_exact_name(request_of):
    request = request_of(query_string="Key=other&key=a%20b&key[]=second")
    assert query("key", plain=True)(request) == "query:key:a b"


MANY = {
    "query": (query("key", plain=True), lambda values: {"query_string": urlencode([("key", value) for value in values])}),
    "form": (
        form_field("key", plain=True),
        lambda values: {"headers": FORM, "body": urlencode([("key", value) for value in values]).encode()},
    ),
    "multipart": (
        form_field("key", plain=True),
        lambda values: {"headers": MULTIPART, "body": multipart(*[("key", value) for value in values])},
    ),
    "json": (
        json_field("key", plain=True),
        lambda values: {"body": ("{" + ",".join(f'"key": "{value}"' for value in values) + "}").encode()},
    ),
}


@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("values", [("x", "victim"), ("", "victim"), ("victim", ""), ("a", "b", "a")])
def test_several_different_values_are_unusable(request_of, kind, values):
    """Frameworks take the first or the last: a client would be limited as another than the application knows."""
    by, sent = MANY[kind]
    with pytest.raises(UnusableRequestError, match="several") as caught:
        by(request_of(**sent(values)))
    assert caught.value.status == 400


@pytest.mark.parametrize("kind", MANY)
def test_equal_values_are_one(request_of, kind):
    by, sent = MANY[kind]
    assert by(request_of(**sent(("ann", "ann")))).endswith(":key:ann")


@pytest.mark.parametrize(
    "line", ["session=a; session=b", "session=; session=a", "session=a; session=", 'session=a; session="b"']
)
def test_several_different_cookies_say_nothing(request_of, line):
    assert cookie("session")(request_of({"Cookie": line})) is None


def test_equal_cookies_are_one(request_of):
    assert cookie("session", plain=True)(request_of({"Cookie": "session=a; x=1; session=a"})) == "cookie:session:a"


@pytest.mark.parametrize(("values", "expected"), [(("a", "b"), None), (("a", "a"), "header:x-key:a"), (("", "a"), None)])
def test_several_different_lines_of_a_header_say_nothing(values, expected):
    scope = {"type": "http", "path": "/", "headers": [(b"x-key", value.encode()) for value in values]}
    assert header("X-Key", plain=True)(AsgiRequest(scope, TrustedProxies())) == expected


def test_cookie_is_read_among_others(request_of):
    request = request_of({"Cookie": 'theme=dark; session="a b"; other=1'})
    assert cookie("session", plain=True)(request) == "cookie:session:a b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"abc"', "abc"),
        (r'"\141bc"', "abc"),
        (r'"a\"b"', 'a"b'),
        (r'"\303\251"', None),
        ('"a;b"', None),
        ('"abc', None),
        ("a b", None),
        ("%41", None),
        ("\xe9", None),
    ],
)
def test_cookie_is_unquoted_as_frameworks_do_and_says_nothing_where_they_differ(request_of, text, expected):
    subject = cookie("session", plain=True)(request_of({"Cookie": f"x=1; session={text}; y=2"}))
    assert subject == (None if expected is None else f"cookie:session:{expected}")


def test_cookie_within_the_quotes_of_another_says_nothing(request_of):
    assert cookie("session")(request_of({"Cookie": 'a="; session=abc; b="'})) is None


@pytest.mark.parametrize("before", ['prefs={"a": 1}', "a[]=1", "flag", "é=1", "x=a b,c"])
def test_cookie_is_read_behind_one_that_is_malformed(request_of, before):
    assert cookie("session", plain=True)(request_of({"Cookie": f"{before}; session=abc"})) == "cookie:session:abc"


@pytest.mark.parametrize("line", ["", ";;;", "=", "session", "session=", "\x7f\xff", "a[]=1; @=2", "session=;session="])
def test_cookie_that_is_not_there_says_nothing_however_malformed_the_line(request_of, line):
    assert cookie("session")(request_of({"Cookie": line})) is None


@pytest.mark.parametrize("by", [header("X"), query("x"), cookie("x"), form_field("x")], ids=lambda by: by.name)
def test_missing_value_says_nothing(request_of, by):
    assert by(request_of()) is None


def test_client_ip_is_the_peer(request_of):
    assert client_ip()(request_of({"X-Forwarded-For": "6.6.6.6"})) == "ip:192.0.2.7"
    assert client_ip()(request_of(peer=None)) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("user", "ann"),
        ("account.id", "42"),
        ("items.0.sku", "s-1"),
        ("items.1.sku", "s-2"),
        ("ratio", "1.5"),
        ("flag", "true"),
        ("zero", "0"),
        ("größe", "ü"),
    ],
)
def test_json_field_is_read_by_its_path(request_of, path, expected):
    body = {
        "user": "ann",
        "account": {"id": 42},
        "items": [{"sku": "s-1"}, {"sku": "s-2"}],
        "ratio": 1.5,
        "flag": True,
        "zero": 0,
        "größe": "ü",
    }
    assert json_field(path, plain=True)(request_of(body=json.dumps(body).encode())) == f"json:{path}:{expected}"


@pytest.mark.parametrize("path", ["nobody", "account", "items", "items.9", "items.x", "user.name", "items.-1", "null", "."])
def test_json_field_that_names_no_value_says_nothing(request_of, path):
    body = b'{"account": {"id": 42}, "items": [1], "user": "ann", "null": null}'
    assert json_field(path)(request_of(body=body)) is None


@pytest.mark.parametrize(
    "body", [b"{", b"a=1", b"\xff\xfe\xff", b"[1", b'{"user": "ann"} x', b'{"user": ' + b"9" * 5000 + b"}"]
)
def test_body_that_is_not_json_is_unusable(request_of, body):
    with pytest.raises(UnusableRequestError, match="not JSON.*'user'") as caught:
        json_field("user")(request_of(body=body))
    assert caught.value.status == 400


def test_json_nested_too_deeply_is_unusable(request_of):
    body = b'{"user":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    with pytest.raises(UnusableRequestError) as caught:
        json_field("user")(request_of(body=body))
    assert caught.value.status == 400


def test_form_field_is_read(request_of):
    request = request_of(FORM, body=urlencode({"user": "ann b", "other": 1}).encode())
    assert form_field("user", plain=True)(request) == "form:user:ann b"


def test_form_field_knows_the_type_with_a_charset(request_of):
    request = request_of({"Content-Type": "Application/X-WWW-Form-Urlencoded; charset=utf-8"}, body=b"user=ann")
    assert form_field("user", plain=True)(request) == "form:user:ann"


@pytest.mark.parametrize("kind", ["multipart/mixed; boundary=b", "application/json", "text/plain", ""])
def test_form_field_says_nothing_of_other_bodies(request_of, kind):
    assert form_field("user")(request_of({"Content-Type": kind}, body=b"user=ann")) is None


MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}


def part(disposition: str, text: str, *headers: str) -> bytes:
    return "\r\n".join([f"--b\r\nContent-Disposition: {disposition}", *headers, "", f"{text}\r\n"]).encode()


def multipart(*fields: tuple[str, str]) -> bytes:
    return b"".join(part(f'form-data; name="{name}"', text) for name, text in fields) + b"--b--\r\n"


def test_form_field_is_read_from_a_multipart_form(request_of):
    file = part('form-data; name="file"; filename="a \\ b.png"', "\x00--\r\n-", "Content-Type: image/png")
    body = file + multipart(("other", "1"), ("user", "ann ü\r\n"))
    assert form_field("user", plain=True, normalize=None)(request_of(MULTIPART, body=body)) == "form:user:ann ü\r\n"
    assert form_field("nobody")(request_of(MULTIPART, body=body)) is None
    assert form_field("user")(request_of(MULTIPART, body=b"")) is None


@pytest.mark.parametrize(
    "body",
    [
        b"user=ann",
        multipart(("user", "ann"))[:-4],
        b"preamble\r\n" + multipart(("user", "ann")),
        multipart(("user", "ann")) + multipart(("user", "victim")),
        multipart(("other", "a--b\r\n"), ("user", "ann")),
        multipart(("user", "ann")).replace(b"\r\n", b"\n"),
        part('form-data; name=" user "', "ann") + b"--b--",
        part('form-data; name="user"; filename=""', "ann") + b"--b--",
        part('form-data; name="x"; name="user"', "ann") + b"--b--",
        part("form-data; name*=utf-8''user", "ann") + b"--b--",
        part('form-data; name="user"', "YW5u", "Content-Transfer-Encoding: base64") + b"--b--",
        part('form-data; name="user"', "\xe9", "Content-Type: text/plain; charset=iso-8859-1") + b"--b--",
        part('form-data; name="x"', "ann", 'Content-Disposition: form-data; name="user"') + b"--b--",
        part('form-data; name="user"', "ann").replace(b"ann", b"\xff") + b"--b--",
        b"--b\r\nX: y\r\n\r\nann\r\n--b--",
    ],
)
def test_multipart_form_that_frameworks_read_differently_is_unusable(request_of, body):
    with pytest.raises(UnusableRequestError) as caught:
        form_field("user")(request_of(MULTIPART, body=body))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=x; boundary=b",
        "multipart/form-data; boundary*=utf-8''b",
        "multipart/form-data; boundary=b; charset=utf-7",
        'multipart/form-data; x="; boundary=b',
    ],
)
def test_multipart_form_with_an_odd_label_is_unusable(request_of, kind):
    with pytest.raises(UnusableRequestError):
        form_field("user")(request_of({"Content-Type": kind}, body=multipart(("user", "ann"))))


@pytest.mark.parametrize("kind", ['multipart/form-data; boundary="b"', "Multipart/Form-Data;boundary=b; charset=UTF-8"])
def test_multipart_form_with_a_usual_label_is_read(request_of, kind):
    request = request_of({"Content-Type": kind}, body=multipart(("user", "ann")))
    assert form_field("user", plain=True)(request) == "form:user:ann"


def test_form_with_two_labels_is_unusable():
    lines = [(b"content-type", b"text/plain"), (b"content-type", FORM["Content-Type"].encode())]
    request = AsgiRequest({"type": "http", "path": "/", "headers": lines}, TrustedProxies())
    request.body = b"user=ann"
    with pytest.raises(UnusableRequestError, match="Content-Type"):
        form_field("user")(request)


@pytest.mark.parametrize("text", ["key=%FF", "key=\xe9", "key=\xc3\xa9", "k\xe9y=1&key=a", "key=a%E9"])
def test_value_that_is_not_percent_encoded_utf8_is_unusable(request_of, text):
    """Flask keeps %FF and %FE apart, others read both as one replacement character."""
    raw = text.encode("latin-1")
    for sent, by in (({"headers": FORM, "body": raw}, form_field("key")), ({"query_string": text}, query("key"))):
        with pytest.raises(UnusableRequestError):
            by(request_of(**sent))


@pytest.mark.parametrize("charset", ["latin-1", "utf-16", "utf-7", "shift_jis"])
def test_body_in_another_charset_is_unusable(request_of, charset):
    json_kind, form_kind = f"application/json; charset={charset}", f"{FORM['Content-Type']}; charset={charset}"
    for by, kind, body in (
        (json_field("key"), json_kind, '{"key": "é"}'.encode()),
        (form_field("key"), form_kind, b"key=a"),
        (query("key"), form_kind, b""),
    ):
        with pytest.raises(UnusableRequestError, match="charset"):
            by(request_of({"Content-Type": kind}, "key=a", body=body))


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=b", FORM["Content-Type"], "text/plain", ""])
def test_json_under_another_label_is_never_limited_by_the_address(request_of, kind):
    try:
        subject = json_field("user", plain=True)(request_of({"Content-Type": kind}, body=b'{"user": "ann"}'))
    except UnusableRequestError:
        assert "multipart" in kind
    else:
        assert subject == "json:user:ann"


def test_body_that_has_the_field_as_json_and_as_a_form_is_unusable(request_of):
    body = b'{"user": "ann", "x": "&user=victim&"}'
    with pytest.raises(UnusableRequestError, match="as JSON and as a form"):
        json_field("user")(request_of(FORM, body=body))


@pytest.mark.parametrize(
    ("body", "is_usable"),
    [
        (b'{"a": {"b": 1}, "a": {"b": 2}}', False),
        (b'{"a": {"b": 1, "b": true}}', False),
        (b'{"a": {"b": 1, "b": 1}}', True),
        (b'{"a": {"b": 1}, "x": 1, "x": 2}', True),
        (b'{"a": {"b": 1}, "a": {"b": 1}}', True),
    ],
)
def test_keys_of_json_must_not_have_different_values_on_the_way_to_the_field(request_of, body, is_usable):
    if is_usable:
        assert json_field("a.b", plain=True)(request_of(body=body)) == "json:a.b:1"
    else:
        with pytest.raises(UnusableRequestError, match="several values"):
            json_field("a.b")(request_of(body=body))


@pytest.mark.parametrize("number", ["42", "42.0", "4.2e1", '"42"'])
def test_spellings_of_a_number_are_one_subject(request_of, number):
    assert json_field("id", plain=True)(request_of(body=f'{{"id": {number}}}'.encode())) == "json:id:42"


EITHER = first_of("json:email", "form:email")


def test_chain_reads_a_field_of_json_or_of_a_form(request_of):
    in_json, in_form = request_of(body=b'{"email": "ann"}'), request_of(FORM, body=b"email=ann")
    assert EITHER(in_json) == f"json:email:{digest('ann')}"
    assert EITHER(in_form) == f"form:email:{digest('ann')}"


def test_chain_refuses_a_body_that_is_neither(request_of):
    for body in (b"{", b"other=1"):
        with pytest.raises(UnusableRequestError, match="not JSON"):
            first_of("json:email", "form:email", "ip")(request_of(FORM, body=body))


SPELLINGS = ["Ann@Example.org", " ann@example.org", "ann@example.org\u2003", "\uff41nn@example.org", "ANN@EXAMPLE.ORG"]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", ["email", "username", "user", "login", "Email"])
def test_field_that_names_a_user_is_normalised(request_of, name, spelling):
    body = urlencode({name: spelling}).encode()
    assert form_field(name, plain=True)(request_of(FORM, body=body)) == f"form:{name}:ann@example.org"
    in_json = json.dumps({"account": {name: spelling}}).encode()
    path = f"account.{name}"
    assert json_field(path, plain=True)(request_of(body=in_json)) == f"json:{path}:ann@example.org"


def test_normalisation_can_be_chosen_and_switched_off(request_of):
    request = request_of(FORM, body=urlencode({"email": " \uff21 "}).encode())
    for normalize, expected in [
        (None, " \uff21 "),
        ("strip", "\uff21"),
        ("lower", " \uff41 "),
        ("nfkc", " A "),
        ("email", "a"),
        ("username", "a"),
        (lambda text: text.strip() + "!", "\uff21!"),
    ]:
        assert form("email", plain=True, normalize=normalize)(request) == f"form:email:{expected}"
    assert form("x", plain=True, normalize="email")(request_of(FORM, body=b"x=+A+")) == "form:x:a"


def test_field_of_which_nothing_is_left_says_nothing(request_of):
    assert form("email")(request_of(FORM, body=b"email=++")) is None


@pytest.mark.parametrize("normalize", ["upper", "", 5, True])
def test_unknown_normalisation_is_refused(normalize):
    with pytest.raises(ConfigurationError, match="^normalize "):
        form("email", normalize=normalize)


def test_normalisation_that_gives_no_text_is_a_bug(request_of):
    with pytest.raises(WrongTypeError, match="normalize gave a value of the type bytes"):
        form("email", normalize=str.encode)(request_of(FORM, body=b"email=ann"))


def test_form_field_that_is_missing_or_empty_says_nothing(request_of):
    for body in (b"", b"user=", b"other=1", b"&&=&"):
        assert form_field("user")(request_of(FORM, body=body)) is None


@pytest.mark.parametrize(("by", "part"), [(query("q"), "query_string"), (form_field("q"), "body")], ids=["query", "form"])
def test_thousands_of_parameters_are_refused(ask, by, part):
    many = "&".join(f"q{index}=1" for index in range(1500))
    sent = {"url": f"/?{many}"} if part == "query_string" else {"content": many, "headers": FORM, "method": "POST"}
    response = ask(**sent, by=by, address_limit="100/min")
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"


def test_chain_takes_the_first_that_the_request_says(request_of):
    said = {"X-API-Key": "k", "X-User-Id": "u"}
    assert MOBILITY(request_of(said)) == f"header:x-api-key:{digest('k')}"
    assert MOBILITY(request_of({"X-User-Id": "u"})) == f"header:x-user-id:{digest('u')}"
    assert MOBILITY(request_of({"X-API-Key": " ", "X-User-Id": "u"})) == f"header:x-user-id:{digest('u')}"
    assert MOBILITY(request_of()) == "ip:192.0.2.7"


def test_chain_is_none_when_nothing_is_said(request_of):
    assert MOBILITY(request_of(peer=None)) is None


def test_chain_takes_texts_and_callables(request_of):
    chain = first_of("header:X-API-Key", lambda request: "user:7" if request.header("x-seven") else None, "ip")
    assert chain(request_of({"X-Seven": "1"})) == "user:7"
    assert chain(request_of()) == "ip:192.0.2.7"


def test_chain_needs_the_body_when_one_of_it_does():
    chain = first_of(header("X"), first_of(json_field("user", most_body=10), form_field("user", most_body=20)))
    assert chain.needs_body
    assert chain.most_body == 10
    assert not MOBILITY.needs_body


def test_chain_is_claimed_when_one_of_it_is():
    assert MOBILITY.is_claimed
    assert not first_of(client_ip(), lambda request: "u").is_claimed


def test_chain_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="first_of"):
        first_of()


def test_same_value_of_two_kinds_is_two_subjects(request_of):
    request = request_of({"X": "v", "Cookie": "X=v"}, query_string="X=v")
    assert len({header("X")(request), query("X")(request), cookie("X")(request)}) == 3


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ip", "client_ip"),
        ("client_ip", "client_ip"),
        ("header:X-API-Key", "header:x-api-key"),
        ("query:key", "query:key"),
        ("cookie:session", "cookie:session"),
        ("json:user.id", "json:user.id"),
        ("form:user", "form:user"),
    ],
)
def test_text_names_a_key_function(text, name):
    assert as_key_function(text).name == name


@pytest.mark.parametrize("by", ["", "IP", "header", "header:", "ip:", "body:x", ":x", 5, None, b"ip", ["ip"], {}])
def test_what_names_no_key_function_is_refused(by):
    with pytest.raises(ConfigurationError, match="^by "):
        as_key_function(by)


@pytest.mark.parametrize("make", [header, query, cookie, json_field, form_field])
@pytest.mark.parametrize("name", ["", None, 5, "a\nb", "\x00"])
def test_name_that_is_none_is_refused(make, name):
    with pytest.raises(ConfigurationError, match="not a name"):
        make(name)


def test_callable_gets_the_request(request_of):
    def tenant(request):
        return f"tenant:{request.header('X-Tenant')}:{request.method}:{request.path}"

    by = as_key_function(tenant)
    assert by(request_of({"x-tenant": "acme"})) == "tenant:acme:POST:/"
    assert by.name == "tenant"
    assert not by.is_claimed


def test_callable_reaches_what_is_native(request_of):
    request = request_of()
    assert as_key_function(lambda request: request.native["REMOTE_ADDR" if "REMOTE_ADDR" in request.native else "path"])(
        request
    )


def test_callable_that_answers_an_empty_text_is_a_400(ask):
    response = ask(by=lambda request: "")
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"
    assert "key function" in response.json()["detail"]


@pytest.mark.parametrize("answer", [b"hunter2", ["hunter2"], {"password": "hunter2"}, 1.5, True])
def test_callable_that_answers_a_wrong_type_is_a_bug_of_which_the_type_is_named_only(ask, answer, caplog):
    with pytest.raises(WrongTypeError, match=f"key function gave a value of the type {type(answer).__name__}") as caught:
        ask(by=lambda request: answer)
    assert "hunter2" not in f"{caught.value} {caplog.text}"
    assert type(answer).__name__ in caplog.text


def test_callable_may_answer_an_integer(ask, ratekit_store):
    ask(by=lambda request: 0)
    assert names_in(ratekit_store) == ["ratelimit:default:{0}:60s"]


def test_callable_that_raises_a_value_error_is_a_400(ask):
    response = ask(by=lambda request: f"user:{int('x')}")
    assert response.status_code == 400
    assert response.json()["status"] == 400


def test_callable_that_answers_none_leaves_the_request_alone_and_is_reported(ask, ratekit_store, caplog):
    noticed = []
    events.on_unlimited(noticed.append)
    for _ in range(3):
        response = ask(by=lambda request: None)
        assert response.status_code == 200
        assert "ratelimit-limit" not in response.headers
    assert len(ratekit_store) == 0
    assert passes == {"default": 3}
    assert [event.endpoint for event in noticed] == ["default"] * 3
    assert [record.levelname for record in caplog.records if record.name == "ratekit.web"] == ["WARNING"]


@pytest.mark.parametrize("first", ["query:q", lambda request: int("x")])
@pytest.mark.parametrize("second", ["json:user", "form:user"])
def test_chain_whose_first_choice_cannot_be_read_is_a_400(ask, first, second):
    many = "&".join(f"q{index}=1" for index in range(1500))
    response = ask(f"/?{many}", "POST", content=b"{}", by=first_of(first, second), address_limit="100/min")
    assert response.status_code == 400


def test_hashes_of_what_clients_send_have_the_key_of_the_environment(request_of, monkeypatch):
    sent = {"headers": {"X-Key": SECRET, "Cookie": f"k={SECRET}"}, "query_string": f"k={SECRET}"}
    functions = [header("X-Key"), cookie("k"), query("k")]
    without = {by(request_of(**sent)) for by in functions}
    monkeypatch.setenv("RATE_LIMIT_HASH_KEY", "s3cr3t")
    keyed = {by(request_of(**sent)) for by in functions}
    assert not keyed & without
    assert {subject.rpartition(":")[2] for subject in keyed} == {pseudonym(SECRET, "s3cr3t", digits=32)}


@pytest.mark.parametrize(
    ("by", "sent"),
    [
        (header("Authorization"), {"headers": {"Authorization": SECRET}}),
        (query("key"), {"url": f"/?key={SECRET}"}),
        (cookie("session"), {"headers": {"Cookie": f"session={SECRET}"}}),
        (json_field("key"), {"method": "POST", "content": json.dumps({"key": SECRET})}),
        (form_field("key"), {"method": "POST", "content": f"key={SECRET}", "headers": FORM}),
        (MOBILITY, {"headers": {"X-API-Key": SECRET}}),
    ],
    ids=["header", "query", "cookie", "json", "form", "chain"],
)
def test_secret_is_in_no_key_name(ask, ratekit_store, by, sent):
    assert ask(**sent, by=by, address_limit="100/min").status_code == 200
    names = names_in(ratekit_store)
    assert len(names) == 2
    assert not [name for name in names if SECRET in name]
    assert any(digest(SECRET) in name for name in names)


def test_value_is_readable_when_plain_is_asked_for(ask, ratekit_store):
    ask(headers={"X-User-Id": "ann 7{x}"}, by=header("X-User-Id", plain=True), address_limit="100/min")
    assert "ratelimit:default:{header:x-user-id:ann%207%7Bx%7D}:60s" in names_in(ratekit_store)


def test_default_is_the_address(ask, ratekit_store):
    ask(headers={"X-API-Key": "k", "X-Forwarded-For": "6.6.6.6"})
    assert names_in(ratekit_store) == ["ratelimit:default:{ip:192.0.2.7}:60s"]


@pytest.mark.parametrize("by", ["header:X-API-Key", "query:key", "cookie:session", "form:user"])
def test_who_does_not_say_is_known_by_the_address(ask, ratekit_store, by):
    ask(by=by, address_limit="100/min")
    assert "ratelimit:default:{ip:192.0.2.7}:60s" in names_in(ratekit_store)


def test_members_of_the_chain_have_counters_of_their_own(ask, ratekit_store):
    for headers in ({"X-API-Key": "same"}, {"X-User-Id": "same"}, {}):
        for _ in range(2):
            response = ask(headers=headers, by=MOBILITY, default="2/min", address_limit="100/min")
            assert response.status_code == 200
        assert ask(headers=headers, by=MOBILITY, default="2/min", address_limit="100/min").status_code == 429


def test_two_clients_behind_one_address_are_told_apart(ask):
    statuses = [
        ask(headers={"X-API-Key": key}, by=MOBILITY, default="1/min", address_limit="100/min").status_code for key in "abab"
    ]
    assert statuses == [200, 200, 429, 429]


@given(value=st.text(st.characters(codec="latin-1", exclude_characters="\r\n\x00"), min_size=1).map(str.strip))
def test_hashed_subject_is_of_one_form_whatever_the_value(value):
    for request_of in (asgi_request, wsgi_request):
        subject = header("X-API-Key")(request_of({"X-API-Key": value}))
        assert subject is None if not value else len(subject.removeprefix("header:x-api-key:")) == 32


def test_client_that_is_named_by_what_it_sends_is_counted_under_the_hash():
    subject = header("X-API-Key")(asgi_request({"X-API-Key": "a:b"}))
    assert counted_subject("header:X-API-Key:a:b") == subject
    assert counted_subject(subject) is None
    assert counted_subject("user:42") is None


@given(
    body=st.binary(max_size=200)
    | st.recursive(st.none() | st.text() | st.floats(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_any_body_gives_a_subject_or_none_or_is_unusable(body):
    for by in (json_field("0"), json_field("a.b"), form_field("a")):
        try:
            subject = by(asgi_request(FORM, body=body))
        except UnusableRequestError as error:
            assert error.status == 400
        else:
            assert subject is None or (isinstance(subject, str) and subject)


def test_lone_surrogate_in_json_is_a_subject_like_any_other(ask, ratekit_store):
    for by in (json_field("user"), json_field("user", plain=True)):
        response = ask(method="POST", content=rb'{"user": "\ud800"}', by=by, address_limit="100/min")
        assert response.status_code == 200
