"""Overrides, rules and violations as models, and their pages in Django's admin."""

from __future__ import annotations

import datetime
import json
import time
from types import SimpleNamespace

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from sqlalchemy import inspect as inspect_tables

from ratekit.admin.override_copies import INTERVAL
from ratekit.core.errors import ConfigurationError
from ratekit.database import schema
from ratekit.database.engines import open_engine
from ratekit.report import Reporter
from ratekit.web.identity import hashed
from ratekit_django import rate_limit
from ratekit_django.conf import conf
from ratekit_django.database import models, overrides
from ratekit_django.database.urls import url_of_database

pytestmark = pytest.mark.django_db(transaction=True)
TOMORROW = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)


@rate_limit(limits="2/min", by=lambda request: request.headers.get("x-user", "user:ann"))
def search(request):
    return HttpResponse("found")


urlpatterns = [path("search", search), path("admin/", admin.site.urls)]


@pytest.fixture(autouse=True)
def _emptied(db) -> None:
    """Empty the tables: Django does that only to those that it has made."""
    for model in (models.Override, models.OverrideChange, models.Rule, models.Violation, models.ConfigDeletion):
        model.objects.all().delete()


@pytest.fixture
def client(settings) -> Client:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "ratekit_django.middleware.RateLimitMiddleware",
    ]
    return Client()


def support_user(client: Client, *permissions: str) -> User:
    user = User.objects.create_user("sue", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return user


def limit_of(client: Client, subject: str = "user:ann") -> int:
    return int(client.get("/search", headers={"x-user": subject})["RateLimit-Limit"])


def form(**fields) -> dict[str, str]:
    empty = dict.fromkeys(("max_requests", "expiry", "burst", "valid_until_0", "valid_until_1", "reason"), "")
    return {"client_key": "user:ann", "endpoint": "/search"} | empty | fields


def test_models_have_the_columns_of_the_tables():
    tables = {model._meta.db_table: model for model in vars(models).values() if isinstance(model, type(models.Rule))}
    for name, model in tables.items():
        if name in schema.metadata.tables:
            columns = schema.metadata.tables[name].columns
            mapped = {field.column for field in model._meta.concrete_fields if field.column}
            assert mapped <= {column.name for column in columns}, name
            needed = {column.name for column in columns if not column.nullable and not column.server_default}
            assert needed <= mapped, name


def test_migrate_has_made_the_tables_of_ratekits_own_tree():
    engine = open_engine(url_of_database(connection).render_as_string(hide_password=False))
    found = set(inspect_tables(engine).get_table_names())
    engine.dispose()
    assert set(schema.metadata.tables) <= found


def test_override_set_by_support_changes_the_next_answer(client):
    support_user(client, "add_override", "change_override", "view_override", "delete_override", "view_overridechange")
    assert limit_of(client) == 2
    answer = client.post("/admin/ratekit_database/override/add/", form(max_requests="50", reason="ticket 77"))
    assert answer.status_code == 302, answer.content
    assert limit_of(client) == 50
    made = models.Override.objects.get()
    assert (made.set_by, made.reason, made.max_requests) == ("sue", "ticket 77", 50)
    url = f"/admin/ratekit_database/override/{made.pk}/change/"
    client.post(url, form(unlimited="on", reason="ticket 78"))
    assert models.Override.objects.get().numbers() == {"unlimited": "1"}
    client.post(f"/admin/ratekit_database/override/{made.pk}/delete/", {"post": "yes"})
    assert limit_of(client) == 2
    told = [(change.action, change.changed_by) for change in models.OverrideChange.objects.all()]
    assert told == [("delete", "sue"), ("set", "sue"), ("set", "sue")]
    page = client.get("/admin/ratekit_database/overridechange/?q=user:ann").content.decode()
    assert "ticket 77" in page


def test_several_are_deleted_at_once(client):
    support_user(client, "delete_override", "view_override", "change_override")
    for name in ("ann", "bob"):
        overrides.set_override(f"user:{name}", "/search", max_requests=50)
    ids = [str(override.pk) for override in models.Override.objects.all()]
    page = "/admin/ratekit_database/override/"
    client.post(page, {"action": "delete_selected", "_selected_action": ids, "post": "yes"})
    assert [limit_of(client, f"user:{name}") for name in ("ann", "bob")] == [2, 2]
    assert models.OverrideChange.objects.filter(action="delete", changed_by="sue").count() == 2


def test_support_without_the_permission_changes_nothing(client):
    support_user(client, "view_override")
    overrides.set_override("user:ann", "/search", max_requests=50)
    assert client.post("/admin/ratekit_database/override/add/", form(max_requests="9")).status_code == 403
    made = models.Override.objects.get()
    assert client.post(f"/admin/ratekit_database/override/{made.pk}/delete/", {"post": "yes"}).status_code == 403
    assert client.get("/admin/ratekit_database/override/?q=ann").status_code == 200
    assert client.get("/admin/ratekit_database/report/").status_code == 403
    assert limit_of(client) == 50


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "the override has no numbers"),
        ({"max_requests": "-1"}, "max_requests -1"),
        ({"max_requests": "5", "unlimited": "on"}, "contradicts max_requests"),
        ({"expiry": "0"}, "expiry 0.0 is not a number of seconds"),
        ({"max_requests": "5", "valid_until_0": "2020-01-01", "valid_until_1": "00:00"}, "This time is over"),
        ({"max_requests": "5", "endpoint": ""}, "This field is required"),
    ],
)
def test_form_names_what_makes_no_sense_and_writes_nothing(client, wrong, said):
    support_user(client, "add_override")
    answer = client.post("/admin/ratekit_database/override/add/", form(**wrong))
    assert (answer.status_code, said in answer.content.decode()) == (200, True)
    assert not models.Override.objects.exists()


def test_second_override_of_a_subject_on_an_endpoint_is_refused(client):
    support_user(client, "add_override")
    overrides.set_override("user:ann", "/search", max_requests=50)
    answer = client.post("/admin/ratekit_database/override/add/", form(max_requests="9"))
    assert "change that one" in answer.content.decode()


def test_numbers_of_other_limits_survive_the_form(client):
    support_user(client, "change_override", "view_override")
    overrides.set_override("user:ann", "/search", limit="hour", max_requests=900)
    made = overrides.set_override("user:ann", "/search", max_requests=50, valid_until=TOMORROW)
    client.post(f"/admin/ratekit_database/override/{made.pk}/change/", form(max_requests="60", burst="70"))
    assert models.Override.objects.get().numbers() == {"max_requests": "60", "hour.max_requests": "900", "burst": "70"}


def test_rolled_back_change_reaches_neither_database_nor_store(client):
    with transaction.atomic():
        overrides.set_override("user:ann", "/search", max_requests=50)
        transaction.set_rollback(True)
    assert limit_of(client) == 2
    assert not models.OverrideChange.objects.exists()


def test_store_that_is_empty_again_is_filled_by_who_follows(client, store):
    overrides.set_override("user:ann", "/search", max_requests=50)
    follower = overrides.follow(interval=60)
    assert follower.wait_for_first(10)
    store.clear()
    assert limit_of(client) == 2
    follower.refresh()
    assert limit_of(client) == 50
    follower.close()


def test_override_that_has_ended_moves_to_the_history(client, ratekit_clock):
    ends = datetime.datetime.fromtimestamp(ratekit_clock.now + 60, datetime.UTC)
    overrides.set_override("user:ann", "/search", max_requests=50, valid_until=ends)
    assert limit_of(client) == 50
    ratekit_clock.advance(61)
    assert (overrides.ORIGINALS.expire(), overrides.ORIGINALS.expire()) == (1, 0)
    assert limit_of(client) == 2
    assert [change.action for change in models.OverrideChange.objects.all()] == ["expire", "set"]


def test_deleted_override_is_gone(client):
    overrides.set_override("user:ann", "/search", max_requests=50)
    assert overrides.delete_override("user:ann", "/search", deleted_by="bob")
    assert not overrides.delete_override("user:ann", "/search")
    assert limit_of(client) == 2


def test_rule_and_its_deletion_raise_the_version(client):
    support_user(client, "add_rule", "view_rule", "delete_rule", "change_rule")
    before = overrides.ORIGINALS.version()
    rule = {"client_key": "user:ann", "endpoint": "*", "algorithm": "token_bucket", "max_requests": "5"}
    rule |= {"window_secs": "60", "burst_size": "9", "enabled": "on"}
    answer = client.post("/admin/ratekit_database/rule/add/", rule)
    assert answer.status_code == 302, answer.content
    made = models.Rule.objects.get()
    assert made.version == before + 1
    wrong = client.post("/admin/ratekit_database/rule/add/", rule | {"algorithm": "concurrency", "endpoint": "/x"})
    assert "burst 9 needs a token_bucket" in wrong.content.decode()
    client.post(f"/admin/ratekit_database/rule/{made.pk}/delete/", {"post": "yes"})
    assert overrides.ORIGINALS.version() >= before + 2
    assert models.ConfigDeletion.objects.filter(kind="rule", object_id=str(made.pk)).exists()


def test_violations_and_the_report_have_pages(client):
    support_user(client, "view_violation", "view_report")
    models.Violation.objects.create(
        client_key="user:eve", endpoint="/search", limit_name="60s", violated_at=TOMORROW, request_count=2, limit_value=2
    )
    assert "user:eve" in client.get("/admin/ratekit_database/violation/?q=eve").content.decode()
    assert "Nothing is recorded" in client.get("/admin/ratekit_database/report/").content.decode()
    reporter = Reporter(conf.limiter(), subjects="plain").start()
    for _ in range(3):
        client.get("/search", headers={"x-user": "user:eve"})
    reporter.close()
    page = client.get("/admin/ratekit_database/report/").content.decode()
    assert "user:eve" in page
    assert "1 refused" in page


def test_setting_says_whether_overrides_are_followed(settings):
    assert not conf.follows_overrides  # tests may not use the database in a thread
    settings.RATEKIT = {"FOLLOW_OVERRIDES": True}
    assert conf.follows_overrides
    settings.RATEKIT = {"FOLLOW_OVERRIDES": "yes"}
    with pytest.raises(ConfigurationError, match="FOLLOW_OVERRIDES 'yes'"):
        conf.check()


def test_first_limited_request_begins_to_follow(client, settings, store):
    settings.RATEKIT = {"FOLLOW_OVERRIDES": True}
    overrides.set_override("user:ann", "/search", max_requests=50)
    store.clear()
    limit_of(client, "user:bob")
    deadline = time.monotonic() + 20 * INTERVAL
    while limit_of(client) != 50 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert limit_of(client) == 50


def test_url_of_other_databases():
    given = {"NAME": "shop", "USER": "u", "PASSWORD": "p@ss", "HOST": "db", "PORT": "5432"}
    settings = given | {"OPTIONS": {"sslmode": "require"}}
    url = url_of_database(SimpleNamespace(vendor="postgresql", settings_dict=settings))
    assert url.render_as_string(hide_password=False) == "postgresql://u:p%40ss@db:5432/shop?sslmode=require"
    with pytest.raises(ConfigurationError, match="database 'oracle' is unknown"):
        url_of_database(SimpleNamespace(vendor="oracle", settings_dict=given))


def test_rules_that_support_staff_sets_are_in_force_where_the_source_is_the_database(client, settings):
    settings.RATEKIT = {"RULES_SOURCE": "database"}
    support_user(client, "add_rule")
    row = {"client_key": "*", "endpoint": "/search", "algorithm": "fixed_window", "max_requests": "1", "window_secs": "60"}
    assert client.get("/search")["RateLimit-Limit"] == "2"
    saved = client.post("/admin/ratekit_database/rule/add/", row | {"burst_size": "0", "enabled": "on"})
    assert saved.status_code == 302, saved.content
    conf.rules_source.refresh()
    assert [client.get("/search").status_code for _ in range(2)] == [200, 429]


def test_refused_requests_are_on_the_page_of_violations_if_asked(client, settings):
    settings.RATEKIT = {"VIOLATIONS": True}
    for _ in range(3):
        client.get("/search")
    conf.reset()  # writes what is queued
    support_user(client, "view_violation")
    page = client.get("/admin/ratekit_database/violation/").content.decode()
    assert "user:ann" in page
    assert "1 violation" in page


@pytest.mark.parametrize("given", ["sometimes", 1.5, {}])
def test_setting_of_violations_that_makes_no_sense_is_told(settings, given):
    settings.RATEKIT = {"VIOLATIONS": given}
    with pytest.raises(ConfigurationError, match="VIOLATIONS .* is neither True"):
        conf.check()


@pytest.mark.parametrize("ratekit", [{"VIOLATIONS": True}, {"RULES_SOURCE": "database"}, {"FOLLOW_OVERRIDES": True}])
def test_what_needs_the_database_names_the_application_that_has_it(settings, ratekit):
    settings.INSTALLED_APPS = [name for name in settings.INSTALLED_APPS if name != "ratekit_django.database"]
    settings.RATEKIT = ratekit
    with pytest.raises(ConfigurationError, match=r"needs 'ratekit_django.database' in INSTALLED_APPS"):
        conf.check()


def test_command_line_of_the_project_uses_its_database(client, settings, capsys):
    settings.RATEKIT = {"VIOLATIONS": True}
    for _ in range(3):
        client.get("/search")
    conf.reset()
    call_command("ratekit", "violations", "--json")
    assert [one["subject"] for one in json.loads(capsys.readouterr().out)] == ["user:ann"]
    call_command("ratekit", "overrides", "set", "/search", "user:ann", "--max-requests", "7", "--ttl", "7d")
    (override,) = models.Override.objects.all()
    assert override.valid_until - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=6)


def test_support_staff_that_names_a_client_by_what_it_sends_is_told_the_subject(client):
    support_user(client, "add_override", "view_override")
    given = form(client_key="header:X-Customer:acme", max_requests="9")
    page = client.post("/admin/ratekit_database/override/add/", given, follow=True).content.decode()
    assert f"this one would be header:x-customer:{hashed('acme')}" in page
