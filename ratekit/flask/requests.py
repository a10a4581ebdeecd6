"""A Flask request as limits see it: Flask parses, so that a limit counts what the view will read."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from flask import Request, current_app, g, request
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from ratekit.core.errors import ConfigurationError, UnusableRequestError
from ratekit.core.results import RateLimitResult
from ratekit.web.client_address import TrustedProxies
from ratekit.web.identity import KeyFunction, body_too_long, identified_subject
from ratekit.web.ledger import Ledger
from ratekit.web.parsers import MOST_FIELDS, cookie_texts, too_many_fields
from ratekit.web.requests import WsgiRequest
from ratekit.web.steps import Ask
from ratekit.web.view_checks import Finding, ViewRequest
from ratekit.wsgi import read_body

_STATE = "ratekit.flask"  # in the environ
UNMATCHED = "unmatched"


def current_request() -> Request:
    """Return the request that runs itself, and not what stands for whichever one runs."""
    running: Request = request._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - documented
    return running


class RequestState:
    """What was decided about one request: `g.ratekit`."""

    def __init__(self, ledger: Ledger, of: Request) -> None:
        self.ledger = ledger
        self.depth = len(ledger.fronts)  # of this front, among those that decide the request
        self.request = of
        self.ended_with: tuple[Response, int] | None = None  # the response by which it is settled, and its status
        self.identity: str | None = None  # the subject of the project

    @classmethod
    def current(cls) -> RequestState:
        """Return the state of the request that runs. It is in the environ, since `g` may outlive a request in tests.

        Another request that is made of the same environ, or of a copy of it, is another dispatch.
        """
        running = current_request()
        state: RequestState | None = running.environ.get(_STATE)
        if state is None or state.request is not running:
            app = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - documented
            state = running.environ[_STATE] = cls(Ledger.begun(running.environ, app), running)
            g.ratekit = state
        return state

    @property
    def results(self) -> tuple[RateLimitResult, ...]:
        """The results of all limits that were decided so far."""
        return tuple(self.ledger.results)

    @property
    def is_over_limit(self) -> bool:
        """Whether a limit has said no, one with block=False or in monitor mode included."""
        return any(result.is_over_limit for result in self.ledger.results)


class FlaskRequest(WsgiRequest):
    """A request of Flask's."""

    def __init__(self, request: Request, proxies: TrustedProxies) -> None:
        super().__init__(request.environ, proxies)
        self._request = request
        self.method = request.method

    @property
    def native(self) -> Any:
        """The request itself."""
        return self._request

    @property
    def application_request(self) -> Request:
        """The request itself."""
        return self._request

    def query_values(self, name: str) -> Sequence[str]:
        """Return all values of a parameter, as request.args has them."""
        if self.query_string.count("&") >= MOST_FIELDS:
            raise too_many_fields()
        return self._request.args.getlist(name)

    def cookie(self, name: str) -> str | None:
        """Return a cookie, as request.cookies has it; None if there are several different ones."""
        texts = cookie_texts(self.header_lines("cookie"), name)
        return self._request.cookies.get(name) or None if len(texts) == 1 else None

    def form_values(self, name: str) -> Sequence[str]:
        """Return all texts of a field, as request.form has them."""
        try:
            form, files = self._parsed_form()
        except (HTTPException, ValueError):
            raise UnusableRequestError("the form of the request cannot be parsed") from None
        if name in form and name in files:
            raise UnusableRequestError(f"the field {name!r} of the form is a text and a file")
        texts: Sequence[str] = form.getlist(name)
        return texts

    def _parsed_form(self) -> tuple[Any, Any]:
        """Parse the form, apart from request.form: the view may yet read the body as a stream."""
        if self.body is None:
            return self._request.form, self._request.files
        copy = type(self._request)(dict(self._environ) | {"wsgi.input": io.BytesIO(self.body)}, populate_request=False)
        return copy.form, copy.files

    @property
    def has_parsed_form(self) -> bool:
        """Whether somebody has parsed the body as a form before, and only the form is left of it."""
        return self.body is None and "form" in vars(self._request)


class FlaskView(ViewRequest):
    """A request as the limits of a Flask view see it. declared are the methods of a view that is a method of a class."""

    front: FlaskRequest

    no_project = "it has no project: identify has answered None, and anonymous does not say what happens then"

    def __init__(self, settings: Any, state: RequestState, declared: Sequence[str] | None = None) -> None:
        self.method = request.method.upper()
        self._request = current_request()
        self.front = FlaskRequest(self._request, settings.proxies)
        self._settings = settings
        self._state = state
        self._declared = declared

    @property
    def route(self) -> str:
        """The URL rule, such as /items/<int:item_id>."""
        rule = self._request.url_rule
        return UNMATCHED if rule is None else rule.rule

    def operation(self, _: str) -> Sequence[str] | None:
        """Return the methods that the route is declared for."""
        rule = self._request.url_rule
        return self._declared or (None if rule is None else declared_methods(rule))

    def project(self) -> Finding[str | None]:
        """Ask identify, once for a request if it knows."""
        if self._state.identity is None:
            self._state.identity = identified_subject((yield from self.asked("the project", self._settings.identify)))
        return self._state.identity

    def user(self) -> Finding[str | None]:
        """Ask for the user who is authenticated."""
        answer = yield from self.asked("the user", self._settings.user)
        return None if answer is None else f"user:{identified_subject(answer)}"

    def ask(self, function: Callable[[Any], Any]) -> Ask:
        """Return the step that asks the application's code, sync or async."""
        asked = current_app.ensure_sync(function)
        return Ask(asked, self._request, asked)

    def read_body(self, by: KeyFunction) -> bytes | None:
        """Return the body, and leave it for the view; None where a form was made of it before."""
        if self.front.is_longer_than(by.most_body):
            raise body_too_long(by)
        touched = vars(self._request)
        if "form" in touched:
            return None
        body = self._request.get_data() if "stream" in touched else read_body(self._request.environ, by.most_body)
        if body is None or len(body) > by.most_body:
            raise body_too_long(by)
        return body

    def warns_of_address(self, limit: Any) -> bool:
        """Whether identify has answered None, and nobody has said what happens then."""
        return limit.anonymous is None and self._settings.has_identify and not self._settings.has_anonymous


def declared_methods(rule: Any) -> list[str]:
    """Return the methods that a route is declared for; Flask answers OPTIONS by itself unless a route declares it."""
    automatic = {"OPTIONS"} if getattr(rule, "provide_automatic_options", False) else set()
    return sorted(set(rule.methods or ()) - automatic)


def project_in_g(_: Any) -> tuple[Any, Any] | None:
    """Return the project where identify is not given: what authentication has put into `g`."""
    org_id, project_id = g.get("org_id"), g.get("project_id")
    return None if org_id is None or project_id is None else (org_id, project_id)


def login_user(_: Any) -> str | None:
    """Return the id of Flask-Login's user, None if nobody is logged in."""
    if not hasattr(current_app, "login_manager"):
        raise ConfigurationError("by 'user' needs to know who it is: use Flask-Login, or give user= to install")
    from flask_login import current_user  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return str(current_user.get_id()) if current_user.is_authenticated else None
