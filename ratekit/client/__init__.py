"""Clients of the check service: `ratekit serve` decides, and an application asks over HTTP. Needs the extra `client`.

from ratekit.client import RateKitClient

client = RateKitClient("http://ratekit:8080", api_key)
if client.check("GET:/orders", "user:42").allowed: ...
"""

from __future__ import annotations

from ratekit.core.errors import MissingExtraError

try:
    import httpx2  # noqa: F401 - told here, in one sentence
except ImportError:
    raise MissingExtraError("ratekit.client", "client") from None

from ratekit.client.answers import Answer, Check, LimitState
from ratekit.client.clients import AsyncRateKitClient, RateKitClient
from ratekit.client.flows import ServiceError
from ratekit.client.reservations import Reservation

__all__ = ["Answer", "AsyncRateKitClient", "Check", "LimitState", "RateKitClient", "Reservation", "ServiceError"]
