"""Envoy's rate limit service, `envoy.service.ratelimit.v3.RateLimitService`: one function of bytes, and its hosts."""
