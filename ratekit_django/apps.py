"""The application, for INSTALLED_APPS: it brings the checks, the command and a template."""

import logging

from django.apps import AppConfig
from django.core.checks import register

_log = logging.getLogger("ratekit_django")


class RatekitConfig(AppConfig):
    """ratekit's application."""

    name = "ratekit_django"
    label = "ratekit"
    verbose_name = "ratekit"

    def ready(self) -> None:
        """Register the checks. Servers run none of them, so what limits nothing is logged as well."""
        from ratekit_django.checks import ALWAYS, ON_DEPLOY, TAG, unapplied_settings

        for check in ALWAYS:
            register(check, TAG)
        for check in ON_DEPLOY:
            register(check, TAG, deploy=True)
        for name in unapplied_settings():
            _log.error("RATEKIT[%r] limits nothing: RateLimitMiddleware is not in MIDDLEWARE", name)
