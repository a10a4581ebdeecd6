"""A gateway to a language model: requests and tokens a minute, tokens a month, streams that are settled at their end."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from ratekit import Calendar, Limit, Policy
from ratekit_fastapi import Reservation, ReserveLimiter, install


def plan(requests: int, tokens: int, month: int) -> Policy:
    """Make a plan. All of its limits are decided together; the month is that of the calendar, in UTC."""
    budget = Limit(month, Calendar("month"), unit="tokens", name="month")
    return Policy("llm", [Limit(requests, 60), Limit(tokens, 60, unit="tokens"), budget])


PLANS = {"trial": plan(10, 1_000, 300), "pro": plan(60, 90_000, 5_000_000)}


class Customer(NamedTuple):
    org: str
    plan: str


# Whose key is which. A real gateway asks its database.
CUSTOMERS = {"key-of-trial": Customer("org:1", "trial"), "key-of-pro": Customer("org:2", "pro")}
TOKEN_SECONDS = float(os.environ.get("TOKEN_SECONDS", "0.05"))  # how slowly the model speaks


class Chat(BaseModel):
    prompt: str = Field(min_length=1, max_length=10_000)
    max_tokens: int = Field(100, ge=1, le=8_192)
    stream: bool = False


async def customer_of(x_api_key: Annotated[str, Header()] = "") -> Customer:
    if x_api_key not in CUSTOMERS:
        raise HTTPException(401, "send the key of a customer as X-API-Key")
    return CUSTOMERS[x_api_key]


class ModelError(Exception):
    """The model has failed."""


async def model(chat: Chat) -> AsyncIterator[str]:
    """Say the prompt backwards, a word and so a token at a time. "break" breaks it. A real gateway asks a model here."""
    words = chat.prompt.split()
    for word in list(reversed(words))[: chat.max_tokens]:
        await asyncio.sleep(TOKEN_SECONDS)
        if word == "break":
            raise ModelError("the model is broken")
        yield word


def plan_of(request: Request) -> str:
    plan: str = request.state.plan
    return plan


def estimate_of(request: Request) -> dict[str, int]:
    return {"tokens": request.state.most_tokens}


async def who_asks(request: Request, asked: Chat, customer: Annotated[Customer, Depends(customer_of)]) -> str:
    """Say who is limited, once the key and the body are known to be right, and keep what the limits depend on."""
    request.state.plan, request.state.most_tokens = customer.plan, len(asked.prompt.split()) + asked.max_tokens
    return customer.org


app = FastAPI(title="llm gateway")
settings = install(app, plans=PLANS, plan_of=plan_of)  # counts in RATE_LIMIT_STORE_URL, else in the process
# What the answer may cost at most is reserved, and what it has cost is settled when it has ended. A 502 costs nothing.
reserve = ReserveLimiter(
    limits="plan", by=Depends(who_asks), estimate=estimate_of, endpoint="llm", count=lambda answer: answer.status_code < 500
)


@app.post("/v1/chat")
async def chat(asked: Chat, usage: Annotated[Reservation, Depends(reserve)]) -> Any:
    """Answer at once, or word by word.

    - A customer whose answers run sees them as spent: two cannot use the same tokens.
    - If the model fails before its first token, all of it returns.
    - If the client hangs up, what was said until then is spent.
    """
    if asked.stream:
        return StreamingResponse(events(asked, usage), media_type="text/event-stream")
    words = [word async for word in spoken(asked, usage)]
    return {"answer": " ".join(words), "usage": {"tokens": len(asked.prompt.split()) + len(words)}}


async def spoken(asked: Chat, usage: Reservation) -> AsyncIterator[str]:
    """Ask the model, and count its tokens; those of the prompt with the first one."""
    more = len(asked.prompt.split())
    async for word in model(asked):
        usage.add(tokens=1 + more)
        more = 0
        yield word


async def events(asked: Chat, usage: Reservation) -> AsyncIterator[str]:
    """Send a stream. Its status is sent before the model fails, so that is said here."""
    has_spoken = False
    try:
        async for word in spoken(asked, usage):
            has_spoken = True
            yield f"data: {json.dumps({'token': word})}\n\n"
        yield "data: [DONE]\n\n"
    except ModelError as error:
        if not has_spoken:
            usage.settle(requests=0, tokens=0)
        yield f"data: {json.dumps({'error': str(error)})}\n\n"


@app.exception_handler(ModelError)
async def bad_gateway(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 502)


@app.get("/v1/usage")
async def usage(customer: Annotated[Customer, Depends(customer_of)]) -> dict[str, Any]:
    """Say what is left of each limit, and when it is full again. Looking spends nothing."""
    found = await settings.limiter().peek(PLANS[customer.plan], customer.org, cost={"requests": 0, "tokens": 0})
    return {tier.name: {"remaining": tier.remaining, "resets_in": round(tier.reset_after)} for tier in found.tiers}


@app.get("/health")
async def health() -> dict[str, bool]:
    """For probes. It does not ask the store: an outage of the limits is no reason to restart the application."""
    return {"well": True}


WHAT_TO_TRY = """\
A gateway to a language model on {url}: pro has 60 requests and 90 000 tokens a minute, trial 300 tokens a month.

  curl -N {json} '{{"prompt": "a stream of words that come one by one", "stream": true}}' -H 'X-API-Key: key-of-pro' {chat}
  curl -H 'X-API-Key: key-of-pro' {url}/v1/usage      # the stream has cost what it has said, not what it might have
  curl -i {json} '{{"prompt": "hello", "max_tokens": 290}}' -H 'X-API-Key: key-of-trial' {chat}      # fits into the month
  curl -i {json} '{{"prompt": "hello", "max_tokens": 299}}' -H 'X-API-Key: key-of-trial' {chat}      # does not fit any more

Ctrl-C ends the server."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of the loopback to listen on (default 8000)")
    port = parser.parse_args().port
    url = f"http://127.0.0.1:{port}"
    json_body = "-H 'Content-Type: application/json' -d"  # older versions of curl have no --json
    print(WHAT_TO_TRY.format(url=url, chat=f"{url}/v1/chat", json=json_body), flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
