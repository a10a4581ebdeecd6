"""Models of ratekit's tables. Alembic makes the tables, for all of ratekit; the first migration here runs it."""

from __future__ import annotations

import json
from typing import Any

from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone

from ratekit.core.limits import Algorithm
from ratekit.database.override_rows import OverrideRow

_ALGORITHMS = [(str(algorithm), str(algorithm).replace("_", " ")) for algorithm in Algorithm]
MAX_REQUESTS = "max_requests"


class JsonColumn(models.JSONField):
    """A column of JSON, which some drivers hand on parsed and others as a text."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return what the column has."""
        return json.loads(value) if isinstance(value, str | bytes) else value


class Rule(models.Model):
    """A limit by client key and endpoint."""

    rule_id = models.BigAutoField(primary_key=True)
    tenant_id = models.CharField(max_length=64, default="", blank=True, editable=False)
    client_key = models.CharField("subject", max_length=256, help_text="A user, a key, an address; * for everybody.")
    endpoint = models.CharField(max_length=256, default="*", help_text="A route as it is declared; * for all.")
    algorithm = models.CharField(max_length=32, choices=_ALGORITHMS, default=str(Algorithm.FIXED_WINDOW))
    max_requests = models.BigIntegerField(validators=[MinValueValidator(0)])
    window_secs = models.BigIntegerField("window in seconds", validators=[MinValueValidator(1)])
    burst_size = models.BigIntegerField("burst", default=0, validators=[MinValueValidator(0)], help_text="0: no burst.")
    enabled = models.BooleanField(default=True)
    on_outage = models.CharField(max_length=16, null=True, blank=True, choices=[(x, x) for x in ("open", "closed", "local")])
    mode = models.CharField(max_length=16, null=True, blank=True, choices=[(x, x) for x in ("on", "monitor", "off")])
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(auto_now=True)
    version = models.BigIntegerField(default=0, editable=False)

    class Meta:
        """Maps the table that ratekit makes."""

        managed = False
        db_table = "rate_limit_rules"
        ordering = ("client_key", "endpoint")

    def __str__(self) -> str:
        return f"{self.client_key} on {self.endpoint}: {self.max_requests} per {self.window_secs} s"


class Override(models.Model):
    """A subject's own numbers on an endpoint."""

    override_id = models.BigAutoField(primary_key=True)
    tenant_id = models.CharField(max_length=64, default="", blank=True, editable=False)
    client_key = models.CharField(
        "subject", max_length=256, help_text="Who is limited, as the application names it: user:42, 1:42 for a project."
    )
    rule = models.ForeignKey(Rule, models.CASCADE, null=True, blank=True, editable=False)
    endpoint = models.CharField(
        max_length=256, null=True, help_text="The route as it is declared, such as /api/search; * for all of the subject's."
    )
    max_requests = models.BigIntegerField("maximum", null=True, blank=True, help_text="0 blocks the subject.")
    fields = JsonColumn(null=True, blank=True, editable=False)
    valid_until = models.DateTimeField(null=True, blank=True, help_text="Empty: until it is deleted.")
    set_by = models.CharField(max_length=256, null=True, editable=False)
    reason = models.TextField("note", null=True, blank=True, help_text="Why: a ticket, a contract.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField("set at", default=timezone.now, editable=False)
    version = models.BigIntegerField(default=0, editable=False)

    class Meta:
        """Maps the table that ratekit makes."""

        managed = False
        db_table = "rate_limit_overrides"
        ordering = ("client_key", "endpoint")

    def __str__(self) -> str:
        return f"{self.client_key} on {self.where}"

    @property
    def where(self) -> str:
        """The endpoint: its own, or that of its rule."""
        return self.endpoint or (self.rule.endpoint if self.rule is not None else "*")

    def numbers(self) -> dict[str, str]:
        """Return the numbers, under the names that they have in the store."""
        maximum = {} if self.max_requests is None else {MAX_REQUESTS: str(self.max_requests)}
        others = self.fields if isinstance(self.fields, dict) else {}
        return maximum | {str(name): str(text) for name, text in others.items()}

    def row(self) -> OverrideRow:
        """Return the override as it is copied to the store."""
        return OverrideRow(
            subject=self.client_key,
            endpoint=self.where,
            fields=self.numbers(),
            valid_until=self.valid_until,
            set_by=self.set_by,
            reason=self.reason,
            set_at=self.updated_at,
            version=self.version,
            tenant=self.tenant_id,
        )


class OverrideChange(models.Model):
    """A change of an override: who, when, why."""

    history_id = models.BigAutoField(primary_key=True)
    override_id = models.BigIntegerField(null=True)
    tenant_id = models.CharField(max_length=64, default="")
    client_key = models.CharField("subject", max_length=256)
    endpoint = models.CharField(max_length=256, null=True)
    action = models.CharField(max_length=16)
    max_requests = models.BigIntegerField("maximum", null=True)
    fields = JsonColumn(null=True)
    valid_until = models.DateTimeField(null=True)
    changed_by = models.CharField(max_length=256, null=True)
    reason = models.TextField("note", null=True)
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        """Maps the table that ratekit makes."""

        managed = False
        db_table = "rate_limit_override_history"
        ordering = ("-history_id",)
        verbose_name = "change of an override"
        verbose_name_plural = "history of overrides"

    def __str__(self) -> str:
        return f"{self.action}: {self.client_key} on {self.endpoint}"


class Violation(models.Model):
    """A request that a limit refused."""

    violation_id = models.BigAutoField(primary_key=True)
    tenant_id = models.CharField(max_length=64, default="")
    client_key = models.CharField("subject", max_length=256)
    endpoint = models.CharField(max_length=256)
    limit_name = models.CharField("limit", max_length=100, null=True)
    violated_at = models.DateTimeField("at")
    request_count = models.BigIntegerField("used")
    limit_value = models.BigIntegerField("maximum")

    class Meta:
        """Maps the table that ratekit makes."""

        managed = False
        db_table = "rate_limit_violations"
        ordering = ("-violation_id",)

    def __str__(self) -> str:
        return f"{self.client_key} on {self.endpoint} at {self.violated_at}"


class ConfigVersion(models.Model):
    """The number that every change of the configuration raises. There is one row."""

    id = models.IntegerField(primary_key=True)
    version = models.BigIntegerField()
    updated_at = models.DateTimeField()

    class Meta:
        """Maps the table that ratekit makes."""

        managed = False
        db_table = "config_version"

    def __str__(self) -> str:
        return str(self.version)


class ConfigDeletion(models.Model):
    """Something that was deleted, for those who hold a copy of it."""

    pk = models.CompositePrimaryKey("version", "kind", "object_id")
    version = models.BigIntegerField()
    kind = models.CharField(max_length=32)
    object_id = models.CharField(max_length=256)
    deleted_at = models.DateTimeField()

    class Meta:
        """Maps the table that ratekit makes."""

        managed = False
        db_table = "config_deletions"

    def __str__(self) -> str:
        return f"{self.kind} {self.object_id}"


class Report(models.Model):
    """Stands for the report, which is in the store: it has a page, permissions and no table."""

    class Meta:
        """Has a page, and no table."""

        managed = False
        default_permissions = ("view",)
        verbose_name = verbose_name_plural = "report: who is refused"
