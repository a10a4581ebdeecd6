"""python manage.py demo: make the database, an administrator and a rule, say what to try, and serve."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.contrib.auth.models import User
from django.core.management import BaseCommand, call_command

from ratekit_django.database.models import Rule

WHAT_TO_TRY = """\
Datasets on {url}: five searches in ten seconds for each project.

  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' -H 'X-API-Key: key-of-42' {dataset}/search; done
  curl -i -H 'X-API-Key: key-of-42' {dataset}/export      # async: two in ten seconds, a hundred a day
  curl -i -H 'X-API-Key: key-of-42' {dataset}/rows        # Django REST framework: three in ten seconds
  curl -i -H 'X-API-Key: key-of-42' {url}/api/v2/datasets/7/search      # Django Ninja: four in ten seconds
  curl -i {dataset}/suggest      # in monitor mode: after two, RateLimit-Remaining is 0, and nobody is refused
  curl -i {dataset}/preview      # by a rule in the admin: three a minute for each address

Open {url}/admin/ (user admin, password admin): Overrides, Rules, Violations, Report.
Give the subject 1:42 an override on /api/v1/datasets/<int:dataset_id>/search: its next request has it.

Ctrl-C ends the server."""


class Command(BaseCommand):
    help = "Make the database, an administrator and a rule, say what to try, and serve."
    requires_system_checks = ()  # they look for the rules in the database, which is not there yet

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="port of the loopback to listen on (default 8000)")

    def handle(self, *, port: int, **_: Any) -> None:
        call_command("migrate", verbosity=0)
        if not User.objects.filter(username="admin").exists():
            User.objects.create_superuser("admin", password="admin")  # noqa: S106 - of an example
            Rule.objects.create(
                client_key="*", endpoint="/api/v1/datasets/<int:dataset_id>/preview", max_requests=3, window_secs=60
            )
        url = f"http://127.0.0.1:{port}"
        self.stdout.write(WHAT_TO_TRY.format(url=url, dataset=f"{url}/api/v1/datasets/7"))
        self.stdout.flush()
        uvicorn.run("datasets.serving:asgi", host="127.0.0.1", port=port, log_level="warning", lifespan="off")
