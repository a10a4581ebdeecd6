"""ratekit as a service."""
