"""The application, for INSTALLED_APPS: it brings the checks, the command and a template."""

from django.apps import AppConfig
from django.core.checks import register


class RatekitConfig(AppConfig):
    """ratekit's application."""

    name = "ratekit_django"
    label = "ratekit"
    verbose_name = "ratekit"

    def ready(self) -> None:
        """Register the checks."""
        from ratekit_django.checks import ALWAYS, ON_DEPLOY, TAG

        for check in ALWAYS:
            register(check, TAG)
        for check in ON_DEPLOY:
            register(check, TAG, deploy=True)
