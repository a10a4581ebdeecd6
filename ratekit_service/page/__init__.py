"""The page: bursts to watch, and administration, as static files that call the service's own API."""
