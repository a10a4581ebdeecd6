"""Rules by client key and endpoint, for `POST /check`."""
