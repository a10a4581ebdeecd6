"""Pseudonyms: keyed hashes that stand for subjects, and for secrets that clients send, in keys, logs and reports.

A subject may be a person. RATE_LIMIT_HASH_KEY is the key of the hash; all processes of one fleet need the same one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b

from ratekit.core.errors import ConfigurationError

KEY_VARIABLE = "RATE_LIMIT_HASH_KEY"
DIGITS = 16


def pseudonym(text: str, key: str | None = None, *, digits: int = DIGITS) -> str:
    """Return the pseudonym of a text: hexadecimal digits, the same in every process with the same key.

    The key is RATE_LIMIT_HASH_KEY by default. Without a key, whoever can guess the text can compute its pseudonym.
    """
    return pseudonyms(key, digits=digits)(text)


def pseudonyms(key: str | None = None, *, digits: int = DIGITS) -> Callable[[str], str]:
    """Return a function that computes pseudonyms with one key, faster than `pseudonym` for many texts."""
    if type(digits) is not int or digits % 2 or not 2 <= digits <= 128:
        raise ConfigurationError(f"digits {digits!r} is not an even number between 2 and 128")
    secret = os.environ.get(KEY_VARIABLE, "") if key is None else key
    hashed = blake2b(secret.encode("utf-8", "surrogateescape"), digest_size=32).digest() if secret else b""
    keyed = blake2b(digest_size=digits // 2, key=hashed)

    def name(text: str) -> str:
        hasher = keyed.copy()
        hasher.update(text.encode("utf-8", "surrogatepass"))
        return hasher.hexdigest()

    return name
