"""`memory://`: the script in this process, by LuaJIT. State lives as long as the process, and only in it."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from time import time_ns
from typing import Any

from ratekit import clock
from ratekit.breaker import Health
from ratekit.errors import ConfigurationError
from ratekit.events import StoreState
from ratekit.figures import FIGURES
from ratekit.outage import StoreOutage, or_outage, outage_in
from ratekit.plans import Compiled
from ratekit.protocol import CHECK, Call, pack, pack_one, unpack
from ratekit.stores import script

# The fastest first. Plain Lua gives the same answers, more slowly.
_ENGINES = ("luajit21", "luajit20", "luajit", "lua55", "lua54", "lua53", "lua52", "lua51", "lua")
_MOST_PREPARED = 1024
_MOST_KEYS = 8
_MOST_CALLS = 10  # at once: Lua can return only so many values, and a call may have many limits
_MOST_TICKETS = 16384  # as many calls as a front knows
_MOST_AT_ONCE = 25  # the same for calls that are not merged of several policies: 25 times 50 limits, six figures each
_FEW = 3  # calls, for which it is faster to ask one by one


Figures = tuple[int, ...]


class SeveralProcessesWarning(UserWarning):
    """A store that is for one process is used in several: each of them admits the whole limit."""


class MemoryStore:
    """Decides calls in this process, from any thread, as a Lua runtime lets in one at a time; async code awaits nothing."""

    is_local = True

    def __init__(self, engine: str | None = None, *, for_one: bool = True) -> None:
        """Make a store that is for one process, and says so where there are several; or a part of one for each."""
        self._engine = engine
        self._for_one = for_one
        self._since = clock.now()
        self._is_copy = False
        self._open()
        _stores.add(self)
        if for_one:
            _warn_of_workers()

    def _open(self) -> None:
        runtime = _runtime(self._engine)
        load = runtime.eval(b"loadstring or load")
        functions = load(script.read("embedded"), b"=embedded.lua")(script.read("ratekit"))
        self._prepare, self._run_one, self._run_tiers, self._keep, self._run_kept = functions[:5]
        self._run_any, self._execute, self._size = functions[5:]
        self._collect = runtime.eval(b"function() collectgarbage() return collectgarbage('count') end")
        self._prepared: dict[Compiled, tuple[Any, Any]] = {}
        self._tickets: dict[int, tuple[Any, Call]] = {}  # by the id of a call, which lives as long as it is kept here

    def run(self, call: Call) -> Sequence[int]:
        """Decide one call. Raises StoreOutage if its keys hold something else."""
        compiled, names, operation, cost, _, _ = call
        run, arguments = self._prepared.get(compiled) or self._prepare_check(compiled)
        if run is None or operation is not CHECK:
            answer = self.run_many([call])[0]
            if isinstance(answer, str):
                raise outage_in(answer)
            return answer
        figures = run(time_ns() // 1000 if clock.source is None else clock.source(), arguments, cost, *names)
        if type(figures) is tuple and type(figures[0]) is int:
            return figures
        raise outage_in((figures[0] if isinstance(figures, tuple) else figures).decode())

    def run_each(self, calls: Sequence[Call]) -> list[Sequence[int] | StoreOutage]:
        """Decide calls that come again, the same objects, in one go: for each its figures, or that its keys hold something
        else.
        """
        if len(calls) <= _FEW or type(self).run is not MemoryStore.run:
            return [or_outage(self.run, call) for call in calls]
        answers: list[Sequence[int] | StoreOutage] = []
        tickets = self._tickets
        for start in range(0, len(calls), _MOST_AT_ONCE):
            some = calls[start : start + _MOST_AT_ONCE]
            kept = [(tickets.get(id(call)) or self._ticket(call))[0] for call in some]
            of_limits = [*zip(*[iter(self._run_kept(clock.now_us(), *kept))] * FIGURES, strict=True)]
            if len(of_limits) != len(some):
                of_limits = _together(some, of_limits)
            answers += [figures if type(figures[0]) is int else outage_in(figures[0].decode()) for figures in of_limits]
        return answers

    def run_many(self, calls: Sequence[Call], at_us: int = 0) -> list[Sequence[int] | str]:
        """Decide a batch of calls, one after the other: for each its figures, or an error as a text.

        at_us decides by another time than now.
        """
        answers: list[Sequence[int] | str] = []
        for start in range(0, len(calls), _MOST_CALLS):
            some = calls[start : start + _MOST_CALLS]
            names, items = pack(some)
            arguments = [item.encode() if isinstance(item, str) else item for item in items]
            reply = self._run_any(at_us or clock.now_us(), len(names), *names, *arguments)
            answers += unpack(some, reply if isinstance(reply, tuple) else (reply,))
        return answers

    def execute(self, name: str, *arguments: str | bytes | int) -> Any:
        """Run one of the commands that lua/embedded.lua knows. For administration, and for tests.

        Raises StoreOutage if the key holds something else.
        """
        encoded = [item.encode() if isinstance(item, str) else item for item in arguments]
        reply = self._execute(clock.now_us(), name.encode(), *encoded)
        if hasattr(reply, "values") and reply[b"err"] is not None:
            raise outage_in(reply[b"err"].decode())
        return _plain(reply)

    def clear(self) -> None:
        """Forget everything."""
        self.execute("FLUSHALL")

    def health(self) -> Health:
        """Return that it is up: it is this process."""
        return Health(StoreState.UP, None, self._since)

    def warm(self) -> None:
        """Nothing has to be opened."""

    def __len__(self) -> int:
        """How many keys are held."""
        return int(self._size())

    def close(self) -> None:
        """Nothing is open; the state stays for who else uses the store."""

    async def aclose(self) -> None:
        """Do the same, awaited."""

    def _ticket(self, call: Call) -> tuple[Any, Call]:
        """Return what runs a call in one go with others, and the call."""
        if len(self._tickets) >= _MOST_TICKETS:
            self._tickets.clear()
        plan, names, operation, cost, _, _ = call
        if operation is CHECK and not plan.is_soft:
            _, arguments = self._prepared.get(plan) or self._prepare_check(plan)
        else:
            version, word, _, *items = (item.encode() if isinstance(item, str) else item for item in pack_one(call)[1])
            arguments = self._prepare(version, word, *items, cost)
        self._tickets[id(call)] = kept = self._keep(arguments, cost, FIGURES * len(plan.limits), *names), call
        return kept

    def _prepare_check(self, compiled: Compiled) -> tuple[Any, Any]:
        """Return what runs a plain check of a policy, and its ARGV; None if there is no such thing, and run_many has to."""
        if self._is_copy:
            self._is_copy = False
            _warn("a forked process, which counts for itself: N of them together admit N times")
        if len(self._prepared) >= _MOST_PREPARED:
            self._prepared = {}
        run = self._run_one if len(compiled.limits) == 1 else self._run_tiers
        if compiled.is_soft or len(compiled.limits) + sum(compiled.brings) > _MOST_KEYS:
            run = None
        self._prepared[compiled] = ready = run, self._prepare(*compiled.check, 1)
        return ready


def _together(calls: Sequence[Call], of_limits: Iterable[Figures]) -> list[Figures]:
    """Put together what the limits of each call have said."""
    rest = iter(of_limits)
    return [tuple(chain.from_iterable(islice(rest, len(call.compiled.limits)))) for call in calls]


def _plain(reply: Any) -> Any:
    return [_plain(item) for item in reply.values()] if hasattr(reply, "values") else reply


def _runtime(engine: str | None) -> Any:
    for name in (engine,) if engine else _ENGINES:
        try:
            with _own_symbols():
                module = importlib.import_module(f"lupa.{name}")
        except ImportError:
            continue
        return module.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    raise ConfigurationError(f"memory:// needs the package lupa with {engine or 'any engine'}, which is not installed")


@contextmanager
def _own_symbols() -> Iterator[None]:
    """Let a library that is loaded here use its own functions first.

    Every engine of lupa has functions of the same names. Once some other package has loaded one of them for all to see
    (fakeredis does), the next one would call into that instead of itself, and crash or be the wrong Lua.
    """
    deep = getattr(os, "RTLD_DEEPBIND", 0)
    flags = sys.getdlopenflags()
    sys.setdlopenflags((flags & ~os.RTLD_GLOBAL) | deep)
    try:
        yield
    finally:
        sys.setdlopenflags(flags)


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()
_shared: dict[str, MemoryStore] = {}
_shared_lock = threading.Lock()


def shared(name: str) -> MemoryStore:
    """Return the store of that name in this process: the same URL is the same state, as with Redis."""
    with _shared_lock:
        if name not in _shared:
            _shared[name] = MemoryStore()
        return _shared[name]


def _warn_of_workers() -> None:
    workers = os.environ.get("WEB_CONCURRENCY", "1")
    if workers.isdigit() and int(workers) > 1:
        _warn(f"{workers} workers (WEB_CONCURRENCY), each with counters of its own: together they admit {workers} times")


def _begin_anew() -> None:
    """In a forked process: locks are as they were at that instant, and the counters are a copy. Forget both."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for store in list(_stores):
        store._open()
        store._is_copy = store._for_one


def _warn(what: str) -> None:
    message = f"memory:// is used in {what} each limit. Give them one Redis: RATE_LIMIT_STORE_URL=redis://…"
    warnings.warn(message, SeveralProcessesWarning, stacklevel=4)


os.register_at_fork(after_in_child=_begin_anew)
