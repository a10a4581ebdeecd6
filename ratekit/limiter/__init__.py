"""RateLimiter and AsyncRateLimiter: what they can be asked, and what they do when the store is away."""
