"""Pages in Django's admin, for support staff without a shell: overrides, their history, rules, violations, the report."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode

from ratekit.admin.override_copies import has_ended
from ratekit.admin.override_hash import Numbers
from ratekit.core.errors import ConfigurationError, RateLimitUnavailable
from ratekit.core.limits import Limit
from ratekit.report import read_report
from ratekit.web.identity import counted_subject
from ratekit_django.conf import conf
from ratekit_django.database import overrides
from ratekit_django.database.models import Override, OverrideChange, Report, Rule, Violation

_CHANGES = "admin:ratekit_database_overridechange_changelist"


class OverrideForm(forms.ModelForm):  # type: ignore[type-arg]
    """The form of an override: the numbers of the policy's first limit."""

    expiry = forms.FloatField(label="Window in seconds", required=False, help_text="Empty: the limit's own.")
    burst = forms.IntegerField(required=False, help_text="The capacity of a token bucket. Empty: the limit's own.")
    unlimited = forms.BooleanField(required=False, help_text="Lift the limit: it neither counts nor refuses.")

    class Meta:
        """What is asked for, in this order."""

        model = Override
        fields = ("client_key", "endpoint", "max_requests", "expiry", "burst", "unlimited", "valid_until", "reason")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        given = self.instance.numbers()
        self.initial.update(expiry=given.get("expiry"), burst=given.get("burst"), unlimited=given.get("unlimited") == "1")

    def clean(self) -> dict[str, Any]:
        """Refuse numbers that make no sense, an end that is over, and a second override of a subject on an endpoint."""
        data = super().clean() or {}
        self._refuse_a_second(data)
        if data.get("valid_until") and has_ended(self.instance.row()._replace(valid_until=data["valid_until"])):
            self.add_error("valid_until", "This time is over.")
        numbers = {name: data.get(name) for name in ("max_requests", "expiry", "burst")}
        try:
            self.numbers = Numbers(**numbers, unlimited=bool(data.get("unlimited"))).check_given()
        except ConfigurationError as error:
            raise forms.ValidationError(str(error)) from None
        return data

    def _refuse_a_second(self, data: dict[str, Any]) -> None:
        same = Override.objects.filter(tenant_id="", client_key=data.get("client_key"), endpoint=data.get("endpoint"))
        if same.exclude(pk=self.instance.pk).exists():
            self.add_error("client_key", "This subject has an override on this endpoint: change that one.")


@admin.register(Override)
class OverrideAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Sets, changes and deletes overrides. The next request uses them."""

    form = OverrideForm
    list_display = ("client_key", "where", "summary", "valid_until", "set_by", "updated_at", "reason")
    list_display_links = ("client_key",)
    search_fields = ("client_key", "endpoint", "reason")
    list_filter = ("endpoint", "set_by")
    readonly_fields = ("set_by", "updated_at", "changes")
    list_select_related = ("rule",)

    @admin.display(description="endpoint", ordering="endpoint")
    def where(self, override: Override) -> str:
        """Return the endpoint."""
        return override.where

    @admin.display(description="numbers")
    def summary(self, override: Override) -> str:
        """Return the numbers in one line."""
        return ", ".join(f"{name} {text}" for name, text in override.numbers().items())

    @admin.display(description="history")
    def changes(self, override: Override) -> str:
        """Return a link to what was changed for this subject."""
        if override.pk is None:
            return "-"
        query = urlencode({"q": override.client_key})
        return format_html(
            '<a href="{}?{}">All changes of this subject</a>',
            reverse("admin:ratekit_database_overridechange_changelist"),
            query,
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Override]:
        """Return the overrides of this project; those of the check service's tenants are not its own."""
        return super().get_queryset(request).filter(tenant_id="")

    def save_model(self, request: HttpRequest, override: Override, form: Any, change: Any) -> None:
        """Write the override, its history, and when that is committed its copy."""
        if counted := counted_subject(override.client_key):
            said = f"What clients send is hashed in subjects, unless the limit says 'plain': this one would be {counted}"
            self.message_user(request, said, messages.WARNING)
        overrides.put_numbers(override, form.numbers)
        override.set_by = request.user.get_username()
        overrides.save(override)

    def delete_model(self, request: HttpRequest, override: Override) -> None:
        """Delete the override, and keep it in the history."""
        overrides.remove(override, request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Override]) -> None:
        """Delete several."""
        for override in queryset:
            overrides.remove(override, request.user.get_username())


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A page that shows, and changes nothing."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nothing is added here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing is changed here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing is deleted here."""
        return False


@admin.register(OverrideChange)
class OverrideChangeAdmin(ReadOnlyAdmin):
    """Shows who changed which override, when and why."""

    list_display = ("changed_at", "action", "client_key", "endpoint", "max_requests", "valid_until", "changed_by", "reason")
    search_fields = ("client_key", "endpoint", "reason", "changed_by")
    list_filter = ("action", "changed_by")


@admin.register(Violation)
class ViolationAdmin(ReadOnlyAdmin):
    """Shows the requests that were refused."""

    list_display = ("violated_at", "client_key", "endpoint", "limit_name", "request_count", "limit_value")
    search_fields = ("client_key", "endpoint")
    list_filter = ("endpoint", "limit_name")
    show_full_result_count = False  # the table may be large


class RuleForm(forms.ModelForm):  # type: ignore[type-arg]
    """The form of a rule: its numbers have to make a limit."""

    class Meta:
        """What is asked for."""

        model = Rule
        exclude: ClassVar[tuple[str, ...]] = ()

    def clean(self) -> dict[str, Any]:
        """Refuse numbers that make no limit."""
        data = super().clean() or {}
        if self.errors:
            return data
        try:
            burst = data["burst_size"] or None
            Limit(data["max_requests"] or 1, data["window_secs"], algorithm=data["algorithm"], burst=burst)
        except ConfigurationError as error:
            raise forms.ValidationError(str(error)) from None
        return data


@admin.register(Rule)
class RuleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Sets limits by subject and endpoint, for applications that read their rules from the database."""

    form = RuleForm
    list_display = ("client_key", "endpoint", "algorithm", "max_requests", "window_secs", "burst_size", "enabled")
    search_fields = ("client_key", "endpoint")
    list_filter = ("endpoint", "algorithm", "enabled")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Rule]:
        """Return the rules of this project."""
        return super().get_queryset(request).filter(tenant_id="")

    def save_model(self, request: HttpRequest, rule: Rule, form: Any, change: Any) -> None:
        """Save a rule, and raise the version, so that everybody loads it."""
        rule.version = overrides.raise_version()
        rule.save()

    def delete_model(self, request: HttpRequest, rule: Rule) -> None:
        """Delete a rule."""
        overrides.note_deletion("rule", rule.pk)
        rule.delete()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Delete several."""
        for rule in queryset:
            self.delete_model(request, rule)


@admin.register(Report)
class ReportAdmin(ReadOnlyAdmin):
    """Shows the report: which limits refuse whom, or would."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> TemplateResponse:
        """Show the report of every limit."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = self.admin_site.each_context(request) | {"title": "Who is refused", "opts": self.opts}
        try:
            context["reports"] = read_report(conf.limiter(), prefix=conf.prefix)
        except RateLimitUnavailable as error:
            context["reports"] = []
            self.message_user(request, str(error), messages.ERROR)
        return TemplateResponse(request, "admin/ratekit_database/report/change_list.html", context)
