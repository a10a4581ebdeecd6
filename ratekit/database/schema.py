"""The tables. The migrations make them, and a test compares the two.

`rate_limit_rules`, `rate_limit_overrides` and `rate_limit_violations` are the published tables of a rate limiter's low-level
design: rows that were written for those are read as they are. What ratekit adds to them has a default.

- tenant_id: whose row it is. The empty text stands for no tenant: rows of applications that limit themselves.
- version: the number of the configuration in which a row was last written, see `versions`.
- Times are UTC, and aware when they are read.
"""

from __future__ import annotations

import datetime
from typing import Any

from ratekit.core.errors import MissingExtraError

try:
    from sqlalchemy import (
        JSON,
        BigInteger,
        Boolean,
        Column,
        DateTime,
        Dialect,
        ForeignKey,
        Index,
        Integer,
        MetaData,
        String,
        Table,
        Text,
        UniqueConstraint,
        func,
        true,
    )
    from sqlalchemy.types import TypeDecorator
except ImportError:
    raise MissingExtraError("a database", "sql") from None

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
LONGEST_NAME = 256
metadata = MetaData(naming_convention=NAMES)


class UtcTime(TypeDecorator[datetime.datetime]):
    """A time in UTC. It is aware in Python, whatever the database keeps."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime.datetime | None, dialect: Dialect) -> datetime.datetime | None:
        """Return the time as the database takes it; a naive one is UTC."""
        if value is None:
            return None
        aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        utc = aware.astimezone(datetime.UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime.datetime | None, dialect: Dialect) -> datetime.datetime | None:
        """Return the time of a row, aware."""
        if value is None:
            return None
        return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)


def _number() -> BigInteger | Any:
    return BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up its INTEGER keys only


def _tenant() -> Column[str]:
    return Column("tenant_id", String(64), nullable=False, server_default="")


def _created() -> Column[datetime.datetime]:
    return Column("created_at", UtcTime, nullable=False, server_default=func.now())


def _updated() -> Column[datetime.datetime]:
    return Column("updated_at", UtcTime, nullable=False, server_default=func.now(), onupdate=func.now())


def _version() -> Column[int]:
    return Column("version", BigInteger, nullable=False, server_default="0", index=True)


def _of_tenant() -> Column[str]:
    return Column("tenant_id", String(64), ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False, index=True)


rules = Table(
    "rate_limit_rules",
    metadata,
    Column("rule_id", _number(), primary_key=True, autoincrement=True),
    _tenant(),
    Column("client_key", String(LONGEST_NAME), nullable=False),  # a user's id, a key, an address, or "*"
    Column("endpoint", String(LONGEST_NAME), nullable=False, server_default="*"),
    Column("algorithm", String(32), nullable=False),
    Column("max_requests", BigInteger, nullable=False),
    Column("window_secs", BigInteger, nullable=False),
    Column("burst_size", BigInteger, nullable=False, server_default="0"),  # 0: no burst
    Column("enabled", Boolean, nullable=False, server_default=true()),
    Column("on_outage", String(16)),
    Column("mode", String(16)),
    _created(),
    _updated(),
    _version(),
    UniqueConstraint("tenant_id", "client_key", "endpoint"),
)

overrides = Table(
    "rate_limit_overrides",
    metadata,
    Column("override_id", _number(), primary_key=True, autoincrement=True),
    _tenant(),
    Column("client_key", String(LONGEST_NAME), nullable=False),
    # Either a rule of the table above, or an endpoint; "*" stands for all endpoints of the subject.
    Column("rule_id", _number(), ForeignKey("rate_limit_rules.rule_id", ondelete="CASCADE"), index=True),
    Column("endpoint", String(LONGEST_NAME)),
    Column("max_requests", BigInteger),
    Column("fields", JSON),  # the other fields of the override's hash in the store: expiry, burst, unlimited, 60s.burst …
    Column("valid_until", UtcTime, index=True),  # None: until it is deleted
    Column("set_by", String(LONGEST_NAME)),
    Column("reason", Text),
    _created(),
    _updated(),
    _version(),
    Index(None, "tenant_id", "client_key"),
)

override_history = Table(
    "rate_limit_override_history",
    metadata,
    Column("history_id", _number(), primary_key=True, autoincrement=True),
    Column("override_id", BigInteger),
    _tenant(),
    Column("client_key", String(LONGEST_NAME), nullable=False),
    Column("endpoint", String(LONGEST_NAME)),
    Column("action", String(16), nullable=False),  # set, delete, expire
    Column("max_requests", BigInteger),
    Column("fields", JSON),
    Column("valid_until", UtcTime),
    Column("changed_by", String(LONGEST_NAME)),
    Column("reason", Text),
    Column("changed_at", UtcTime, nullable=False, server_default=func.now()),
    Index(None, "tenant_id", "client_key", "changed_at"),
)

violations = Table(
    "rate_limit_violations",
    metadata,
    Column("violation_id", _number(), primary_key=True, autoincrement=True),
    _tenant(),
    Column("client_key", String(LONGEST_NAME), nullable=False),
    Column("endpoint", String(LONGEST_NAME), nullable=False),
    Column("limit_name", String(100)),
    Column("violated_at", UtcTime, nullable=False, server_default=func.now()),
    Column("request_count", BigInteger, nullable=False),
    Column("limit_value", BigInteger, nullable=False),
    Index(None, "client_key", "violated_at"),
    Index(None, "tenant_id", "violated_at"),
)

documents = Table(
    "rule_documents",
    metadata,
    Column("service", String(LONGEST_NAME), primary_key=True),
    Column("document", JSON, nullable=False),
    Column("version", BigInteger, nullable=False),
    _updated(),
)

tenants = Table(
    "tenants",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(LONGEST_NAME), nullable=False, unique=True),
    Column("default_plan_id", String(64)),
    Column("settings", JSON),
    _created(),
    _updated(),
    _version(),
)

plans = Table(
    "plans",
    metadata,
    Column("id", String(64), primary_key=True),
    _of_tenant(),
    Column("name", String(LONGEST_NAME), nullable=False),
    Column("definition", JSON, nullable=False),
    _created(),
    _updated(),
    _version(),
    UniqueConstraint("tenant_id", "name"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(64), primary_key=True),  # the public part of the key
    _of_tenant(),
    Column("name", String(LONGEST_NAME), nullable=False),
    Column("kind", String(16), nullable=False),  # the word in the key: live, test
    Column("plan_id", String(64)),
    Column("salt", String(64), nullable=False),
    Column("key_hash", String(64), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    Column("replaced_by", String(64)),
    Column("last_used_at", UtcTime),
    _created(),
    _updated(),
    _version(),
)

resource_policies = Table(
    "resource_policies",
    metadata,
    Column("id", String(64), primary_key=True),
    _of_tenant(),
    Column("pattern", String(LONGEST_NAME), nullable=False),
    Column("plan_id", String(64), nullable=False),
    Column("counter", String(LONGEST_NAME)),  # one counter for all resources of the pattern, under this name
    _created(),
    _updated(),
    _version(),
    UniqueConstraint("tenant_id", "pattern"),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", _number(), primary_key=True, autoincrement=True),
    Column("at", UtcTime, nullable=False, server_default=func.now()),
    Column("actor", String(LONGEST_NAME), nullable=False),
    Column("action", String(32), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("object_id", String(LONGEST_NAME), nullable=False),
    _tenant(),
    Column("details", JSON),
    Index(None, "tenant_id", "at"),
)

config_version = Table(
    "config_version",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # there is one row, of id 1
    Column("version", BigInteger, nullable=False),
    Column("complete_since", BigInteger, nullable=False, server_default="0"),  # deletions after this version are known
    _updated(),
)

config_deletions = Table(
    "config_deletions",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(32), primary_key=True),
    Column("object_id", String(LONGEST_NAME), primary_key=True),
    Column("deleted_at", UtcTime, nullable=False, server_default=func.now()),
)
