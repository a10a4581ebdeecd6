"""The answers: a refusal as a response, and the headers of what was decided on any response."""

from __future__ import annotations

from typing import Any, TypeVar

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.template import TemplateDoesNotExist, loader
from django.utils.cache import patch_vary_headers

from ratekit.core.errors import RateLimitExceeded
from ratekit.core.headers import PROBLEM_TYPE
from ratekit.core.results import RateLimitResult
from ratekit.web.answers import ErrorResponse
from ratekit.web.steps import Verdict
from ratekit_django.conf import conf
from ratekit_django.requests import RequestState
from ratekit_django.settling import conclude_response, settle_on_close

Response = TypeVar("Response", bound=HttpResponseBase)
OWN_TEMPLATE = "ratekit/429.html"


def respond(request: Any, verdict: Verdict) -> HttpResponse | None:
    """Return the answer to a request that is refused, None if it may pass: a problem, or a page for who prefers HTML."""
    refusal = verdict.response
    if refusal is None:
        return None
    response = HttpResponse(refusal.body, status=refusal.status, headers=refusal.headers)
    if isinstance(verdict.error, RateLimitExceeded) and conf.template is not None:
        patch_vary_headers(response, ["Accept"])
        if request.get_preferred_type([PROBLEM_TYPE, "application/json", "text/html"]) == "text/html":
            _show_page(response, refusal, verdict.error.result)
    return response


def with_headers(request: Any, response: Response) -> Response:
    """Write the headers of what was decided about a request on its response, and keep caches from storing a 429."""
    dispatch = RequestState.of(request).dispatch
    conclude_response(dispatch, request, response)
    conf.writer.write(response.headers, dispatch.ledger.results, status=response.status_code)
    return response


def ended(request: Any, response: Response) -> Response:
    """Write the headers of a response that a server sends, and settle what was reserved when the server closes it.

    Or the response that a middleware has put in its place: nobody closes this one then.
    """
    state = RequestState.of(request)
    closer = settle_on_close(state.dispatch, request, with_headers(request, response))
    if closer is not None:
        state.on_close(closer)
    return response


def _show_page(response: HttpResponse, refusal: ErrorResponse, result: RateLimitResult) -> None:
    """Put the project's template in place of the problem, else ratekit's. It gets no request: it must not ask who it is."""
    try:
        template = loader.select_template([conf.template or OWN_TEMPLATE, OWN_TEMPLATE])
    except TemplateDoesNotExist:
        return
    response["Content-Type"] = "text/html; charset=utf-8"
    response.content = template.render({"result": result, "retry_after": refusal.headers.get("Retry-After")})
