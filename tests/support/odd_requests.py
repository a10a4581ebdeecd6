"""Requests that can be read in several ways, drawn at random: queries, headers, cookies, forms, multipart forms, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

Value = TypeVar("Value")
NAME = "key"  # of the parameter, cookie or field that is asked for
HEADER = "x-key"
ODD = 0.1  # the share of odd choices; a request has some ten of them
TEXTS = [
    "ann", "bob", "victim", "", " ", "a b", " ann ", "ü", "é", "\u2003", "a,b", "a;b", "a=b", "a&b", '"q"', "+", "%41",
    "a\\b", "1", "42", "null", "\x00", "\x7f", "\N{MATHEMATICAL SCRIPT CAPITAL A}", "\N{LATIN SMALL LIGATURE FI}", "Ann",
    "x--b", "\ufeff", "a\r\nb",
]  # fmt: skip


@dataclass(frozen=True)
class Sent:
    """A request as it comes over the network."""

    method: str = "GET"
    query: bytes = b""
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    joined_by: bytes = b","  # how a WSGI server joins lines of one header
    chunks: int = field(default=1, compare=False)  # in which the body comes
    path: str = "/"  # decoded, as servers hand it on


def draw(kind: str, rng: Random) -> Sent:
    """Draw a request that says who it is in a query, header, cookie, form or JSON body."""
    sent = _DRAWN[kind](rng)
    return replace(sent, headers=[*sent.headers, *sent.headers[:1]]) if rng.random() < ODD / 2 else sent


def mostly(rng: Random, usual: Sequence[Value], odd: Sequence[Value]) -> Value:
    """Draw what is usual, and now and then what is odd."""
    return rng.choice(odd if rng.random() < ODD else usual)


def some(rng: Random) -> range:
    """Draw how many there are of something."""
    return range(rng.choice([0, 1, 1, 1, 1, 1, 2, 2, 3]))


CHARSETS = [b"; charset=latin-1", b"; charset=utf-7", b"; charset=utf-16", b"; charset=nonsense", b'; x="; charset=utf-7"']


def _query(rng: Random) -> Sent:
    charset = mostly(rng, [b""], CHARSETS)
    lines = [(b"content-type", b"text/plain" + charset)] if charset else []
    return Sent(rng.choice(["GET", "POST", "HEAD"]), _pairs(rng), lines)


def _header(rng: Random) -> Sent:
    values = [text.encode("latin-1", "replace").translate(None, b"\r\n\x00") for text in TEXTS]
    lines = [(mostly(rng, [HEADER.encode()], [b"x_key", b"x-other"]), rng.choice(values)) for _ in some(rng)]
    return Sent("GET", headers=lines)


COOKIE_NAMES = [b" key ", b"key\t", b"KEY", b"key\xa0", b"key\xe2\x80\x83", b"\xa0key", b"other", b"", b'"key"', b"k=key"]
COOKIES = [b"ann", b"bob", b"V", b"", b"a,b", b"{x}", b"a=b", b"a b", b"%41", b"\xc3\xa9", b"\xe9", b"a\\b", b'a"b', b"\va"]
QUOTED = [b"a", b"", b"\\141bc", b'a\\"b', b"\\303\\251", b"\\054", b"a;b", b"; key=V", b"\\", b"\\999"]


def _cookie(rng: Random) -> Sent:
    lines = [(b"cookie", _cookie_line(rng)) for _ in range(mostly(rng, [1], [2]))]
    return Sent("GET", headers=lines, joined_by=rng.choice([b",", b"; ", b", "]))


def _cookie_line(rng: Random) -> bytes:
    def one() -> bytes:
        quoted = b'"' + rng.choice(QUOTED) + mostly(rng, [b'"'], [b"", b'"x'])
        text = rng.choice(COOKIES) if rng.random() < 0.6 else quoted
        return mostly(rng, [b"key"], COOKIE_NAMES) + mostly(rng, [b"="], [b" = ", b"= ", b""]) + text

    return mostly(rng, [b"; ", b";"], [b" ; ", b";;", b","]).join(one() for _ in some(rng))


PAIR_NAMES = [b"Key", b"key[]", b"k%65y", b"key+", b"+key", b"other", b"", b"k\xe9y", b"key%00", b"%6bey", b"key;"]
RAW = [b"%FF", b"%FE", b"%E9", b"%zz", b"%", b"\xff", b"\xe9", b"\xc3\xa9", b"%ED%A0%80", b"%00", b"%u0041", b"%c3%A9"]
ENCODINGS: list[Callable[[str], bytes]] = [
    lambda text: quote(text).encode(),
    lambda text: quote_plus(text).encode(),
    lambda text: quote(text, safe=";,=+ ").encode(),
    lambda text: text.encode().translate(None, b"&=\r\n\x00 "),
    lambda text: quote(text.encode("latin-1", "replace")).encode(),
    lambda text: quote(text.encode("utf-16")).encode(),
]


def _pairs(rng: Random) -> bytes:
    def one() -> bytes:
        value = mostly(rng, ENCODINGS[:2], ENCODINGS)(rng.choice(TEXTS)) + mostly(rng, [b""], RAW)
        return mostly(rng, [b"key"], PAIR_NAMES) + mostly(rng, [b"="], [b"", b"=="]) + value

    return mostly(rng, [b"&"], [b";", b"&&"]).join(one() for _ in some(rng))


FORM, MULTIPART, JSON = b"application/x-www-form-urlencoded", b"multipart/form-data", b"application/json"
LABELS = [
    b"Application/X-WWW-Form-Urlencoded", FORM + b" ", FORM + b"\xa0", b" " + FORM, FORM + b", " + FORM, FORM + b";;", b"",
    b"text/plain", JSON, JSON + b"; charset=iso-8859-1", b"application/vnd.api+json", FORM, MULTIPART,
    MULTIPART + b"; boundary=b", b"multipart/mixed; boundary=b", *[FORM + charset for charset in CHARSETS],
    *[JSON + charset for charset in CHARSETS],
]  # fmt: skip


def _form(rng: Random) -> Sent:
    if rng.random() < 0.5:
        return _multipart(rng)
    return _posted(rng, mostly(rng, [FORM, FORM + b"; charset=utf-8"], LABELS), mostly(rng, [_pairs], [_json_text])(rng))


def _json(rng: Random) -> Sent:
    label = rng.choice(LABELS) if rng.random() < 0.3 else rng.choice([JSON, JSON + b"; charset=utf-8"])
    return _posted(rng, label, mostly(rng, [_json_text], [_pairs])(rng))


def _posted(rng: Random, label: bytes, body: bytes) -> Sent:
    lines = [(b"content-type", one) for one in (label, mostly(rng, [b""], LABELS)) if one]
    return Sent("POST", headers=lines, body=body, chunks=rng.choice([1, 1, 2, 5]))


def _multipart(rng: Random) -> Sent:
    boundary = mostly(rng, [b"b", b"----WebKitFormBoundaryX"], [b"b=b", b"a b"])
    usual = [b"boundary=" + boundary, b'boundary="' + boundary + b'"', b"boundary=" + boundary + b"; charset=utf-8"]
    odd = [
        b"charset=latin-1; boundary=" + boundary, b"boundary=other; boundary=" + boundary, b"boundary*=utf-8''" + boundary,
        b"Boundary=" + boundary, b"boundary=", b"x=y", b"boundary=" + boundary + b"; charset=utf-7",
    ]  # fmt: skip
    kind = mostly(rng, [MULTIPART], [b"Multipart/Form-Data"])
    return _posted(rng, kind + b"; " + mostly(rng, usual, odd), _multipart_body(rng, boundary))


def _multipart_body(rng: Random, boundary: bytes) -> bytes:
    end, delimiter = mostly(rng, [b"\r\n"], [b"\n"]), b"--" + boundary
    start = mostly(rng, [b""], [b"\r\n", b"preamble\r\n", b"\n"])
    parts = b"".join(delimiter + end + _part(rng, boundary, end) + end for _ in some(rng))
    last = mostly(rng, [b"--" + end], [b"--", b"--" + end + b"epilogue", b"", end, b"-- " + end])
    late = delimiter + end + _part(rng, boundary, end) + end + delimiter + b"--"
    return start + parts + delimiter + last + mostly(rng, [b""], [late])


DISPOSITIONS = [
    b"form-data; name=key", b'form-data;name="key"', b'form-data; name=" key "', b'form-data; name="k\\ey"',
    b'form-data; name="key"; filename="f"', b'form-data; name="key"; filename=""', b'form-data; filename="key"',
    b"form-data; name*=utf-8''key", b'form-data; name="other"; name="key"', b'attachment; name="key"',
    b'form-data; name="other"; filename="a\\"; name=\\"key"', b'form-data; name="key"; filename*=utf-8\'\'f',
    b'FORM-DATA; NAME="key"', b'form-data; name="k\xe9y"',
]  # fmt: skip
PART_HEADERS = [
    b"Content-Type: text/plain; charset=utf-8", b"Content-Type: text/plain; charset=iso-8859-1", b" folded", b"X: y",
    b"Content-Type: application/octet-stream", b"Content-Transfer-Encoding: base64", b"Content-Transfer-Encoding: 8bit",
    b"Content-Transfer-Encoding: quoted-printable", b'Content-Disposition: form-data; name="other"',
]  # fmt: skip


def _part(rng: Random, boundary: bytes, end: bytes) -> bytes:
    name = mostly(rng, [b"Content-Disposition"], [b"content-disposition", b"Content-Disposition "])
    disposition = mostly(rng, [b'form-data; name="key"'] * 3 + [b'form-data; name="other"; filename="f"'], DISPOSITIONS)
    header = mostly(rng, [b"", b"Content-Type: text/plain"], PART_HEADERS)
    text = rng.choice(TEXTS).encode(mostly(rng, ["utf-8"], ["utf-16"]))
    content = mostly(rng, [text], [b"\xff\xfe", b"YW5u", b"a--" + boundary, b"a\n--" + boundary, b"a=E9", b""])
    return end.join([name + b": " + disposition, *([header] if header else [])]) + end + end + content


JSON_VALUES: list[Any] = [*TEXTS[:20], 1, 1.0, 10**20, 1.5, True, False, None, 42, [], {}, ["ann"], {"key": "ann"}]
POLYGLOTS = ["&key=victim&", "\r\n--b\r\n", "+AHY-ictim", "key=victim"]
SHAPES = ["[{%s}]", "{%s", " {%s} ", "{%s}x", "{%s,}", '{"a":{%s}}']


def _json_text(rng: Random) -> bytes:
    def pair() -> str:
        name = json.dumps(mostly(rng, ["key"], ["Key", "other", ""]))
        value = json.dumps(mostly(rng, JSON_VALUES, POLYGLOTS), ensure_ascii=rng.random() < 0.5)
        return mostly(rng, [name], [name.replace("k", "\\u006b")]) + ":" + value

    text = mostly(rng, ["{%s}"], SHAPES) % ",".join(pair() for _ in some(rng))
    return text.encode(mostly(rng, ["utf-8"], ["utf-16", "utf-8-sig", "utf-32-be"]))


_DRAWN: dict[str, Callable[[Random], Sent]] = {
    "query": _query,
    "header": _header,
    "cookie": _cookie,
    "form": _form,
    "json": _json,
    "either": lambda rng: rng.choice([_form, _json])(rng),
}

PATHS = ["/a", "/items/7", "/items/x y", "/files/x", "/files/x/y", "/files/", "/deep/x/b/y/c", "/other"]
TURNS: list[Callable[[str], str]] = [
    lambda path: path + "\n",
    lambda path: path + "/",
    lambda path: path + "//",
    lambda path: path.replace("/", "//", 1),
    lambda path: path[1:].replace("/", "//") + "/",
    lambda path: path.upper(),
    lambda path: path + ";x=1",
    lambda path: path + "\x00",
    lambda path: path + "\r",
    lambda path: path + "\u2028",
    lambda path: path + " ",
    lambda path: "/." + path,
    lambda path: "/x/.." + path,
    lambda path: path + "/.",
    lambda path: path.replace("/", "\\"),
    lambda path: path.replace("/", "%2F"),
    lambda path: path + "\n\n",
    lambda path: path + "/\n",
    lambda path: "\n" + path,
    lambda path: path.replace("7", "\u0667"),
    lambda path: path + "\ufffd",
    lambda path: path + "?",
]
METHODS = ["GET", "POST", "HEAD", "OPTIONS"]
ODD_METHODS = ["get", "post", "Post", "PUT", "FOO", "FOO1", "head", "options", "QUERY"]


def draw_route(rng: Random) -> Sent:
    """Draw a request whose method or path may be read in several ways."""
    path = rng.choice(PATHS)
    for _ in range(mostly(rng, [0, 1], [2, 3])):
        path = rng.choice(TURNS)(path)
    return Sent(mostly(rng, METHODS, ODD_METHODS), path="/" + path.removeprefix("/"))
