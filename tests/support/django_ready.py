"""Makes a Django project of this test process, and of none that it starts; to be imported before what reads settings."""

import os

import django
from django.conf import settings

if not settings.configured:
    os.environ["DJANGO_SETTINGS_MODULE"] = "support.django_settings"
    django.setup()
    del os.environ["DJANGO_SETTINGS_MODULE"]
