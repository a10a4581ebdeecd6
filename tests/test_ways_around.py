"""Nothing gets past a limit over real sockets: odd requests, byte by byte, to each framework under each server."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import websockets

from support.servers import free_port, serving

TESTS = Path(__file__).parent
UVICORN = ["uvicorn", "--lifespan=off", "--forwarded-allow-ips=*", "--port={port}"]
SERVERS = {
    "h11": [*UVICORN, "--http=h11"],
    "httptools": [*UVICORN, "--http=httptools"],
    "gunicorn": ["gunicorn", "--threads=4", "--bind=127.0.0.1:{port}"],
    "waitress": ["waitress", "--listen=127.0.0.1:{port}"],
    "werkzeug": ["support.werkzeug_server", "{port}"],
}
SITES = [
    *((server, app) for server in ("h11", "httptools") for app in ("starlette", "fastapi", "django_asgi")),
    *((server, app) for server in ("gunicorn", "waitress", "werkzeug") for app in ("flask_app", "django_wsgi")),
]
MOST = 2  # of each limit


class Answer(NamedTuple):
    status: int
    body: str


class Site:
    """A site under a server. Each request has a connection of its own."""

    def __init__(self, server: str, app: str, port: int) -> None:
        self.server, self.app, self.port = server, app, port

    def ask(self, method: str, target: str, *lines: str, body: bytes = b"") -> Answer:
        head = [f"{method} {target} HTTP/1.1", "Host: api", "Connection: close", f"Content-Length: {len(body)}", *lines]
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            connection.sendall("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
            reply = b""
            while chunk := connection.recv(65536):
                reply += chunk
        head_of_reply, _, content = reply.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head_of_reply.lower():
            content = b"".join(content.split(b"\r\n")[1::2])
        return Answer(int(head_of_reply.split(b" ", 2)[1]), content.decode("latin-1"))

    def pipeline(self, requests: bytes) -> bytes:
        """Send several requests at once over one connection, the last of which closes it, and return all that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            connection.sendall(requests)
            reply = b""
            while chunk := connection.recv(65536):
                reply += chunk
        return reply

    def read(self, answers: list[Answer], victim: str) -> int:
        """How many requests have reached the site as the victim's."""
        return sum(answer.status == 200 and answer.body == victim for answer in answers)


@pytest.fixture(scope="module", params=SITES, ids=["-".join(site) for site in SITES])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    server, app = request.param
    port = free_port()
    command = [part.format(port=port) for part in SERVERS[server]] + [f"support.ways_around_site:{app}"]
    folder = tmp_path_factory.mktemp("served")
    with serving([sys.executable, "-m", *command], port, folder, PYTHONPATH=f"{TESTS}:{TESTS.parent}"):
        yield Site(server, app, port)


FORM = "Content-Type: application/x-www-form-urlencoded"


def form(site: Site, body: str, method: str = "POST", target: str = "/form") -> Answer:
    return site.ask(method, target, FORM, body=body.encode())


def test_plain_requests_pass_up_to_the_limit(site):
    assert [form(site, "email=plain").status for _ in range(4)] == [200, 200, 429, 429]
    assert [site.ask("GET", "/query?email=plain").status for _ in range(4)] == [200, 200, 429, 429]


def test_options_and_invented_methods_are_limited_and_leave_the_budget_of_requests(site):
    assert sum(site.ask("OPTIONS", "/methods").status == 200 for _ in range(6)) <= MOST
    assert site.ask("GET", "/methods").status == 200
    answers = [site.ask(f"FOO{number}", "/methods").status for number in range(6)]
    assert answers.count(200) <= MOST - 1
    assert all(status in (200, 400, 405, 429, 501) for status in answers)


def test_method_in_lower_case_meets_the_same_limit(site):
    answers = [form(site, "email=lower", method) for method in ("post", "Post", "pOsT", "POST", "post", "POST")]
    assert site.read(answers, "lower") <= MOST


@pytest.mark.parametrize(
    "odd", ["email=x{n}&email=dup", "email=dup&email=x{n}", "email=&email=dup", "email=x{n};&email=dup"]
)
def test_several_values_of_a_field_are_one_subject_or_none(site, odd):
    victim = f"dup{abs(hash(odd)) % 1000}"
    bodies = [odd.format(n=number).replace("dup", victim) for number in range(6)]
    assert site.read([form(site, body) for body in bodies], victim) <= MOST
    assert site.read([site.ask("GET", f"/query?{body}") for body in bodies], f"q{victim}") <= MOST


def test_several_values_in_a_query_are_one_subject_or_none(site):
    answers = [site.ask("GET", f"/query?email=x{number}&email=qdup") for number in range(6)]
    assert site.read(answers, "qdup") <= MOST


def test_several_cookies_are_limited(site):
    lines = ["x{n}; email=ck", "; email=ck", "ck; email=x{n}", '"\\143k"', "ck", "ck; other=x{n}"]
    answers = [site.ask("GET", "/cookie", f"Cookie: email={line.format(n=n)}") for n, line in enumerate(lines * 3)]
    # Who sends several is limited by the address; who sends one, by it.
    assert site.read(answers, "ck") <= 2 * MOST


def test_duplicate_keys_of_json_are_one_subject_or_none(site):
    bodies = [f'{{"email": "x{number}", "email": "js"}}' for number in range(6)]
    answers = [site.ask("POST", "/json", "Content-Type: application/json", body=body.encode()) for body in bodies]
    assert site.read(answers, "js") <= MOST


def test_json_with_the_label_of_a_form_is_no_way_around(site):
    labels = ["multipart/form-data; boundary=b", "application/x-www-form-urlencoded", "text/plain", "application/json"]
    body = json.dumps({"email": "label"}).encode()
    answers = [site.ask("POST", "/json", f"Content-Type: {label}", body=body) for label in labels * 3]
    assert site.read(answers, "label") <= 2 * MOST  # by the field, or by the address


def multipart(*values: str) -> bytes:
    parts = "".join(f'--b\r\nContent-Disposition: form-data; name="email"\r\n\r\n{value}\r\n' for value in values)
    return f"{parts}--b--\r\n".encode()


def test_multipart_form_is_read_and_spellings_are_one_subject(site):
    bodies = [multipart("multi"), multipart("Multi"), multipart(" multi "), multipart("MULTI"), multipart("multi"), b""]
    answers = [site.ask("POST", "/form", "Content-Type: multipart/form-data; boundary=b", body=body) for body in bodies]
    answers += [form(site, "email=multi"), form(site, "email=%20Multi+")]
    assert site.read(answers, "multi") == MOST


def test_path_that_makes_patterns_backtrack_is_answered_at_once(site):
    path = "/deep" + "/x/y" * 1000
    started = time.monotonic()
    statuses = [site.ask("GET", path).status for _ in range(3)]
    assert time.monotonic() - started < 5, statuses


def test_path_with_a_line_break_is_no_way_around(site):
    answers = [form(site, "email=break", target=target) for target in ("/form%0A", "/form", "/form%0a", "/form", "/form%0A")]
    assert site.read(answers, "break") <= MOST


SPELLINGS = [
    "/query", "/query/", "//query", "/./query", "/x/../query", "/x/%2e%2e/query", "/%71uery", "/%2571uery", "/query;a=b",
    "/QUERY", "/query%00", "/query%20", "/query%2F", "/%2fquery", "/query%3b", "/query%C2%A0", "/query%E2%80%A8",
    "/query%FF", "/query%1c", "/\\query", "http://other/query", "/static/../query", "/static/%2e%2e/query",
]  # fmt: skip


def test_spelling_of_a_path_is_no_way_around(site):
    answers = [site.ask("GET", f"{path}?email=spelt") for path in ["/query", *SPELLINGS, *SPELLINGS[:8]]]
    assert site.read(answers, "spelt") <= MOST
    assert not [path for path, answer in zip(SPELLINGS, answers[1:], strict=False) if answer.status >= 500]


def chunked(text: str) -> bytes:
    return b"".join(b"1;x=y\r\n" + bytes([byte]) + b"\r\n" for byte in text.encode()) + b"0\r\n\r\n"


def request(method: str, target: str, *lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/{version}", "Host: api", *lines, "", ""]).encode()


def test_body_in_chunks_is_read_like_any_other(site):
    head = request("POST", "/form", FORM, "Transfer-Encoding: chunked", "Connection: close")
    replies = [site.pipeline(head + chunked("email=chunks")) for _ in range(4)]
    answers = [Answer(int(reply.split(b" ", 2)[1]), "chunks" if b"chunks" in reply else "") for reply in replies]
    assert site.read(answers, "chunks") <= MOST
    assert all(answer.status in (200, 400, 411, 429) for answer in answers)


def test_requests_that_are_sent_at_once_over_one_connection_are_all_counted(site):
    first = request("GET", "/query?email=pipe")
    last = request("GET", "/query?email=pipe", "Connection: close")
    replies = site.pipeline(first * 5 + last) + site.pipeline(request("GET", "/query?email=pipe", version="1.0"))
    assert replies.count(b" 200 OK") == MOST
    assert replies.count(b"pipe") <= MOST


def test_cookies_in_several_lines_are_one_subject_or_the_address(site):
    lines = [("Cookie: email=x{n}", "Cookie: email=lined"), ("Cookie: email=lined", "Cookie: email=x{n}")]
    answers = [site.ask("GET", "/cookie", *(line.format(n=n) for line in lines[n % 2])) for n in range(8)]
    assert site.read(answers, "lined") <= 2 * MOST


def test_peer_that_is_no_address_is_limited(site):
    names = ["unknown", "unknown", "_hidden", "not-an-address", "unknown:80", "x"]
    answers = [site.ask("GET", "/peer", f"X-Forwarded-For: {name}") for name in names]
    assert [answer.status for answer in answers].count(200) <= MOST


def test_typed_mount_is_one_endpoint_whatever_the_spelling(site):
    if site.app != "fastapi":
        return
    answers = [site.ask("GET", f"/tenants/{zeros}1/page") for zeros in ("", "0", "00", "000", "0000")]
    assert [answer.status for answer in answers] == [200, 200, 429, 429, 429]


def test_each_message_of_a_websocket_is_decided(site):
    if site.app != "fastapi":
        return

    async def talk() -> list[str]:
        async with websockets.connect(f"ws://127.0.0.1:{site.port}/ws") as connection:
            said = []
            for _ in range(6):
                await connection.send("hello")
                said.append(str(await connection.recv()))
            return said

    assert asyncio.run(talk()) == ["passed"] * 2 + ["refused"] * 4
