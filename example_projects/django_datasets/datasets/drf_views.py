"""Views of Django REST framework. All throttles of a view are one atomic decision."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ratekit_django.drf import RateLimitThrottle


class Rows(APIView):
    authentication_classes = ()
    throttle_classes = (RateLimitThrottle.of("3/10s", by="project"), RateLimitThrottle.of("1000/h", by="ip"))

    def get(self, request: Request, dataset_id: int) -> Response:
        return Response({"dataset": dataset_id, "rows": [1, 2, 3]})
