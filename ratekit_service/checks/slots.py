"""Slots as callers hold them: a text that says which slot of which plan it is, so that no instance has to remember.

It has no secret in it: whoever releases a slot needs a key of its tenant, and the slot's random id.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

import msgspec

from ratekit_service.problems import Problem, not_found


class Slot(NamedTuple):
    """One slot: its random id, and where it is counted."""

    id: str
    plan_id: str
    resource: str  # or the counter of its resource policy
    subject: str


_decoder = msgspec.msgpack.Decoder(tuple[str, str, str, str])


def text_of(slot: Slot) -> str:
    """Return a slot as the caller gets it."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(tuple(slot))).decode().rstrip("=")


def slot_of(text: str) -> Slot:
    """Return the slot of a text. Raises Problem if it is none."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        slot = Slot(*_decoder.decode(raw))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise unknown_slot() from None
    if not all(slot) or not slot.id.isalnum():
        raise unknown_slot()
    return slot


def unknown_slot() -> Problem:
    """Return the 404 for a slot that no check has answered with."""
    return not_found("slot", field="slot")
