"""What each team writes: a function from a request to the key by which it is limited."""

from __future__ import annotations

from ratekit.rules import RequestView

PREMIUM = {"premium-tier"}


def sentiment_key(request: RequestView) -> str:
    """By the key of a premium customer, else by tenant and language in the body, else by user, else by address.

    The gateway in front has checked who they are: a client that could choose its tenant would choose its limit.
    """
    if request.headers.get("X-API-Key") in PREMIUM:
        return f"apiKey:{request.headers['X-API-Key']}"
    body = request.json
    if "tenant_id" in body and "language" in body:
        return f"tenant:{body['tenant_id']}:lang:{body['language']}"
    if "X-User-Id" in request.headers:
        return f"user:{request.headers['X-User-Id']}"
    return f"ip:{request.remote_addr}"


def images_key(request: RequestView) -> str:
    """By what a request costs the GPUs: the model and the resolution in the query."""
    resolution = "hd" if request.args.get("hd") == "true" else "sd"
    return f"model:{request.args.get('model_version', 'v1')}:res:{resolution}"
