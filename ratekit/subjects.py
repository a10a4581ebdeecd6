"""Who is limited, for logs and reports: by a pseudonym, since a subject may be a person."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b

KEY_VARIABLE = "RATE_LIMIT_HASH_KEY"
_SIZE = 8  # bytes


def pseudonym(subject: str, key: str | None = None) -> str:
    """Return 16 hexadecimal digits that stand for a subject, the same in every process.

    Without a key (RATE_LIMIT_HASH_KEY by default), who can guess the subject can find its pseudonym.
    """
    return pseudonyms(key)(subject)


def pseudonyms(key: str | None = None) -> Callable[[str], str]:
    """Return a function that does the same with one key, for many subjects."""
    secret = os.environ.get(KEY_VARIABLE, "") if key is None else key
    hashed = blake2b(secret.encode("utf-8", "surrogateescape"), digest_size=32).digest() if secret else b""
    keyed = blake2b(digest_size=_SIZE, key=hashed)

    def name(subject: str) -> str:
        hasher = keyed.copy()
        hasher.update(subject.encode("utf-8", "surrogatepass"))
        return hasher.hexdigest()

    return name
