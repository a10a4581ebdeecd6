"""What documents of rules cost: ten thousand rules against ten, a middleware by rules against one in code, and a reload."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from itertools import cycle
from time import perf_counter, process_time
from typing import Any

from benchmarks.rounds import Case, Pair, Row, measure
from benchmarks.settings import Settings
from ratekit.asgi import RateLimitMiddleware, RuleMiddleware
from ratekit.rules import Rules
from ratekit.rules.compiled import CompiledRules, compile_document
from ratekit.rules.document import Document
from ratekit.rules.formats import write
from ratekit.rules.sources.contract import Loaded, Text
from ratekit.stores.memory import MemoryStore
from ratekit.web.client_address import TrustedProxies
from ratekit.web.requests import AsgiRequest

_FEW, _MANY = 10, 10_000
_CALLS = 2000
_GROWTH_TARGET = 1.2
_MICROSECONDS_TARGET = 10.0
_MIDDLEWARE_TARGET = 1 / 0.9  # of the time: nine tenths of the requests
_STOP_TARGET_MS = 25.0
_PROXIES = TrustedProxies()


def compare_rules(settings: Settings) -> list[Row]:
    """Compare lookups in many rules with those in few, both middlewares, and the longest stop of a reload with none."""
    few, many = _lookups(_FEW), _lookups(_MANY)
    known_few, known_many = _lookups(_FEW, paths=1), _lookups(_MANY, paths=1)
    pairs = [
        Pair("match and read the key, 10 000 rules / ten, paths not seen before", many, few, _GROWTH_TARGET),
        Pair("match and read the key, 10 000 rules / ten, a path seen before", known_many, known_few, _GROWTH_TARGET),
        Pair("match and read the key, 10 000 rules, us, paths not seen before", many, _one, _MICROSECONDS_TARGET, _in_us),
        Pair("RuleMiddleware / RateLimitMiddleware, memory://", *_middlewares(), _MIDDLEWARE_TARGET),
        Pair("longest stop while 10 000 rules are reloaded, ms", _stop_of_reload(), _one, _STOP_TARGET_MS, _only_case),
    ]
    return measure("rules", pairs, settings.rounds)


def _one() -> float:
    return 1.0


def _in_us(case: float, _: float) -> float:
    return case * 1e6


def _only_case(case: float, _: float) -> float:
    return case


def _document(count: int) -> dict[str, Any]:
    matches = [{"method": "POST", "path": f"/service{index}/items/{{id}}/run"} for index in range(count)]
    rules = [{"name": f"rule {index}", "match": match, "limits": "100/min"} for index, match in enumerate(matches)]
    return {"by": ["header:X-API-Key", "ip"], "rules": rules}


def _compiled(count: int) -> CompiledRules:
    return compile_document(Document.parse(_document(count)))


def _scopes(count: int, paths: int) -> Iterator[dict[str, Any]]:
    """Yield requests, for ever: as many different paths, on all of the rules in turn."""
    headers = [(b"host", b"api.example.com"), (b"user-agent", b"benchmark"), (b"accept", b"*/*"), (b"x-api-key", b"secret")]
    made = [
        {"type": "http", "method": "POST", "path": f"/service{number * 7 % count}/items/{number}/run", "headers": headers}
        | {"query_string": b"", "client": ("192.0.2.7", 1)}
        for number in range(paths)
    ]
    return cycle(made)


def _lookups(count: int, paths: int = 50_000) -> Case:
    """Make a case of lookups: a request is matched, and its key is read. No cache holds 50 000 paths."""
    compiled = _compiled(count)
    scopes = _scopes(count, paths)

    def look() -> None:
        request = AsgiRequest(next(scopes), _PROXIES)
        (rule,) = compiled.find(request)
        rule.limits_of(rule.by.read(request), 0.0)  # type: ignore[union-attr,arg-type]

    def block() -> float:
        started = process_time()
        for _ in range(_CALLS):
            look()
        return (process_time() - started) / _CALLS

    return block


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _middlewares() -> tuple[Case, Case]:
    """Make cases of requests through both middlewares with the same limits."""
    paths = [f"/service{index}/items/{{id}}/run" for index in range(_FEW)]
    in_code = RateLimitMiddleware(
        _nothing, store=MemoryStore(), default=None, rules={f"POST {path}": "1000000000/min" for path in paths}
    )
    rules = [{"match": {"method": "POST", "path": path}, "limits": "1000000000/min"} for path in paths]
    by_rules = RuleMiddleware(_nothing, store=MemoryStore(), rules={"rules": rules})
    return _requests(by_rules), _requests(in_code)


def _requests(app: Any) -> Case:
    async def send(message: Any) -> None:
        pass

    async def ask_all(scopes: list[dict[str, Any]]) -> None:
        for scope in scopes:
            await app(scope, None, send)

    def block() -> float:
        scopes = [dict(next(source)) for _ in range(_CALLS)]
        started = process_time()
        asyncio.run(ask_all(scopes))
        return (process_time() - started) / _CALLS

    source = _scopes(_FEW, 200)
    return block


class _Alternating:
    """A source that has another document at every look."""

    origin, is_trusted, interval = "benchmark", True, 3600.0

    def __init__(self) -> None:
        self._text = write(_document(_MANY), "json")
        self._version = 0

    def load(self, known: str | None, pace: Any) -> Loaded:
        self._version += 1
        return Loaded(Text(self._text, "json"), str(self._version))

    def watch(self, changed: Any) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""


def _stop_of_reload() -> Case:
    """Make a case of a reload in a thread: the longest time for which another thread, which does little, does nothing."""
    rules = Rules(_Alternating())

    def block() -> float:
        gc.collect()
        thread = threading.Thread(target=rules.refresh)
        longest, last = 0.0, perf_counter()
        thread.start()
        while thread.is_alive():
            threading.Event().wait(0.0005)  # gives up the interpreter, as a request that waits for a store does
            now = perf_counter()
            longest, last = max(longest, now - last), now
        return longest * 1000

    return block
