"""Make the tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)
TABLES = [
    "resource_policies",
    "rate_limit_overrides",
    "plans",
    "api_keys",
    "tenants",
    "rule_documents",
    "rate_limit_violations",
    "rate_limit_rules",
    "rate_limit_override_history",
    "config_version",
    "config_deletions",
    "audit_log",
]


def _create(name: str, *parts: Any) -> None:
    """Make a table that keeps every text as it is.

    The defaults of MySQL and MariaDB keep Latin letters only, or compare without case, accents and spaces at the end: then
    a subject has another's override.
    """
    collation = "utf8mb4_nopad_bin" if getattr(op.get_bind().dialect, "is_mariadb", False) else "utf8mb4_0900_bin"
    options: dict[str, Any] = {f"{kind}_charset": "utf8mb4" for kind in ("mysql", "mariadb")}
    options |= {f"{kind}_collate": collation for kind in ("mysql", "mariadb")}
    op.create_table(name, *parts, **options)


def _audit_log() -> None:
    _create(
        "audit_log",
        sa.Column("id", NUMBER, autoincrement=True, nullable=False),
        sa.Column("at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("actor", sa.String(length=256), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("object_id", sa.String(length=256), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), server_default="", nullable=False),
        sa.Column("details", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index(op.f("ix_audit_log_tenant_id_at"), "audit_log", ["tenant_id", "at"])


def _config_deletions() -> None:
    _create(
        "config_deletions",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("object_id", sa.String(length=256), nullable=False),
        sa.Column("deleted_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("version", "kind", "object_id", name=op.f("pk_config_deletions")),
    )


def _config_version() -> None:
    _create(
        "config_version",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("complete_since", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("updated_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_config_version")),
    )


def _rate_limit_override_history() -> None:
    _create(
        "rate_limit_override_history",
        sa.Column("history_id", NUMBER, autoincrement=True, nullable=False),
        sa.Column("override_id", sa.BigInteger(), nullable=True),
        sa.Column("tenant_id", sa.String(length=64), server_default="", nullable=False),
        sa.Column("client_key", sa.String(length=256), nullable=False),
        sa.Column("endpoint", sa.String(length=256), nullable=True),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("max_requests", sa.BigInteger(), nullable=True),
        sa.Column("fields", sa.JSON(), nullable=True),
        sa.Column("valid_until", TIME, nullable=True),
        sa.Column("changed_by", sa.String(length=256), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("changed_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("history_id", name=op.f("pk_rate_limit_override_history")),
    )
    op.create_index(
        op.f("ix_rate_limit_override_history_tenant_id_client_key_changed_at"),
        "rate_limit_override_history",
        ["tenant_id", "client_key", "changed_at"],
    )


def _rate_limit_rules() -> None:
    _create(
        "rate_limit_rules",
        sa.Column("rule_id", NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), server_default="", nullable=False),
        sa.Column("client_key", sa.String(length=256), nullable=False),
        sa.Column("endpoint", sa.String(length=256), server_default="*", nullable=False),
        sa.Column("algorithm", sa.String(length=32), nullable=False),
        sa.Column("max_requests", sa.BigInteger(), nullable=False),
        sa.Column("window_secs", sa.BigInteger(), nullable=False),
        sa.Column("burst_size", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("on_outage", sa.String(length=16), nullable=True),
        sa.Column("mode", sa.String(length=16), nullable=True),
        sa.Column("created_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("updated_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("rule_id", name=op.f("pk_rate_limit_rules")),
        sa.UniqueConstraint(
            "tenant_id", "client_key", "endpoint", name=op.f("uq_rate_limit_rules_tenant_id_client_key_endpoint")
        ),
    )
    op.create_index(op.f("ix_rate_limit_rules_version"), "rate_limit_rules", ["version"])


def _rate_limit_violations() -> None:
    _create(
        "rate_limit_violations",
        sa.Column("violation_id", NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), server_default="", nullable=False),
        sa.Column("client_key", sa.String(length=256), nullable=False),
        sa.Column("endpoint", sa.String(length=256), nullable=False),
        sa.Column("limit_name", sa.String(length=100), nullable=True),
        sa.Column("violated_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("request_count", sa.BigInteger(), nullable=False),
        sa.Column("limit_value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("violation_id", name=op.f("pk_rate_limit_violations")),
    )
    op.create_index(
        op.f("ix_rate_limit_violations_client_key_violated_at"), "rate_limit_violations", ["client_key", "violated_at"]
    )
    op.create_index(
        op.f("ix_rate_limit_violations_tenant_id_violated_at"), "rate_limit_violations", ["tenant_id", "violated_at"]
    )


def _rule_documents() -> None:
    _create(
        "rule_documents",
        sa.Column("service", sa.String(length=256), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("service", name=op.f("pk_rule_documents")),
    )


def _tenants() -> None:
    _create(
        "tenants",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("default_plan_id", sa.String(length=64), nullable=True),
        sa.Column("settings", sa.JSON(), nullable=True),
        sa.Column("created_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("updated_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_index(op.f("ix_tenants_version"), "tenants", ["version"])


def _api_keys() -> None:
    _create(
        "api_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("plan_id", sa.String(length=64), nullable=True),
        sa.Column("salt", sa.String(length=64), nullable=False),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.Column("replaced_by", sa.String(length=64), nullable=True),
        sa.Column("last_used_at", TIME, nullable=True),
        sa.Column("created_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("updated_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"])
    op.create_index(op.f("ix_api_keys_version"), "api_keys", ["version"])


def _plans() -> None:
    _create(
        "plans",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("created_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("updated_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_plans_tenant_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_plans_tenant_id_name")),
    )
    op.create_index(op.f("ix_plans_tenant_id"), "plans", ["tenant_id"])
    op.create_index(op.f("ix_plans_version"), "plans", ["version"])


def _rate_limit_overrides() -> None:
    _create(
        "rate_limit_overrides",
        sa.Column("override_id", NUMBER, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), server_default="", nullable=False),
        sa.Column("client_key", sa.String(length=256), nullable=False),
        sa.Column("rule_id", NUMBER, nullable=True),
        sa.Column("endpoint", sa.String(length=256), nullable=True),
        sa.Column("max_requests", sa.BigInteger(), nullable=True),
        sa.Column("fields", sa.JSON(), nullable=True),
        sa.Column("valid_until", TIME, nullable=True),
        sa.Column("set_by", sa.String(length=256), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("updated_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["rule_id"], ["rate_limit_rules.rule_id"], name=op.f("fk_rate_limit_overrides_rule_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("override_id", name=op.f("pk_rate_limit_overrides")),
    )
    op.create_index(op.f("ix_rate_limit_overrides_rule_id"), "rate_limit_overrides", ["rule_id"])
    op.create_index(
        op.f("ix_rate_limit_overrides_tenant_id_client_key"), "rate_limit_overrides", ["tenant_id", "client_key"]
    )
    op.create_index(op.f("ix_rate_limit_overrides_valid_until"), "rate_limit_overrides", ["valid_until"])
    op.create_index(op.f("ix_rate_limit_overrides_version"), "rate_limit_overrides", ["version"])


def _resource_policies() -> None:
    _create(
        "resource_policies",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("pattern", sa.String(length=256), nullable=False),
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.Column("counter", sa.String(length=256), nullable=True),
        sa.Column("created_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("updated_at", TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_resource_policies_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_resource_policies")),
        sa.UniqueConstraint("tenant_id", "pattern", name=op.f("uq_resource_policies_tenant_id_pattern")),
    )
    op.create_index(op.f("ix_resource_policies_tenant_id"), "resource_policies", ["tenant_id"])
    op.create_index(op.f("ix_resource_policies_version"), "resource_policies", ["version"])


def upgrade() -> None:
    """Make every table, and the row with the first version."""
    _audit_log()
    _config_deletions()
    _config_version()
    _rate_limit_override_history()
    _rate_limit_rules()
    _rate_limit_violations()
    _rule_documents()
    _tenants()
    _api_keys()
    _plans()
    _rate_limit_overrides()
    _resource_policies()
    op.execute("INSERT INTO config_version (id, version) VALUES (1, 1)")


def downgrade() -> None:
    """Drop every table."""
    for name in TABLES:
        op.drop_table(name)
