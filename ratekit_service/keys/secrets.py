"""API keys: how they are made, told apart, and compared.

    rk_live_bjEC1T874o0H_eyOk7T…q1X9d2
    kind    id           secret and checksum

The id is public: it is shown in lists and logs, and finds the key. The secret has 190 random bits, so a fast hash is enough.
The checksum ends typing errors and scanners before anything is looked up.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import string
import zlib
from typing import NamedTuple

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
KINDS = ("live", "test")
ID_LENGTH, SECRET_LENGTH, CHECK_LENGTH = 12, 32, 6
_LENGTH = len("rk_live_") + ID_LENGTH + 1 + SECRET_LENGTH + CHECK_LENGTH
_PAIR = 62 * 62
_PAIRS = [one + other for one in ALPHABET for other in ALPHABET]  # a checksum is made by three looks, not by six divisions
_PREFIXES = tuple(f"rk_{kind}_" for kind in KINDS)
_ID = slice(len("rk_live_"), len("rk_live_") + ID_LENGTH)


class NewKey(NamedTuple):
    """A key that was just made: the only time that its text is known."""

    id: str
    text: str
    salt: str
    key_hash: str


def make_key(kind: str, pepper: str = "") -> NewKey:
    """Make a key of a kind, with what is kept of it."""
    key_id = random_text(ID_LENGTH)
    start = f"rk_{kind}_{key_id}_{random_text(SECRET_LENGTH)}"
    text = start + _checksum(start)
    salt = secrets.token_bytes(16)
    return NewKey(key_id, text, salt.hex(), hash_of(text, salt, pepper).hex())


def random_text(length: int) -> str:
    """Return random letters and digits, of about six bits each."""
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def id_of(text: str) -> str | None:
    """Return the id in a key; None if the text is not a key, or was mistyped."""
    if len(text) != _LENGTH or not text.startswith(_PREFIXES) or not text.isascii():
        return None
    start = text[:-CHECK_LENGTH]
    return text[_ID] if _checksum(start) == text[-CHECK_LENGTH:] else None


def hash_of(text: str, salt: bytes, pepper: str = "") -> bytes:
    """Return what is kept of a key."""
    if pepper:
        return hmac.digest(pepper.encode(), salt + text.encode(), "sha256")
    return hashlib.sha256(salt + text.encode()).digest()


def is_same(text: str, salt: bytes, key_hash: bytes, pepper: str = "") -> bool:
    """Whether a text is the key of which salt and hash were kept, in a time that does not depend on where they differ."""
    return hmac.compare_digest(hash_of(text, salt, pepper), key_hash)


def _checksum(text: str) -> str:
    rest, last = divmod(zlib.crc32(text.encode()), _PAIR)
    first, middle = divmod(rest, _PAIR)
    return _PAIRS[first] + _PAIRS[middle] + _PAIRS[last]
