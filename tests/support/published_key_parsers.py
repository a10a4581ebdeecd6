"""The two key functions of the published design, as teams write them: by headers, JSON body and address of a request."""

from __future__ import annotations

PREMIUM = {"premium-tier"}


def is_premium_tier(api_key):
    return api_key in PREMIUM


def sentiment(request):
    headers = request.headers
    body = request.json
    if "X-API-Key" in headers:
        api_key = headers["X-API-Key"]
        if is_premium_tier(api_key):
            return f"apiKey:{api_key}"
    if "tenant_id" in body and "language" in body:
        tenant = body["tenant_id"]
        lang = body["language"]
        return f"tenant:{tenant}:lang:{lang}"
    if "user_id" in headers:
        return f"user:{headers['user_id']}"
    return f"ip:{request.remote_addr}"


def image_recognition(request):
    body = request.json
    model = body.get("model_version", "v1")
    resolution = "hd" if body.get("hd_mode", False) else "sd"
    return f"model:{model}:res:{resolution}"


def raising(request):
    raise RuntimeError("a bug of the team")


async def awaited(request):
    return f"user:{request.headers.get('x-user')}"


def size(request):
    return int(request.headers.get("x-size", "1"))
