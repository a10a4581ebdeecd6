"""Settings of the example. DATASETS_DATABASE is the file of the database, RATE_LIMIT_STORE_URL where is counted."""

from __future__ import annotations

import os
from pathlib import Path

DATABASE = Path(os.environ.get("DATASETS_DATABASE", Path(__file__).parents[1] / "datasets.db")).absolute()

SECRET_KEY = "of an example"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "datasets.urls"
WSGI_APPLICATION = "datasets.serving.wsgi"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "/static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE, "OPTIONS": {"timeout": 20}}}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "ninja",
    "ratekit_django",
    "ratekit_django.database",  # tables and pages in the admin: overrides, rules, violations
    "datasets",
]
MIDDLEWARE = [
    "ratekit_django.middleware.RateLimitMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
CONTEXT_PROCESSORS = [
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": CONTEXT_PROCESSORS},
    }
]

RATEKIT = {
    "IDENTIFY": "datasets.projects.project_of",
    "ANONYMOUS": "ip",  # without a project, each address is limited
    "FLEET_MODE": True,  # `manage.py ratekit mode monitor` reaches every process
    "RULES_SOURCE": "database",  # the page Rules of the admin writes them
    "VIOLATIONS": True,  # refused requests, for the page Violations
}
