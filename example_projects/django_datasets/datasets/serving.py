"""The application for servers of either kind: `uvicorn datasets.serving:asgi`, `gunicorn datasets.serving:wsgi`."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "datasets.settings")

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler, StaticFilesHandler
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application

from ratekit import report

# The style sheets of the admin come from here as well: an example has no server for files.
wsgi = StaticFilesHandler(get_wsgi_application())
asgi = ASGIStaticFilesHandler(get_asgi_application())

reporter = report.install(subjects="plain")  # who is refused, or would be, for the page Report
