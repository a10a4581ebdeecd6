"""Slots and reservations as callers hold them: a text that says where they are counted, so that no instance has to remember.

It has no secret in it: whoever settles a reservation or releases a slot needs a key of its tenant, and its random id.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from ratekit.limiter.reservations import hold_ms
from ratekit_service.bounds import LONGEST_ID, MOST_HOLD
from ratekit_service.checks.requests import Anchor, Number, Unit
from ratekit_service.problems import Problem, not_found


class Slot(msgspec.Struct, array_like=True, frozen=True):
    """A slot, or a reservation, which may hold one: its random id, and where it is counted."""

    id: str
    plan_id: str
    resource: str  # or the counter of its resource policy
    subject: str
    hold_ms: int = 0  # of a reservation
    estimate: dict[Unit, Number] | None = None  # what was reserved; None: nothing, as the mode was off or monitor
    is_known: bool = False  # whether the store has said that it was reserved
    anchor: Anchor | None = None


_decoder = msgspec.msgpack.Decoder(Slot)


def text_of(slot: Slot) -> str:
    """Return a slot as the caller gets it."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(slot)).decode().rstrip("=")


def slot_of(text: str, field: str = "slot") -> Slot:
    """Return the slot of a text. Raises Problem if it is none, which names the field."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        slot = _decoder.decode(raw)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise unknown_slot(field) from None
    if not _makes_sense(slot):
        raise unknown_slot(field)
    return slot


def _makes_sense(slot: Slot) -> bool:
    is_id = slot.id.isascii() and slot.id.isalnum() and len(slot.id) <= LONGEST_ID
    return is_id and all((slot.plan_id, slot.resource, slot.subject)) and 0 <= slot.hold_ms <= hold_ms(MOST_HOLD)


def unknown_slot(field: str = "slot") -> Problem:
    """Return the 404 for a slot that no check, or a reservation that no reserve, has answered with."""
    return not_found("slot" if field == "slot" else "reservation", field=field)
