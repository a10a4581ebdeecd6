"""`memory://`: the script in this process, by LuaJIT. State lives as long as the process, and only in it."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
import threading
import warnings
import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any

from ratekit.core import clock
from ratekit.core.compiled import OVERRIDES, CompiledPolicy
from ratekit.core.errors import ConfigurationError
from ratekit.core.events import StoreState
from ratekit.core.outages import or_outage, outage_in
from ratekit.core.protocol import CHECK, Call, cost_item, pack, unpack
from ratekit.stores import script
from ratekit.stores.circuit_breaker import Health
from ratekit.stores.contract import Command, Reply
from ratekit.stores.workers import describe_workers

if TYPE_CHECKING:
    from ratekit.stores.async_memory import AsyncMemoryStore

# The fastest first. Plain Lua gives the same answers, more slowly.
_ENGINES = ("luajit21", "luajit20", "luajit", "lua55", "lua54", "lua53", "lua52", "lua51", "lua")
COUNTERS_VARIABLE = "RATE_LIMIT_MEMORY_COUNTERS"
DEFAULT_MAX_COUNTERS = 250_000
_LEAST_COUNTERS, _MOST_COUNTERS = 1000, 10_000_000
_MOST_PREPARED = 1024
_MOST_KEYS = 9
_MOST_CALLS = 10  # at once: Lua can return only so many values, and a call may have many limits


class SeveralProcessesWarning(UserWarning):
    """A store that is for one process is used in several: each of them admits the whole limit."""


class MemoryStore:
    """Decides calls in this process, from any thread, as a Lua runtime lets in one at a time; async code awaits nothing."""

    is_local = True
    one_slot = False
    awaited: AsyncMemoryStore | None = None  # the same store for code that awaits: see ratekit.stores.async_memory

    def __init__(self, engine: str | None = None, *, for_one: bool = True, max_counters: int | None = None) -> None:
        """Make a store that is for one process, and says so where there are several; or a part of one for each.

        max_counters bounds how many counters are held: RATE_LIMIT_MEMORY_COUNTERS by default, else 250 000.
        """
        self.place: Hashable = id(self)  # where the state is kept
        self._engine = engine
        self._max_counters = _bound(max_counters)
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
        embedded = load(script.read("embedded"), b"=embedded.lua")
        functions = embedded(script.read("ratekit"), self._max_counters, 65536 + secrets.randbits(19))
        self._prepare, self._run_one, self._run_tiers = functions[:3]
        self._run_any, self._weigh, self._execute, self._size = functions[3:]
        self._collect = runtime.eval(b"function() collectgarbage() return collectgarbage('count') end")
        self._prepared: dict[CompiledPolicy, tuple[Any, Any]] = {}

    def run(self, call: Call) -> Sequence[int]:
        """Decide one call. Raises StoreOutage if its keys hold something else."""
        compiled, names, operation, cost, _, _, extra = call
        run, arguments = self._prepared.get(compiled) or self._prepare_check(compiled)
        if run is None or operation is not CHECK or extra is not None:
            answer = self.run_many([call])[0]
            if isinstance(answer, str):
                raise outage_in(answer)
            return answer
        figures = run(time_ns() // 1000 if clock.source is None else clock.source(), arguments, cost, *names)
        if type(figures) is tuple and type(figures[0]) is int:
            return figures
        raise outage_in((figures[0] if isinstance(figures, tuple) else figures).decode())

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
            replied = unpack(some, reply if isinstance(reply, tuple) else (reply,))
            self._weigh_all(some, replied)
            answers += replied
        return answers

    def _weigh_all(self, calls: Sequence[Call], answers: Sequence[Sequence[int] | str]) -> None:
        """Note how much counters have used, which decides what is dropped when the store is full."""
        for call, answer in zip(calls, answers, strict=True):
            if not isinstance(answer, str):
                self._weigh(len(call.compiled.limits), *call.state_keys, *answer)

    def execute(self, name: str, *arguments: str | bytes | int) -> Any:
        """Run one of the commands that lua/embedded.lua knows. For administration, and for tests.

        Raises StoreOutage if the key holds something else.
        """
        encoded = [item.encode() if isinstance(item, str) else item for item in arguments]
        reply = self._execute(clock.now_us(), name.encode(), *encoded)
        if hasattr(reply, "values") and reply[b"err"] is not None:
            raise outage_in(reply[b"err"].decode())
        return _as_lists(reply)

    def execute_many(self, commands: Sequence[Command], node: str = "") -> list[Reply]:
        """Run commands past the script; a StoreOutage stands in place of the reply of one that fails."""
        return [or_outage(lambda command: self.execute(*command), command) for command in commands]

    def nodes(self) -> list[str]:
        """Return one node without a name."""
        return [""]

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

    def _prepare_check(self, compiled: CompiledPolicy) -> tuple[Any, Any]:
        """Return what runs a single check of a policy, and its ARGV; None if there is no such thing, and run_many has to."""
        if self._is_copy:
            self._is_copy = False
            _warn("a forked process, which counts for itself: N of them together admit N times")
        if len(self._prepared) >= _MOST_PREPARED:
            self._prepared = {}
        run = self._run_one if len(compiled.limits) == 1 else self._run_tiers
        if compiled.is_soft or len(compiled.limits) + OVERRIDES * sum(compiled.brings) > _MOST_KEYS:
            run = None
        if compiled.has_positions and run is not None:
            run = _with_cost_item(run)
        self._prepared[compiled] = ready = run, self._prepare(*compiled.check, 1)
        return ready


def _bound(max_counters: int | str | None) -> int:
    """Return how many counters a store may hold. Raises ConfigurationError for a number that makes no sense."""
    name, value = "max_counters", max_counters
    if value is None:
        name, value = COUNTERS_VARIABLE, os.environ.get(COUNTERS_VARIABLE) or DEFAULT_MAX_COUNTERS
    if not str(value).isascii() or not str(value).isdigit() or not _LEAST_COUNTERS <= int(value) <= _MOST_COUNTERS:
        raise ConfigurationError(f"{name} {value!r} is not a whole number between {_LEAST_COUNTERS} and {_MOST_COUNTERS}")
    return int(value)


def _with_cost_item(run: Any) -> Any:
    """Return what runs a check whose limits may cost differently: Lua gets the costs as one item."""
    return lambda now_us, arguments, cost, *names: run(now_us, arguments, cost_item(cost), *names)


def _as_lists(reply: Any) -> Any:
    return [_as_lists(item) for item in reply.values()] if hasattr(reply, "values") else reply


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
    workers = describe_workers()
    if workers is not None:
        _warn(workers)


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
