"""Clients of the check service: `ratekit serve` decides, and an application asks over HTTP. Needs the extra `client`.

from ratekit.client import RateKitClient

client = RateKitClient("http://ratekit:8080", api_key)
if client.check("GET:/orders", "user:42").allowed: ...
"""

from __future__ import annotations

from ratekit.client.answers import Answer, Check
from ratekit.client.clients import AsyncRateKitClient, RateKitClient, ServiceError

__all__ = ["Answer", "AsyncRateKitClient", "Check", "RateKitClient", "ServiceError"]
