"""A Django project for real servers: `wsgi` and `asgi` are its applications; STORE names where it counts."""

import os

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="not a secret",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework", "ratekit_django"],
    MIDDLEWARE=["ratekit_django.middleware.RateLimitMiddleware"],
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": []},
    LOGGING_CONFIG=None,
    RATEKIT={"STORE_URL": os.environ["STORE"], "RULES": {"ruled": "20/10min"}, "DEADLINE": 5},
)
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402
from ninja import NinjaAPI  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from ratekit_django import rate_limit  # noqa: E402
from ratekit_django.drf import RateLimitThrottle  # noqa: E402
from ratekit_django.ninja import RateLimitThrottle as NinjaThrottle  # noqa: E402

api = NinjaAPI()


@api.get("/ninja", throttle=NinjaThrottle("20/10min"))
def ninja(request):
    return {"pid": os.getpid()}


class Drf(APIView):
    throttle_classes = (RateLimitThrottle.of("20/10min"), RateLimitThrottle.of("900/h"))

    def get(self, request):
        return Response({"pid": os.getpid()})


def waited(request, **_):
    return JsonResponse({"pid": os.getpid()})


async def awaited(request, **_):
    return JsonResponse({"pid": os.getpid()})


urlpatterns = [
    path("sync", rate_limit(20, 600, by="ip")(waited)),
    path("async", rate_limit(20, 600, by="ip")(awaited)),
    path("many/<int:number>", rate_limit(150, 600, by="ip")(awaited)),
    path("both", rate_limit(100, 600, by="ip")(awaited)),
    path("ruled", awaited, name="ruled"),
    path("drf", Drf.as_view()),
    path("api/", api.urls),
]
wsgi = get_wsgi_application()
asgi = get_asgi_application()
