"""API keys of tenants: made, rotated, revoked; of each only a salted hash is kept."""
