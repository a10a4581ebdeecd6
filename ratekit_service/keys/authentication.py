"""Who asks: API keys of tenants, and the bearer token of administration."""

from __future__ import annotations

import hmac
import secrets
from time import time

from ratekit.core.headers import whole_seconds
from ratekit.core.limits import Policy
from ratekit.limiter.limiters import RateLimiter
from ratekit.stores.memory import MemoryStore
from ratekit_service.configuration.records import Key
from ratekit_service.configuration.refresher import Refresher
from ratekit_service.keys.secrets import id_of, is_same
from ratekit_service.problems import Problem, not_loaded

_DUMMY_SALT, _DUMMY_HASH = secrets.token_bytes(16), secrets.token_bytes(32)
_WRONG_KEY = "x-api-key is missing, unknown, wrong or revoked"
_CHALLENGE = ((b"www-authenticate", b'ApiKey header="x-api-key"'),)
_BEARER = ((b"www-authenticate", b"Bearer"),)


class Failures:
    """Counts wrong keys and tokens by address, in this process, so that guessing ends in 429s."""

    def __init__(self, limit: str) -> None:
        self._policy = Policy("failures", limit) if limit else None
        self._limiter = RateLimiter(MemoryStore(for_one=False, max_counters=50_000))

    def count(self, address: str, problem: Problem) -> Problem:
        """Return the problem of a failure; a 429 if the address has had too many."""
        if self._policy is None:
            return problem
        result = self._limiter.check(self._policy, address)
        if result.allowed or result.retry_after is None:
            return problem
        return Problem(429, "too many wrong keys from this address", retry_after=whole_seconds(result.retry_after))


class Authentication:
    """Finds the key of a request, and notes when it was last used."""

    def __init__(self, refresher: Refresher, failures: Failures, pepper: str, admin_token: str) -> None:
        self._refresher = refresher
        self._failures = failures
        self._pepper = pepper
        self._admin_token = admin_token.encode()
        self.used: dict[str, int] = {}  # minute of the last use by key id, until it is written

    def key(self, text: str | None, scope: str, address: str) -> Key:
        """Return the key of a text. Raises Problem: 401 if there is none, 403 if it is not for this."""
        key_id = id_of(text) if text else None
        if text is None or key_id is None:
            raise self._failures.count(address, Problem(401, _WRONG_KEY, field="x-api-key", headers=_CHALLENGE))
        configuration = self._refresher.configuration
        if configuration.version == 0:
            raise not_loaded()  # nobody can tell whether the key is right
        found = configuration.keys.get(key_id)
        if found is None:
            is_same(text, _DUMMY_SALT, _DUMMY_HASH, self._pepper)  # takes as long as for a key that exists
        if found is None or not is_same(text, found.salt, found.key_hash, self._pepper) or found.is_revoked:
            raise self._failures.count(address, Problem(401, _WRONG_KEY, field="x-api-key", headers=_CHALLENGE))
        now = time()
        if found.expires is not None and found.expires <= now:
            raise self._failures.count(address, Problem(401, "x-api-key has expired", field="x-api-key", headers=_CHALLENGE))
        if scope not in found.scopes:
            raise Problem(403, f"this key is not for {scope!r}: its scopes are {', '.join(sorted(found.scopes))}")
        self.used[key_id] = int(now) // 60
        return found

    def administrator(self, authorization: str | None, address: str) -> None:
        """Raise Problem unless a request has the token of administration."""
        if not self._admin_token:
            raise Problem(403, "administration is off: set RATEKIT_ADMIN_TOKEN")
        scheme, _, token = (authorization or "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._admin_token):
            detail = "the bearer token of administration is missing or wrong"
            raise self._failures.count(address, Problem(401, detail, field="authorization", headers=_BEARER))
