"""What a request has cost in the end: one table of cases for every front and store.

A front declares the limits of a case on `/x` in its own way, and its application does what the header X-Do says (`perform`).
A case sends requests and says what the counters of each limit hold when the last response has ended. A front is one adapter:
a function of `Declared` limits and a store that yields a `Send`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratekit import Limit, Policy, RateLimiter, RateLimitExceeded

LOGINS = Policy("logins", [Limit(5, 3600, name="logins")])
LLM = Policy("llm", [Limit(60, 3600, name="calls"), Limit(1_000, 3600, unit="tokens", name="tokens")])


class Answer(NamedTuple):
    """What a client gets."""

    status: int
    headers: dict[str, str]  # names in lower case


Send = Callable[[str, str], Answer]  # what the application does, and the account that asks


class Declared(NamedTuple):
    """One limit that a front declares: a policy, "plan", or a callable; by whom it counts, and how it charges."""

    policy: Any
    options: dict[str, Any]
    by: str = "ip"

    @property
    def stated(self) -> dict[str, Any]:
        """The arguments that say what is allowed."""
        return {"policy" if isinstance(self.policy, Policy) else "limits": self.policy}


def limited(policy: Any, by: str = "ip", **options: Any) -> tuple[Declared, ...]:
    return (Declared(policy, options, by),)


PLANS = {"ann": LLM, "bob": Policy("bob", [Limit(60, 3600, name="calls")])}  # one plan counts tokens, one does not


def account_of(request: Any) -> str:
    """The plan of a request, which has the name of its account."""
    found = request.headers.get("x-account") if hasattr(request, "headers") else request.header("x-account")
    return str(found)


@dataclass(frozen=True)
class Reply:
    """What an application answers."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterator[bytes] | None = None  # a stream


def perform(do: str, usage: Any) -> Reply:
    """Do what a request asks for: answer a status, raise, stream, or say by usage what it has cost."""
    kind, _, value = do.partition(":")
    if kind == "raise":
        raise RuntimeError("as it was asked for")
    if kind == "refuse":
        raise RateLimitExceeded(RateLimiter("memory://").check(Policy("own", "1/h"), "ann", cost=5))
    if kind in ("settle", "add"):
        getattr(usage, kind)(int(value))
    if kind in ("stream", "break"):
        return Reply(chunks=_stream(usage, breaks=kind == "break"))
    if kind in ("chunks", "raise in chunks"):
        return Reply(chunks=_chunks(breaks=kind == "raise in chunks"))
    return Reply(int(do) if do.isdigit() else 200, {"x-usage-tokens": value} if kind == "header" else {})


def _chunks(*, breaks: bool) -> Iterator[bytes]:
    yield from [b"chunk"] * 3
    if breaks:
        raise RuntimeError("as it was asked for")


def _stream(usage: Any, *, breaks: bool) -> Iterator[bytes]:
    for number in range(3):
        usage.add(5)
        yield b"chunk"
        if breaks and number == 1:
            raise RuntimeError("as it was asked for")


class Sent(NamedTuple):
    """A request, the status that is expected, and what is left of the binding limit by the headers, if that matters."""

    do: str
    status: int = 200
    times: int = 1
    remaining: int | None = None
    account: str = "ann"


@dataclass(frozen=True)
class Case:
    """Limits, requests, and what each limit's counters hold in sum."""

    declared: tuple[Declared, ...]
    sent: tuple[Sent, ...]
    used: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # of the application


ACCOUNTS = Policy("accounts", [Limit(3, 3600, name="accounts")])
BOTH = (*limited(LOGINS, count=401), *limited(ACCOUNTS, by="header:X-Account", count=401))
WRONG, RIGHT = Sent("401", 401), Sent("200")
FAILURES_THEN_REQUESTS = (*limited(Policy("failures", "3/h"), count=401), *limited(Policy("requests", "9/h")))
SHARED = Policy("shared", [Limit(5, 3600, name="shared")])
FIVE_OF_A_SHARED_COUNTER = (Sent("200", times=2, remaining=3), Sent("401", 401, times=3), Sent("200", 429))
NINE = (Sent("200", times=4), Sent("401", 401, times=2), Sent("200", times=3), Sent("200", 429))
SETTLED_BY_BOTH = (
    *(Sent("settle:150"), Sent("settle:150", account="bob"), Sent("add:9", account="bob")),
    *(Sent("stream"), Sent("stream", account="bob")),
)
BY_ACCOUNT = {"plans": PLANS, "plan_of": account_of}

CASES = {
    "right passwords leave nothing used": Case(limited(LOGINS, count=(401, 403)), (Sent("200", times=9, remaining=5),)),
    "wrong passwords count": Case(
        limited(LOGINS, count=(401, 403)),
        (Sent("401", 401, times=4), Sent("403", 403, remaining=0), Sent("401", 429, times=3), Sent("200", 429)),
        {"logins": 5},
    ),
    "a class of statuses counts": Case(
        limited(LOGINS, count="4xx"),
        (Sent("404", 404, remaining=4), Sent("200", remaining=4), Sent("201", 201)),
        {"logins": 1},
    ),
    "a callable says what counts": Case(
        limited(LOGINS, count=lambda response: response.status_code == 200),
        (Sent("200", times=2), Sent("302", 302, times=3)),
        {"logins": 2},
    ),
    "a callable that answers nonsense counts": Case(limited(LOGINS, count=lambda _: "yes"), (Sent("200"),), {"logins": 1}),
    "a callable that raises counts": Case(limited(LOGINS, count=lambda _: 1 / 0), (Sent("200"),), {"logins": 1}),
    "an exception is status 500, which counts": Case(limited(LOGINS, count="5xx"), (Sent("raise", 500),), {"logins": 1}),
    "an exception is status 500, which does not count": Case(limited(LOGINS, count=401), (Sent("raise", 500, times=7),)),
    "success clears failures": Case(
        limited(LOGINS, reset_when=200),
        (Sent("401", 401, times=4), Sent("200", remaining=5), Sent("401", 401, remaining=4)),
        {"logins": 1},
    ),
    "only failures count, and success clears them": Case(
        limited(LOGINS, count=401, reset_when="2xx"), (Sent("401", 401, times=3), Sent("201", 201, remaining=5))
    ),
    "both identities of a login return together": Case(BOTH, (Sent("200", times=7),)),
    "both identities of a login count together": Case(
        BOTH,
        (Sent("401", 401, times=3), Sent("401", 429, times=2), Sent("401", 401, account="bob"), Sent("200", account="bob")),
        {"logins": 4, "accounts": 4},
    ),
    "a limit without count beside one with": Case(
        (*limited(Policy("all", [Limit(9, 3600, name="all")])), *limited(LOGINS, count=401)),
        (Sent("200", times=2), Sent("401", 401)),
        {"all": 3, "logins": 1},
    ),
    "failures and requests of one window have a counter each": Case(
        FAILURES_THEN_REQUESTS, NINE, {"3600s": 9, "count-401-3600s": 2}
    ),
    "requests and failures of one window have a counter each": Case(
        FAILURES_THEN_REQUESTS[::-1], NINE, {"3600s": 9, "count-401-3600s": 2}
    ),
    "failures that success clears are counted apart": Case(
        (*limited(Policy("few", "3/h"), count=401, reset_when=200), *limited(Policy("many", "5/h"), count=401)),
        (*(WRONG, WRONG, RIGHT) * 2, WRONG, Sent("401", 429)),
        {"count-401-reset-200-3600s": 1, "count-401-3600s": 5},
    ),
    "a counter that failures and requests share counts each request once": Case(
        (*limited(SHARED, count=401), *limited(SHARED)), FIVE_OF_A_SHARED_COUNTER, {"shared": 5}
    ),
    "a counter that requests and failures share counts each request once": Case(
        (*limited(SHARED), *limited(SHARED, count=401)), FIVE_OF_A_SHARED_COUNTER, {"shared": 5}
    ),
    "a counter of failures that two limits share counts each once": Case(
        limited(SHARED, count=401) * 2,
        (Sent("200", times=7, remaining=5), Sent("401", 401, times=4), Sent("401", 401, remaining=0), Sent("401", 429)),
        {"shared": 5},
    ),
    "a refusal by failures that share a counter with requests spends nothing": Case(
        (*limited(SHARED), *limited(Policy("few", [Limit(2, 3600, name="shared")]), count=401)),
        (Sent("200"), Sent("401", 401), Sent("200", 429, times=3)),
        {"shared": 2},
    ),
    "a refusal by a limit that shares a counter spends nothing": Case(
        (*limited(SHARED, count=401), *limited(Policy("few", [Limit(2, 3600, name="shared")]), count="4xx")),
        (Sent("404", 404), Sent("401", 401), Sent("401", 429, times=3)),
        {"shared": 2},
    ),
    "the estimate stays": Case(limited(LLM, estimate={"tokens": 800}), (RIGHT,), {"calls": 1, "tokens": 800}),
    "a number is an estimate of the only other unit": Case(
        limited(LLM, estimate=800), (RIGHT,), {"calls": 1, "tokens": 800}
    ),
    "a callable estimates": Case(limited(LLM, estimate=lambda _: {"tokens": 70}), (RIGHT,), {"calls": 1, "tokens": 70}),
    "the actual cost is below the estimate": Case(
        limited(LLM, estimate=800), (Sent("settle:150"), Sent("settle:100")), {"calls": 2, "tokens": 250}
    ),
    "the actual cost is above the estimate": Case(
        limited(LLM, estimate=800), (Sent("settle:2000"), Sent("200", 429)), {"calls": 1, "tokens": 2000}
    ),
    "what is added as it goes on": Case(limited(LLM, estimate=800), (Sent("add:7"),), {"calls": 1, "tokens": 7}),
    "a stream adds": Case(limited(LLM, estimate=800), (Sent("stream", times=2),), {"calls": 2, "tokens": 30}),
    "an exception returns the estimate": Case(limited(LLM, estimate=800), (Sent("raise", 500, times=3),)),
    "a 5xx returns the estimate": Case(limited(LLM, estimate=800), (Sent("502", 502, times=3), Sent("503", 503))),
    "a 4xx keeps the estimate": Case(limited(LLM, estimate=800), (Sent("422", 422),), {"calls": 1, "tokens": 800}),
    "a stream that breaks keeps what was added": Case(
        limited(LLM, estimate=800), (Sent("break"),), {"calls": 1, "tokens": 10}
    ),
    "an estimate above the limit": Case(limited(LLM, estimate=1001), (Sent("200", 429),)),
    "a header says the actual cost": Case(
        limited(LLM, estimate=800, actual="header:X-Usage-Tokens", hide=True),
        (Sent("header:42"), Sent("header:58")),
        {"calls": 2, "tokens": 100},
    ),
    "a header that is no number keeps the estimate": Case(
        limited(LLM, estimate=400, actual="header:x-usage-tokens"),
        (Sent("header:many"), Sent("200")),
        {"calls": 2, "tokens": 800},
    ),
    "another limit refuses": Case(
        (*limited(LLM, estimate=100), *limited(Policy("one", [Limit(1, 3600, name="one")]))),
        (RIGHT, Sent("200", 429, times=4)),
        {"calls": 1, "tokens": 100, "one": 1},
    ),
    "the application's own limit refuses": Case(limited(LLM, estimate=100), (Sent("refuse", 429, times=4),)),
    "a cost by unit": Case(
        limited(LLM, cost={"tokens": 400}), (Sent("200", times=2), Sent("200", 429)), {"calls": 2, "tokens": 800}
    ),
    "a share of the capacity": Case(limited(LOGINS, share=0.4), (Sent("200", times=2), Sent("200", 429)), {"logins": 2}),
    "a callable says the share": Case(limited(LOGINS, share=lambda _: 0.2), (Sent("200"), Sent("200", 429)), {"logins": 1}),
    "a callable says the anchor": Case(
        limited(Policy("quota", [Limit.parse("quota=2/month")]), anchor=lambda _: 15),
        (Sent("200", times=2), Sent("200", 429)),
        {"quota": 2},
    ),
    "a plan that does not count the unit of an estimate": Case(
        limited("plan", estimate={"tokens": 800}), SETTLED_BY_BOTH, {"calls": 5, "tokens": 165}, BY_ACCOUNT
    ),
    "a plan that does not count what a number estimates": Case(
        limited("plan", estimate=800), SETTLED_BY_BOTH, {"calls": 5, "tokens": 165}, BY_ACCOUNT
    ),
    "a plan without units beside one with several": Case(
        limited("plan", estimate=800),
        (Sent("200", times=3, account="bob"),),
        {"calls": 3},
        {"plans": {"ann": ["9 tokens/h", "9 images/h"], "bob": PLANS["bob"]}, "plan_of": account_of},
    ),
    "a callable whose limits do not always count the unit": Case(
        limited(lambda request: PLANS[account_of(request)], estimate=lambda _: {"tokens": 800}),
        SETTLED_BY_BOTH,
        {"calls": 5, "tokens": 165},
    ),
    "a plan that does not count what a header says": Case(
        limited("plan", estimate=800, actual="header:x-usage-tokens"),
        (Sent("header:42"), Sent("header:58", account="bob")),
        {"calls": 2, "tokens": 42},
        BY_ACCOUNT,
    ),
    "a plan that does not count a cost by unit": Case(
        limited("plan", cost={"tokens": 400}),
        (Sent("200", times=2), Sent("200", 429), Sent("200", times=5, account="bob")),
        {"calls": 7, "tokens": 800},
        BY_ACCOUNT,
    ),
    "a slot is free when the response has ended": Case(
        limited(Policy("slots", [Limit(1, 3600, algorithm="concurrency", name="slots")])),
        (Sent("200", times=3), Sent("stream")),
    ),
    "a slot is part of a reservation": Case(
        limited(Policy("chat", [*LLM.limits, Limit(1, 3600, algorithm="concurrency", name="slots")]), estimate=300),
        (Sent("settle:100", times=2), Sent("raise", 500)),
        {"calls": 2, "tokens": 200},
    ),
}
