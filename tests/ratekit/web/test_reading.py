"""ratekit limits by what the application behind reads, or does not guess: odd requests through every front."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from functools import cache
from random import Random

import pytest

from ratekit.core.keys import LONGEST_PART
from support import django_ready  # noqa: F401
from support.odd_requests import HEADER, NAME, Sent, draw
from support.reading_fronts import ADDRESS, FRONTS, Front, Outcome, kinds_of

# Starlette forgets the file of a multipart form that ends too early.
pytestmark = pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning")
FUZZ = int(os.environ.get("RATEKIT_FUZZ", "1"))
REQUESTS = 80 * FUZZ  # of each kind, through each front
CASES = [(front, kind) for front in FRONTS for kind in kinds_of(front)]


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Frameworks log each request that they cannot read."""
    for name in ("django", "ratekit", "reading", "asyncio"):
        caplog.set_level(logging.CRITICAL, name)


@cache
def front_of(name: str, kind: str) -> Front:
    return Front(kind, FRONTS[name])


def disagreement(front: str, kind: str, outcome: Outcome) -> str | None:
    """Say what is wrong with whom ratekit has limited, None if nothing is."""
    if not outcome.read:  # refused, or the application cannot read the request either
        return None
    (value,) = outcome.read
    allowed = {label(one, value) for one in (("json", "form") if kind == "either" else (kind,))} if value else {ADDRESS}
    if kind in ("header", "cookie"):
        allowed |= {ADDRESS, *(label(kind, one) for one in once(value or ""))}
    if outcome.subject in allowed:
        return None
    if front == "django_rest_framework" and kind != "form" and not value:
        return None  # a view that reads the body itself reads JSON whatever its label says
    return f"limits {outcome.subject!r} where the application reads {value!r}"


def once(value: str) -> list[str]:
    """What a header was that Django has joined of equal lines."""
    parts = value.split(",")
    return [",".join(parts[:size]) for size in range(1, len(parts)) if parts[:size] * (len(parts) // size) == parts]


def label(kind: str, value: str) -> str:
    """The subject of a value; a long one is hashed."""
    subject = f"{kind}:{HEADER if kind == 'header' else NAME}:{value}"
    encoded = subject.encode("utf-8", "surrogatepass")
    return subject if len(encoded) <= LONGEST_PART else f"sha256-{hashlib.sha256(encoded).hexdigest()}"


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_application_reads_whom_ratekit_limits(name, kind, ratekit_store):
    front, rng = front_of(name, kind), Random(f"{name} {kind} {FUZZ}")
    outcomes: Counter[str] = Counter()
    for number in range(REQUESTS):
        sent = draw(kind, rng)
        outcome = front.ask(sent)
        assert disagreement(name, kind, outcome) is None, (sent, disagreement(name, kind, outcome))
        outcomes["read" if outcome.read else f"{outcome.status}"] += 1
        if number % 500 == 499:
            ratekit_store.clear()
    assert outcomes["read"] > REQUESTS // 5, outcomes


FORM, JSON = b"application/x-www-form-urlencoded", b"application/json"


def posted(body: bytes, label: bytes = FORM) -> Sent:
    return Sent("POST", headers=[(b"content-type", label)], body=body)


def parts(*values: bytes) -> Sent:
    """A multipart form as browsers send it, with a file."""
    texts = [b'name="key"\r\n\r\n' + value for value in values]
    file = b'name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n\x89\xff'
    body = b"".join(b"--b\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in [*texts, file])
    return posted(body + b"--b--\r\n", b"multipart/form-data; boundary=b")


def cookies(line: bytes) -> Sent:
    return Sent(headers=[(b"cookie", line)])


USUAL = [
    ("query", Sent(query=b"other=1&key=ann"), "ann"),
    ("query", Sent(query=b"key=a%20b+c"), "a b c"),
    ("query", Sent(query=b"key=%C3%BC"), "ü"),
    ("query", Sent(query=b"key=ann&key=ann"), "ann"),
    ("header", Sent(headers=[(b"x-key", b"ann")]), "ann"),
    ("cookie", cookies(b"a=1; key=ann; b=2"), "ann"),
    ("cookie", cookies(b'key="ann"'), "ann"),
    ("cookie", cookies(b'key="\\141nn"'), "ann"),
    ("form", posted(b"key=ann&x=%FF"), "ann"),
    ("form", posted(b"key=a%40b.c", FORM + b"; charset=UTF-8"), "a@b.c"),
    ("form", parts(b"ann"), "ann"),
    ("form", parts("ü\r\nb".encode()), "ü\r\nb"),
    ("form", parts(b"ann", b"ann"), "ann"),
    ("json", posted(b'{"key": "ann"}', JSON), "ann"),
    ("json", posted('{"key": "ü"}'.encode(), JSON + b"; charset=utf-8"), "ü"),
    ("json", posted(b'{"key": 42}', JSON), "42"),
    ("json", posted(b'{"key": "a", "key": "a", "b": 1, "b": 2}', JSON), "a"),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_usual_requests_are_read_by_every_front(name, kind, ratekit_store):
    for _, sent, value in (row for row in USUAL if row[0] == kind):
        assert front_of(name, kind).ask(sent) == Outcome(200, label(kind, value), [value]), sent


ODD = [
    ("query", Sent(query=b"key=x&key=victim")),
    ("query", Sent(query=b"key=&key=victim")),
    ("form", posted(b"key=x&key=victim")),
    ("form", parts(b"x", b"victim")),
    ("json", posted(b'{"key": "x", "key": "victim"}', JSON)),
    ("json", posted(b'{"key": "x", "a": "&key=victim&"}')),
    ("query", Sent(query=b"&".join(b"q%d=1" % number for number in range(1500)))),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_request_of_which_it_is_open_who_it_is_is_a_400_in_every_front(name, kind, ratekit_store):
    for _, sent in (row for row in ODD if row[0] == kind):
        outcome = front_of(name, kind).ask(sent)
        assert (outcome.subject, outcome.read) == (None, []), sent
        assert outcome.status in ((400, 422) if name == "fastapi_parameter" else (400,)), sent


INNOCENT = [
    ("cookie", cookies(b"key=a; key=b")),
    ("cookie", cookies(b"key=; key=V")),
    ("cookie", cookies(b"key=V; key=")),
    ("header", Sent(headers=[(b"x-key", b"a"), (b"x-key", b"b")])),
]
JOINED = {
    "django_wsgi",
    "django_behind_wsgi",
    "flask_behind_wsgi",
    "flask_view",
}  # the server has made one line of several headers


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_several_cookies_and_headers_are_limited_by_the_address_in_every_front(name, kind, ratekit_store):
    for _, sent in (row for row in INNOCENT if row[0] == kind):
        outcome = front_of(name, kind).ask(sent)
        assert outcome.status == 200
        assert outcome.subject == (label(kind, "a,b") if kind == "header" and name in JOINED else ADDRESS), sent
