"""The application of ratekit's tables, for INSTALLED_APPS."""

from django.apps import AppConfig


class DatabaseConfig(AppConfig):
    """ratekit's tables, and their pages in the admin."""

    name = "ratekit_django.database"
    label = "ratekit_database"
    verbose_name = "Rate limits"
    default_auto_field = "django.db.models.BigAutoField"
