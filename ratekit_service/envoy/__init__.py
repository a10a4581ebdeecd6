"""Envoy's rate limit service, `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`: one function of bytes, and its hosts."""
