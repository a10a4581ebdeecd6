"""Who is limited: key functions for `by=`."""

from ratekit.web.identity import (
    KeyFunction,
    client_ip,
    combine,
    cookie,
    first_of,
    form,
    form_field,
    header,
    json_field,
    query,
)

__all__ = [
    "KeyFunction",
    "client_ip",
    "combine",
    "cookie",
    "first_of",
    "form",
    "form_field",
    "header",
    "json_field",
    "query",
]
