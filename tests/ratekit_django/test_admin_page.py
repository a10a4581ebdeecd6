"""Support staff set an override in a real browser, and the next answer of the running application is another one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from benchmarks.server import free_port, wait_until
from support.browser import browser, picture
from support.fetching import fetch

PROJECT = """
import os, sys
from pathlib import Path

import django
from django.conf import settings

HERE = Path(__file__).parent
settings.configure(
    SECRET_KEY="not a secret", DEBUG=True, ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, USE_TZ=True, STATIC_URL="/static/",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
        "django.contrib.sessions", "django.contrib.staticfiles", "ratekit_django", "ratekit_django.database",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware", "django.contrib.messages.middleware.MessageMiddleware",
        "ratekit_django.middleware.RateLimitMiddleware",
    ],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
        "context_processors": [
            "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]}}],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "site.db"}},
    RATEKIT={"STORE_URL": os.environ["RATE_LIMIT_STORE_URL"]},
)
django.setup()

from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import call_command, execute_from_command_line
from django.http import HttpResponse
from django.urls import path

from ratekit_django import rate_limit


@rate_limit(limits="2/min", by=lambda request: "user:ann")
def search(request):
    return HttpResponse("found")


urlpatterns = [path("search", search), path("admin/", admin.site.urls)]

if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    if not User.objects.exists():
        sue = User.objects.create_user("sue", password="secret", is_staff=True)
        sue.user_permissions.set(Permission.objects.filter(content_type__model__in=["override", "overridechange"]))
    execute_from_command_line(["manage.py", "runserver", "--noreload", "--insecure", f"127.0.0.1:{sys.argv[1]}"])
"""


@pytest.fixture
def site(tmp_path, redis_server):
    """A running Django project."""
    (tmp_path / "project.py").write_text(PROJECT)
    port = free_port()
    environment = os.environ | {"RATE_LIMIT_STORE_URL": redis_server.url}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    log = (tmp_path / "log").open("wb")
    command = [sys.executable, "project.py", str(port)]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        assert fetch(f"{url}/admin/login/").status_code == 200, (tmp_path / "log").read_text()
        yield url
    finally:
        process.kill()
        process.wait()
        log.close()


def limit_of(site: str) -> str:
    return fetch(f"{site}/search").headers["RateLimit-Limit"]


def test_override_set_in_the_admin_changes_the_next_answer(site, redis_server):
    with browser() as chromium:
        page = chromium.new_page()
        page.goto(f"{site}/admin/")
        page.get_by_label("Username").fill("sue")
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="Overrides", exact=True).click()
        page.get_by_role("link", name="Add override").first.click()
        page.get_by_label("Subject").fill("user:ann")
        page.get_by_label("Endpoint").fill("/search")
        page.get_by_label("Maximum").fill("50")
        page.get_by_label("Note").fill("ticket 77")
        picture(page, "django-admin-override")
        assert limit_of(site) == "2"
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_text("was added successfully")).to_be_visible()
        assert limit_of(site) == "50"
        with redis_server.client() as client:
            client.flushall()  # a Redis that keeps nothing is restarted
        wait_until(lambda: limit_of(site) == "50", "the override is not back")
        page.get_by_role("link", name="user:ann", exact=True).click()
        page.get_by_role("link", name="All changes of this subject").click()
        expect(page.get_by_role("cell", name="ticket 77")).to_be_visible()
        picture(page, "django-admin-history")
        expect(page.get_by_role("link", name="Rules")).to_have_count(0)  # no permission for those
