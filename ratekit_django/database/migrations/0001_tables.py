"""Make ratekit's tables, by its own tree of migrations, and tell Django of them."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from ratekit.database.migrate import upgrade
from ratekit_django.database.urls import url_of_database


def make_tables(apps: Any, schema_editor: Any) -> None:
    """Run ratekit's migrations in the database that Django migrates."""
    upgrade(url_of_database(schema_editor.connection).render_as_string(hide_password=False))


def unmanaged(name: str, key: str, **options: Any) -> migrations.CreateModel:
    """Tell Django of a model. Django neither makes nor changes its table, so its columns do not matter here."""
    field = models.AutoField if key == "id" else models.BigAutoField
    return migrations.CreateModel(name, [(key, field(primary_key=True))], {"managed": False, **options})


class Migration(migrations.Migration):
    """The first migration. No transaction of Django may be open: the tables are made by a connection of their own."""

    initial = True
    atomic = False
    operations = (
        migrations.RunPython(make_tables, migrations.RunPython.noop),
        unmanaged("Rule", "rule_id", db_table="rate_limit_rules"),
        unmanaged("Override", "override_id", db_table="rate_limit_overrides"),
        unmanaged("OverrideChange", "history_id", db_table="rate_limit_override_history"),
        unmanaged("Violation", "violation_id", db_table="rate_limit_violations"),
        unmanaged("ConfigVersion", "id", db_table="config_version"),
        migrations.CreateModel(
            "ConfigDeletion",
            [
                ("pk", models.CompositePrimaryKey("version", "kind", "object_id", primary_key=True, serialize=False)),
                *((name, models.CharField(max_length=256)) for name in ("version", "kind", "object_id")),
            ],
            {"managed": False, "db_table": "config_deletions"},
        ),
        unmanaged("Report", "id", default_permissions=("view",)),
    )
