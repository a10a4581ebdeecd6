"""A subject's own numbers, kept in the store: set, get, delete, list and clear them."""

from ratekit.admin.overrides import (
    Numbers,
    Override,
    OverridePage,
    clear_rate_limit_overrides,
    delete_rate_limit_override,
    get_rate_limit_override,
    list_rate_limit_overrides,
    parse_override_key,
    set_rate_limit_override,
)

__all__ = [
    "Numbers",
    "Override",
    "OverridePage",
    "clear_rate_limit_overrides",
    "delete_rate_limit_override",
    "get_rate_limit_override",
    "list_rate_limit_overrides",
    "parse_override_key",
    "set_rate_limit_override",
]
