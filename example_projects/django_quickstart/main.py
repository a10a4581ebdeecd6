"""A Django project in one file with three limited URLs, counted in the process: `python main.py --port 8000`."""

from __future__ import annotations

import argparse

import django
import waitress
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from ratekit_django import rate_limit

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    INSTALLED_APPS=["ratekit_django"],
    MIDDLEWARE=["ratekit_django.middleware.RateLimitMiddleware"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
    RATEKIT={"RULES": {"report": "2/10s"}},  # counts in RATE_LIMIT_STORE_URL, else in the process
)
django.setup()


def home(request: HttpRequest) -> HttpResponse:
    return HttpResponse('<a href="search">search</a>: five in ten seconds; <a href="report">report</a>: two')


@rate_limit(max_requests=5, expiry=10, by="ip")
async def search(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"found": "something"})


def report(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"report": "limited by a rule in the settings"})


urlpatterns = [path("", home), path("search", search), path("report", report, name="report")]
application = get_wsgi_application()

WHAT_TO_TRY = """\
ratekit and Django on {url}: /search lets five requests pass in ten seconds, /report two, for each address.

Try in another terminal. It shows 200 five times, then 429 twice:
  for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{{http_code}}\\n' {url}/search; done

One answer with its headers: RateLimit-Remaining and RateLimit-Reset, and Retry-After on a 429:
  curl -i {url}/search

Or open {url} in a browser: a refusal is a page there. Ctrl-C ends the server."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of the loopback to listen on (default 8000)")
    port = parser.parse_args().port
    print(WHAT_TO_TRY.format(url=f"http://127.0.0.1:{port}"), flush=True)
    try:
        waitress.serve(application, listen=f"127.0.0.1:{port}")
    except OSError as error:
        raise SystemExit(f"port {port}: {error}; give another by --port") from None


if __name__ == "__main__":
    main()
