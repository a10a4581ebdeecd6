"""The WSGI middleware: what it does to responses, slots and bodies; with the validator, in Flask, under waitress."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import flask
import httpx2
import pytest

from ratekit import Limit, RateLimiter
from ratekit.web.identity import form_field, json_field
from ratekit.wsgi import RateLimitMiddleware
from support.servers import free_port, serving, wait_until

ONE_SLOT = Limit(1, 600, algorithm="concurrency", name="slots")
TEXT = [("Content-Type", "text/plain")]
pytestmark = pytest.mark.usefixtures("ratekit_store")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Server:
    """A server of one request: it starts the response, iterates over it, and closes it, each when it is told to."""

    def __init__(self, app, path="/", body=b"", **environ) -> None:
        self.environ = {"SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": "", "REMOTE_ADDR": "192.0.2.7"}
        self.environ |= {"wsgi.input": io.BytesIO(body)}
        self.environ |= {"CONTENT_LENGTH": str(len(body))} if body else {}
        self.environ |= environ
        setup_testing_defaults(self.environ)
        self.starts: list[tuple] = []
        self.written: list[bytes] = []
        self.response = app(self.environ, self.start_response)
        self.chunks = iter(self.response)

    def start_response(self, status, headers, exc_info=None):
        self.starts.append((status, headers, exc_info))
        return self.written.append

    def close(self) -> None:
        if hasattr(self.response, "close"):
            self.response.close()

    def answer(self) -> Answer:
        """Do the rest."""
        try:
            body = b"".join(self.chunks)
        finally:
            self.close()
        status, headers, _ = self.starts[-1]
        assert len({name.lower() for name, _ in headers}) == len(headers)
        return Answer(int(status[:3]), {name.lower(): value for name, value in headers}, b"".join(self.written) + body)


def ask(app, path="/", body=b"", **environ) -> Answer:
    return Server(app, path, body, **environ).answer()


def status(app, path="/", **environ) -> int:
    return ask(app, path, **environ).status


def plain(environ, start_response):
    start_response("200 OK", TEXT)
    return [b"ok"]


def streaming(environ, start_response):
    start_response("200 OK", TEXT)

    def chunks():
        yield b"a"
        yield b"b"

    return chunks()


class Body:
    """The body of a response that knows how often it was closed."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks, self.closed, self.taken = list(chunks), 0, 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.taken += 1
            yield chunk

    def close(self) -> None:
        self.closed += 1

    def __call__(self, environ, start_response):
        start_response("200 OK", TEXT)
        return self


def echo(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", TEXT)
    return [body]


def validated(app, **options):
    """A middleware with the validator on both of its sides, as a server and an application would see it."""
    return validator(RateLimitMiddleware(validator(app), **options))


def test_middleware_keeps_to_the_standard_when_it_passes_on_and_when_it_refuses():
    app = validated(plain, default="1/min")
    assert ask(app).headers["ratelimit-remaining"] == "0"
    refused = ask(app)
    assert refused.status == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["content-length"] == str(len(refused.body))
    assert json.loads(refused.body)["status"] == 429


@pytest.mark.parametrize("app", [plain, streaming, Body(b"a", b"b")], ids=["list", "generator", "object"])
@pytest.mark.parametrize("limit", ["9/min", ONE_SLOT], ids=["rate", "slot"])
def test_every_kind_of_body_keeps_to_the_standard(app, limit):
    limited = validated(app, default=limit)
    assert [status(limited) for _ in range(3)] == [200] * 3
    assert ask(limited).body in (b"ok", b"ab")


def test_refusal_starts_once_and_the_application_is_not_called():
    body = Body(b"a")
    limited = RateLimitMiddleware(body, default="1/min")
    ask(limited)
    server = Server(limited)
    assert [start[0] for start in server.starts] == ["429 Too Many Requests"]
    assert server.answer().headers["retry-after"]
    assert body.taken == 1


@pytest.mark.parametrize("limit", ["9/min", ONE_SLOT], ids=["rate", "slot"])
def test_response_is_closed_once(limit):
    body = Body(b"a", b"b")
    server = Server(RateLimitMiddleware(body, default=limit))
    assert server.answer().body == b"ab"
    assert body.closed == 1


def test_response_is_closed_once_when_the_client_has_hung_up():
    body = Body(b"a", b"b")
    server = Server(RateLimitMiddleware(body, default="9/min"))
    assert next(server.chunks) == b"a"
    server.close()
    assert (body.closed, body.taken) == (1, 1)


def test_chunks_are_taken_as_they_are_asked_for():
    body = Body(b"a", b"b", b"c")
    server = Server(RateLimitMiddleware(body, default="9/min"))
    assert body.taken == 0
    assert [next(server.chunks), body.taken, next(server.chunks), body.taken] == [b"a", 1, b"b", 2]
    server.close()


def test_slot_is_held_until_the_response_is_closed():
    limited = RateLimitMiddleware(streaming, default=ONE_SLOT)
    server = Server(limited)
    assert status(limited) == 429
    assert list(server.chunks) == [b"a", b"b"]
    assert status(limited) == 429
    server.close()
    assert status(limited) == 200


def test_slot_is_freed_when_the_response_is_closed_before_its_end():
    limited = RateLimitMiddleware(streaming, default=ONE_SLOT)
    server = Server(limited)
    next(server.chunks)
    server.close()
    assert status(limited) == 200


def test_slot_is_freed_when_the_response_is_closed_unread():
    limited = RateLimitMiddleware(streaming, default=ONE_SLOT)
    Server(limited).close()
    assert status(limited) == 200


def test_slot_is_freed_when_the_application_raises():
    def app(environ, start_response):
        raise RuntimeError("broken")

    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="broken"):
            ask(limited)


def test_slot_is_freed_when_the_application_raises_while_it_streams():
    def app(environ, start_response):
        start_response("200 OK", TEXT)
        yield b"a"
        raise RuntimeError("broken")

    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="broken"):
            ask(limited)


def test_slot_is_freed_when_deciding_raises(ratekit_store):
    class Broken(RateLimiter):
        def decide(self, call, *mode):
            super().decide(call, *mode)
            raise RuntimeError("broken")

    limited = RateLimitMiddleware(plain, address_limit=ONE_SLOT, limiter=Broken(ratekit_store))
    with pytest.raises(RuntimeError, match="broken"):
        ask(limited)
    assert ask(RateLimitMiddleware(plain, address_limit=ONE_SLOT)).status == 200


def test_slot_is_freed_when_closing_the_response_raises():
    class Broken(Body):
        def close(self) -> None:
            raise RuntimeError("broken")

    limited = RateLimitMiddleware(Broken(b"a"), default=ONE_SLOT)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            ask(limited)


def test_slot_that_is_closed_twice_is_freed_once():
    limited = RateLimitMiddleware(streaming, default=Limit(1, 600, algorithm="concurrency"))
    first = Server(limited)
    first.close()
    second = Server(limited)
    first.close()
    assert status(limited) == 429
    second.close()


def test_forgotten_slot_is_free_after_its_window(ratekit_clock):
    limited = RateLimitMiddleware(streaming, default=ONE_SLOT)
    forgotten = Server(limited)
    assert status(limited) == 429
    ratekit_clock.advance(601)
    assert status(limited) == 200
    forgotten.close()


def test_headers_are_written_when_the_response_starts_late():
    def app(environ, start_response):
        yield b""
        start_response("200 OK", TEXT)
        yield b"late"

    limited = RateLimitMiddleware(app, default="9/min")
    server = Server(limited)
    assert server.starts == []
    answer = server.answer()
    assert answer.body == b"late"
    assert answer.headers["ratelimit-remaining"] == "8"


def test_application_may_start_anew_with_what_went_wrong():
    def app(environ, start_response):
        start_response("200 OK", TEXT)
        try:
            raise RuntimeError("broken")
        except RuntimeError:
            start_response("500 Internal Server Error", TEXT, sys.exc_info())
        return [b"sorry"]

    server = Server(RateLimitMiddleware(app, default="9/min"))
    answer = server.answer()
    assert (answer.status, answer.body) == (500, b"sorry")
    assert answer.headers["ratelimit-remaining"] == "8"
    assert server.starts[0][2] is None
    assert str(server.starts[1][2][1]) == "broken"


def test_write_of_the_server_reaches_the_application():
    def app(environ, start_response):
        write = start_response("200 OK", TEXT)
        write(b"written ")
        return [b"returned"]

    assert ask(RateLimitMiddleware(app)).body == b"written returned"


def test_headers_of_the_application_are_not_changed_in_place():
    headers = [("Content-Type", "text/plain"), ("ratelimit-limit", "theirs")]

    def app(environ, start_response):
        start_response("200 OK", headers)
        return [b""]

    assert ask(RateLimitMiddleware(app, default="9/min")).headers["ratelimit-limit"] == "9"
    assert headers == [("Content-Type", "text/plain"), ("ratelimit-limit", "theirs")]


def test_file_of_the_server_is_passed_on():
    def app(environ, start_response):
        start_response("200 OK", TEXT)
        return environ["wsgi.file_wrapper"](io.BytesIO(b"from a file"))

    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    for _ in range(2):
        assert ask(limited, **{"wsgi.file_wrapper": FileWrapper}).body == b"from a file"


def test_body_is_read_again_by_the_application():
    limited = validated(echo, by=json_field("user"), default="1/min", address_limit="9/min")
    for user, expected in [("ann", 200), ("bob", 200), ("ann", 429)]:
        body = json.dumps({"user": user}).encode()
        answer = ask(limited, body=body, REQUEST_METHOD="POST")
        assert answer.status == expected
        assert expected == 429 or answer.body == body


def test_input_may_be_read_in_every_way_when_it_was_read_for_the_key():
    def app(environ, start_response):
        file = environ["wsgi.input"]
        start_response("200 OK", TEXT)
        return [file.readline(), file.read(1), *file.readlines(), file.read()]

    body = b'{"user":\n "ann"\n}'
    assert ask(RateLimitMiddleware(app, by=json_field("user"), address_limit="9/min"), body=body).body == body


def test_no_more_is_read_than_the_length_says():
    request = io.BytesIO(b'{"user": "ann"}GET / HTTP/1.1')
    limited = RateLimitMiddleware(echo, by=json_field("user"), address_limit="9/min")
    answer = ask(limited, **{"wsgi.input": request, "CONTENT_LENGTH": "15"})
    assert answer.body == b'{"user": "ann"}'
    assert request.read() == b"GET / HTTP/1.1"


def test_input_is_not_touched_when_no_key_needs_it():
    def app(environ, start_response):
        start_response("200 OK", TEXT)
        return [str(id(environ["wsgi.input"])).encode()]

    request = io.BytesIO(b"x")
    assert ask(RateLimitMiddleware(app), **{"wsgi.input": request}).body == str(id(request)).encode()


def test_body_over_the_bound_is_not_read():
    request = io.BytesIO(b"x" * 30)
    limited = RateLimitMiddleware(echo, by=json_field("user", most_body=25), address_limit="9/min")
    answer = ask(limited, **{"wsgi.input": request, "CONTENT_LENGTH": "30"})
    assert answer.status == 413
    assert request.tell() == 0


@pytest.mark.parametrize("length", ["x", "-1", "1.5", "1_0", " "])
def test_length_that_is_no_number_is_a_400(length):
    limited = RateLimitMiddleware(plain, by=json_field("user"), address_limit="9/min")
    answer = ask(limited, CONTENT_LENGTH=length)
    assert answer.status == 400
    assert "length" in json.loads(answer.body)["detail"]


def test_body_that_the_server_cannot_read_is_a_400():
    class Malformed(io.RawIOBase):
        def read(self, size=-1):
            raise OSError("Invalid chunk header")

    limited = RateLimitMiddleware(plain, by=json_field("user"), default="1/min", address_limit="9/min")
    answer = ask(limited, CONTENT_LENGTH="", **{"wsgi.input": Malformed(), "wsgi.input_terminated": True})
    assert answer.status == 400


def test_body_without_a_length_is_no_body():
    def app(environ, start_response):
        start_response("200 OK", TEXT)
        return [environ["wsgi.input"].read()]

    limited = RateLimitMiddleware(app, by=form_field("user"), address_limit="9/min")
    assert ask(limited, CONTENT_LENGTH="").status == 200


def chunked(body: bytes) -> dict:
    """What gunicorn and Werkzeug say of a body that came in chunks: no length, and an input that ends."""
    return {"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}


def read_all(environ, start_response):
    start_response("200 OK", TEXT)
    return [environ["wsgi.input"].read()]


def test_chunked_body_says_who_is_limited_and_arrives():
    limited = RateLimitMiddleware(read_all, by=json_field("user"), default="1/min", address_limit="9/min")
    for user, expected in [("ann", 200), ("bob", 200), ("ann", 429)]:
        body = json.dumps({"user": user}).encode()
        answer = ask(limited, REQUEST_METHOD="POST", **chunked(body))
        assert answer.status == expected
        assert expected == 429 or answer.body == body


def test_chunked_body_that_says_nothing_arrives_all_the_same():
    limited = RateLimitMiddleware(read_all, by=form_field("user"), address_limit="9/min")
    answer = ask(limited, REQUEST_METHOD="POST", CONTENT_TYPE="text/plain", **chunked(b"an upload"))
    assert (answer.status, answer.body) == (200, b"an upload")


def test_chunked_body_over_the_bound_is_a_413():
    limited = RateLimitMiddleware(read_all, by=json_field("user", most_body=25), address_limit="9/min")
    assert ask(limited, REQUEST_METHOD="POST", **chunked(b"x" * 30)).status == 413


def test_script_name_is_no_part_of_the_path():
    limited = RateLimitMiddleware(plain, default=None, rules={"/search": "1/min", "/": "1/min"})
    assert [status(limited, "/search", SCRIPT_NAME="/api") for _ in range(2)] == [200, 429]
    assert [status(limited, "", SCRIPT_NAME="/api") for _ in range(2)] == [200, 429]


def test_unicode_path_has_its_rule():
    limited = RateLimitMiddleware(plain, default=None, rules={"/größe/{id}": "1/min"})
    raw = "/größe/ü".encode().decode("latin-1")
    assert [status(limited, raw) for _ in range(2)] == [200, 429]


def test_threads_are_admitted_exactly():
    limited = RateLimitMiddleware(plain, default="50/h")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: status(limited), range(120)))
    assert sorted(answers) == [200] * 50 + [429] * 70


def test_threads_on_redis_are_admitted_exactly(redis_server):
    with RateLimiter(redis_server.url, deadline=5) as limiter, ThreadPoolExecutor(8) as pool:
        limited = RateLimitMiddleware(plain, default="50/h", limiter=limiter)
        answers = list(pool.map(lambda _: status(limited), range(120)))
    assert sorted(answers) == [200] * 50 + [429] * 70


def test_slots_on_redis_are_freed(redis_server):
    with RateLimiter(redis_server.url, deadline=5) as limiter:
        limited = RateLimitMiddleware(streaming, default=ONE_SLOT, limiter=limiter)
        server = Server(limited)
        assert status(limited) == 429
        server.close()
        assert [status(limited) for _ in range(2)] == [200, 200]


def flask_app(**options) -> flask.Flask:
    app = flask.Flask("shop")
    app.testing = True
    app.closed = []

    @app.get("/items/<int:item_id>")
    def item(item_id: int):
        return {"id": item_id}

    @app.get("/stream")
    def stream():
        response = flask.Response(flask.stream_with_context(f"{index};" for index in range(3)))
        response.call_on_close(lambda: app.closed.append(flask.request.path if flask.has_request_context() else "closed"))
        return response

    @app.get("/broken")
    def broken():
        raise RuntimeError("broken")

    @app.post("/echo")
    def echo():
        return flask.request.get_json()

    @app.post("/upload")
    def upload():
        return {"size": len(flask.request.files["data"].read()), "user": flask.request.form.get("user")}

    @app.post("/form")
    def form():
        return dict(flask.request.form)

    app.wsgi_app = validated(app.wsgi_app, **options)
    return app


def test_flask_is_limited_by_its_paths():
    client = flask_app(default="9/min", rules={"/items/{id}": "2/min"}).test_client()
    with contextlib.ExitStack() as stack:
        answers = [stack.enter_context(client.get(f"/items/{index}")) for index in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].json == {"id": 0}
        assert answers[0].headers["RateLimit-Remaining"] == "1"
        assert answers[2].mimetype == "application/problem+json"
        assert answers[2].headers["Retry-After"]


def test_flask_gets_headers_on_every_outcome():
    app = flask_app(default="9/min")
    app.testing = False
    client = app.test_client()
    for path, expected in [("/items/1", 200), ("/stream", 200), ("/nowhere", 404), ("/echo", 405), ("/broken", 500)]:
        with client.get(path) as response:
            assert response.status_code == expected
            assert len(response.headers.get_all("RateLimit-Remaining")) == 1


def test_flask_propagates_its_exceptions_and_slots_are_freed():
    client = flask_app(default=ONE_SLOT).test_client()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="broken"):
            client.get("/broken")


def test_flask_streams_holding_its_slot_and_is_closed_once():
    app = flask_app(default=ONE_SLOT)
    client = app.test_client()
    with client.get("/stream") as first:
        with client.get("/stream") as second:
            assert second.status_code == 429
        assert first.text == "0;1;2;"
    assert len(app.closed) == 1
    with client.get("/stream") as third:
        assert third.status_code == 200


def test_flask_reads_a_body_that_was_read_for_the_key():
    client = flask_app(default="1/min", by=json_field("user"), address_limit="99/min").test_client()
    for user, expected in [("ann", 200), ("bob", 200), ("ann", 429)]:
        with client.post("/echo", json={"user": user}) as response:
            assert response.status_code == expected
            assert expected == 429 or response.json == {"user": user}


def test_flask_reads_a_form_that_was_read_for_the_key():
    client = flask_app(default="1/min", by=form_field("user"), address_limit="99/min").test_client()
    with client.post("/form", data={"user": "ann", "x": "ü"}) as response:
        assert response.json == {"user": "ann", "x": "ü"}


@pytest.mark.parametrize("size", [1000, 300_000])
def test_flask_gets_uploads_intact(size):
    by = form_field("user", most_body=400_000)
    client = flask_app(default="9/min", by=by, address_limit="99/min").test_client()
    with client.post("/upload", data={"data": (io.BytesIO(b"\x00" * size), "f.bin"), "user": "ann"}) as response:
        assert response.json == {"size": size, "user": "ann"}


SERVED = textwrap.dedent(
    """
    import os, sys, threading
    import waitress
    from ratekit import Limit, RateLimiter
    from ratekit.web.identity import json_field
    from ratekit.wsgi import RateLimitMiddleware

    gone = threading.Event()

    def application(environ, start_response):
        path = environ["PATH_INFO"]
        if path == "/go":
            gone.set()
        if path == "/echo":
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
            return [body]
        start_response("200 OK", [("Content-Type", "text/plain")])
        return slow() if path == "/slot" else [b"ok"]

    def slow():
        yield b"first "
        gone.wait(30)
        yield b"last"

    limiter = RateLimiter(os.environ["STORE"], deadline=5)
    by_user = {"rules": {"/echo": "9/h"}, "by": json_field("user"), "address_limit": "99/h"}
    app = RateLimitMiddleware(
        RateLimitMiddleware(application, limiter=limiter, default=None, **by_user),
        limiter=limiter,
        default="20/h",
        rules={"/slot": Limit(1, 600, algorithm="concurrency")},
        exempt=["/go", "/echo"],
    )
    waitress.serve(app, listen=f"127.0.0.1:{sys.argv[1]}", threads=4)
    """
)


@contextlib.contextmanager
def waitress(folder: Path, store: str) -> Iterator[str]:
    """Run the application above under waitress, and give its URL; its mode is in the file "mode" of the folder."""
    (folder / "served.py").write_text(SERVED)
    port = free_port()
    command = [sys.executable, "-W", "error", str(folder / "served.py"), str(port)]
    with serving(command, port, folder, STORE=store, RATE_LIMIT_MODE_FILE=str(folder / "mode")) as url:
        yield url


@pytest.fixture(params=["memory", "redis"])
def store_url(request) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue("redis_server").url


def test_waitress_serves_limits_and_follows_the_mode_file(tmp_path, store_url):
    with waitress(tmp_path, store_url) as url, httpx2.Client(base_url=url) as client:
        answers = [client.get("/") for _ in range(22)]
        assert [answer.status_code for answer in answers] == [200] * 20 + [429] * 2
        assert answers[0].headers["ratelimit-remaining"] == "19"
        assert answers[21].json()["violated-policies"] == ["hour"]
        assert int(answers[21].headers["retry-after"]) in range(3590, 3601)
        for mode, expected in [("monitor", 200), ("on", 429), ("off", 200), ("on", 429)]:
            (tmp_path / "mode").write_text(mode)
            response = client.get("/")
            assert response.status_code == expected
            assert ("ratelimit-limit" in response.headers) is (mode != "off")
        assert client.options("/").status_code == 200


def test_waitress_keeps_its_connection_in_step_after_a_refused_head_request(tmp_path):
    with waitress(tmp_path, "memory://") as url, httpx2.Client(base_url=url) as client:
        for _ in range(20):
            client.get("/")
        for _ in range(3):
            assert client.head("/").status_code == 429
            assert client.get("/").json()["status"] == 429


def test_waitress_holds_the_slot_until_the_response_has_ended(tmp_path):
    with waitress(tmp_path, "memory://") as url, httpx2.Client(base_url=url) as client:
        with client.stream("GET", "/slot") as response:
            received = response.iter_bytes()
            assert next(received) == b"first "
            assert httpx2.get(f"{url}/slot").status_code == 429
            httpx2.get(f"{url}/go")
            assert b"".join(received) == b"last"
        wait_until(lambda: httpx2.get(f"{url}/slot").status_code == 200, "the slot is not free again")


def test_waitress_passes_on_a_chunked_body_that_was_read_for_the_key(tmp_path):
    with waitress(tmp_path, "memory://") as url:
        response = httpx2.post(f"{url}/echo", content=iter([b'{"user": ', b'"ann"}']))
        assert response.json() == {"user": "ann"}
        assert response.headers["ratelimit-remaining"] == "8"
        assert httpx2.post(f"{url}/echo", content=b"{").status_code == 400
