"""The recipe of docs/logins.md holds: however many guess at once, no more guesses than the limit are looked at."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import httpx2
from django.test import Client
from django.urls import path

from ratekit_django.middleware import RateLimitMiddleware
from support import django_ready  # noqa: F401
from support.pages import snippets

RIGHT, WRONG = {"email": " Ann@x.org", "password": "open sesame"}, {"email": "ann@x.org", "password": "guess"}


def recipe(number: int) -> SimpleNamespace:
    found: dict[str, Any] = {"__name__": "recipe"}
    exec(snippets()[f"docs/logins.md-{number}"], found)
    return SimpleNamespace(**found)


def test_sixty_guesses_at_once_are_five_looked_at(ratekit_store):
    app = recipe(0).app

    async def guess() -> list[int]:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://api") as client:
            answers = await asyncio.gather(*(client.post("/login", json=WRONG) for _ in range(60)))
            return [answer.status_code for answer in answers]

    assert Counter(asyncio.run(guess())) == {401: 5, 429: 55}


def test_right_password_spends_nothing_and_is_refused_after_five_wrong_ones(ratekit_store):
    app = recipe(0).app

    async def ask() -> list[int]:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://api") as client:
            sent = [RIGHT] * 20 + [WRONG] * 5 + [RIGHT]
            return [(await client.post("/login", json=one)).status_code for one in sent]

    assert asyncio.run(ask()) == [200] * 20 + [401] * 5 + [429]


def test_recipe_of_django_counts_wrong_passwords_only(ratekit_store, settings):
    settings.ROOT_URLCONF = (path("login", recipe(1).login),)
    settings.RATEKIT = {"STORE_URL": "memory://"}
    settings.MIDDLEWARE = [f"{RateLimitMiddleware.__module__}.{RateLimitMiddleware.__name__}"]
    sent = [RIGHT] * 20 + [WRONG] * 5 + [RIGHT]
    assert [Client().post("/login", one).status_code for one in sent] == [200] * 20 + [401] * 5 + [429]
