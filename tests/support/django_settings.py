"""A small Django project for tests: no database but for who asks for it, one middleware."""

SECRET_KEY = "not a secret"
ALLOWED_HOSTS = ["*"]
DEBUG = False
USE_TZ = True
ROOT_URLCONF = ()
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "rest_framework", "ratekit_django"]
MIDDLEWARE = ["ratekit_django.middleware.RateLimitMiddleware"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [], "DEFAULT_PERMISSION_CLASSES": []}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGGING_CONFIG = None
STATIC_URL = "static/"
