"""`RateLimits`: store, identity, rules, headers on every answer, and refusals as Flask's own errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from flask import Flask, current_app, request, request_finished
from flask.typing import ResponseReturnValue
from werkzeug.wrappers import Response

from ratekit.admin.fleet_mode import follow
from ratekit.core.errors import ConfigurationError, RatekitError
from ratekit.core.headers import DEFAULT_STYLE
from ratekit.core.keys import DEFAULT_PREFIX
from ratekit.core.modes import RateLimitMode, weakest
from ratekit.core.results import RateLimitResult
from ratekit.flask.errors import RateLimitExceeded, RateLimitUnavailable, UnusableRequestError, as_exception
from ratekit.flask.requests import UNMATCHED, FlaskView, RequestState, login_user, project_in_g
from ratekit.flask.settling import end_failed, end_with, end_with_another
from ratekit.limiter.limiters import RateLimiter
from ratekit.limiter.operations import LimiterOptions
from ratekit.stores.contract import StoreGiven
from ratekit.web.answers import ANSWERED, BodyFunction, ResponseWriter
from ratekit.web.arguments import checked_mode, current_mode, refuse_unknown
from ratekit.web.client_address import X_FORWARDED_FOR, TrustedProxies
from ratekit.web.decide import refusal_of, refuse
from ratekit.web.drivers import run
from ratekit.web.exemptions import Exempt
from ratekit.web.identity import DEFAULT_ANONYMOUS, check_anonymous
from ratekit.web.plans import LimitsFunction, PlanFunction, Plans, RuleLimits, as_plans, checked_plan_of
from ratekit.web.url_rules import UrlRules
from ratekit.web.view_checks import decide_view
from ratekit.web.view_limit import ViewLimit

EXTENSION = "ratekit"
_REFUSALS = (RateLimitExceeded, RateLimitUnavailable, UnusableRequestError)


class Arguments(LimiterOptions, total=False):
    """What install and RateLimits take: see Settings."""

    store: StoreGiven | None
    identify: Callable[[Any], Any] | None
    user: Callable[[Any], Any] | None
    anonymous: str | None
    rules: Mapping[str, RuleLimits | LimitsFunction | Mapping[str, Any]] | None
    default: RuleLimits | LimitsFunction | Mapping[str, Any] | None
    exempt: Iterable[Exempt]
    plans: Plans | Mapping[str, RuleLimits] | None
    plan_of: PlanFunction | None
    mode: str | RateLimitMode | None
    fleet_mode: bool
    headers: str | Iterable[str]
    body: BodyFunction | None
    trusted_hops: int | Iterable[str] | str | None
    trusted_header: str
    prefix: str


class Settings:
    """What one application has set, checked when it is built.

    identify says for which project a request was authenticated: (org_id, project_id), a subject, or None; without it,
    g.org_id and g.project_id count. user says whom by="user" limits; without it, Flask-Login's user counts. Both get the
    request, and may be async. anonymous is what is done with requests that have neither. rules, default and exempt limit
    URL rules and endpoints without touching a view. plans are named sets of limits, and plan_of says which one a request
    has. The rest is as in ratekit.wsgi.
    """

    def __init__(
        self,
        store: StoreGiven | None = None,
        *,
        identify: Callable[[Any], Any] | None = None,
        user: Callable[[Any], Any] | None = None,
        anonymous: str | None = None,
        rules: Mapping[str, RuleLimits | LimitsFunction | Mapping[str, Any]] | None = None,
        default: RuleLimits | LimitsFunction | Mapping[str, Any] | None = None,
        exempt: Iterable[Exempt] = ("static",),
        plans: Plans | Mapping[str, RuleLimits] | None = None,
        plan_of: PlanFunction | None = None,
        mode: str | RateLimitMode | None = None,
        fleet_mode: bool = False,
        headers: str | Iterable[str] = DEFAULT_STYLE,
        body: BodyFunction | None = None,
        trusted_hops: int | Iterable[str] | str | None = None,
        trusted_header: str = X_FORWARDED_FOR,
        prefix: str = DEFAULT_PREFIX,
        **limiter: Unpack[LimiterOptions],
    ) -> None:
        self.limiter = RateLimiter(store, prefix=prefix, **limiter)
        self.prefix = self.limiter.prefix
        self.has_identify, self.has_anonymous = identify is not None, anonymous is not None
        self.identify = _checked("identify", identify) or project_in_g
        self.user = _checked("user", user) or login_user
        self.anonymous = DEFAULT_ANONYMOUS if anonymous is None else check_anonymous(anonymous)
        self.plans = as_plans(plans)
        self.plan_of = checked_plan_of(plan_of)
        self.rules = UrlRules(rules, default, exempt, spelled=str.lower)
        self.rules.check_plans(self.plan_of)
        self.writer = ResponseWriter(headers, body)
        self.proxies = TrustedProxies.of(trusted_hops, trusted_header)
        self.mode = checked_mode(mode)
        self.store_url = store if isinstance(store, str) else None
        if fleet_mode:
            follow(store, prefix=self.prefix)

    def mode_of(self, limit: ViewLimit) -> RateLimitMode:
        """Return the mode of a limit now: the weakest of the global one, the application's, and its own."""
        mode = current_mode(limit.mode)
        return mode if self.mode is None else weakest(mode, self.mode)


class RateLimits:
    """The extension. `RateLimits(app, store="redis://…")`, or `limits = RateLimits()` and `limits.init_app(app)` later.

    Arguments are those of Settings; `app.config["RATEKIT"]` may have them too, in a dict, and arguments win.
    """

    def __init__(self, app: Flask | None = None, **arguments: Unpack[Arguments]) -> None:
        refuse_unknown("RateLimits", arguments, Arguments.__annotations__)
        self._arguments = arguments
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask, **more: Unpack[Arguments]) -> Settings:
        """Set up ratekit for an application."""
        refuse_unknown("init_app", more, Arguments.__annotations__)
        if EXTENSION in app.extensions:
            raise ConfigurationError(f"ratekit is installed in {app.name!r} already: an application has one RateLimits")
        arguments: dict[str, Any] = {**_configured(app), **self._arguments, **more}
        app.extensions[EXTENSION] = settings = Settings(**arguments)
        app.before_request(_limit_by_rules)
        app.after_request(_write_headers)
        request_finished.connect(_end_with_another, app)
        app.teardown_request(_finish_failed)
        for kind in ANSWERED:  # a handler that the application has registered stays
            if kind not in app.error_handler_spec[None][None]:
                app.register_error_handler(kind, _answer)
        _add_command(app)
        return settings


def install(app: Flask, **arguments: Unpack[Arguments]) -> Settings:
    """Set up ratekit for an application: `RateLimits(app, …)` in one call."""
    refuse_unknown("install", arguments, Arguments.__annotations__)
    return RateLimits().init_app(app, **arguments)


def settings_of_app() -> Settings:
    """Return what is set for the application that runs."""
    settings: Settings | None = current_app.extensions.get(EXTENSION)
    if settings is None:
        raise ConfigurationError(
            f"ratekit is not installed in the application {current_app.name!r}: call ratekit.flask.install(app, …)"
        )
    return settings


def enforce(
    limits: Sequence[ViewLimit], methods: Sequence[str] | None = None, *, once: bool = True
) -> RateLimitResult | None:
    """Decide the request that runs, and raise if it is refused. methods are those of a view that is a method of a class."""
    settings, state = settings_of_app(), RequestState.current()
    limiter = settings.limiter
    view = FlaskView(settings, state, methods)
    verdict = run(decide_view(limits, view, settings, state.ledger, limiter.store, once=once), limiter)
    if verdict.response is not None and verdict.error is not None:
        raise as_exception(verdict.response, verdict.error) from None
    return verdict.result


def _limit_by_rules() -> None:
    """Decide a request by the rules of the application, before its view and the limits of that."""
    settings = settings_of_app()
    RequestState.current()
    rules, rule = settings.rules, request.url_rule
    if rules.is_empty:
        return
    found = rules.find(request.method.upper(), UNMATCHED if rule is None else rule.rule, request.endpoint or UNMATCHED)
    if found is not None:
        enforce([found])


def _write_headers(response: Response) -> Response:
    state, settings = RequestState.current(), settings_of_app()
    if state.ledger.is_held:
        end_with(response, state, settings.limiter)
    settings.writer.write(response.headers, state.results, status=response.status_code)
    return response


def _end_with_another(_: Flask, response: Response, **__: Any) -> None:
    """Settle by what other functions have made of the response after _write_headers."""
    end_with_another(response, RequestState.current(), settings_of_app().limiter)


def _finish_failed(error: BaseException | None) -> None:
    """Settle a request that Flask makes no response of, as it lets the exception pass.

    GeneratorExit is none: a stream in the context of its request ends with it when the client hangs up.
    """
    if isinstance(error, Exception):
        end_failed(RequestState.current(), settings_of_app().limiter)


def _answer(error: RatekitError) -> ResponseReturnValue:
    """Answer a refusal that nothing else answers; one of a limiter that a view has called itself like those of ratekit's."""
    if isinstance(error, _REFUSALS):
        return error.get_response()
    settings, ledger = settings_of_app(), RequestState.current().ledger
    run(refuse(ledger, settings.limiter.store.place), settings.limiter)
    refusal = as_exception(refusal_of(error, ledger, settings.writer), error)
    return current_app.make_response(current_app.handle_user_exception(refusal))


def _configured(app: Flask) -> dict[str, Any]:
    given = app.config.get("RATEKIT") or {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"RATEKIT {given!r} is not a dict of what install takes")
    refuse_unknown("RATEKIT", given, Arguments.__annotations__)
    return dict(given)


def _checked(name: str, function: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if function is not None and not callable(function):
        raise ConfigurationError(f"{name} {function!r} is not a callable of the request")
    return function


def _add_command(app: Flask) -> None:
    from ratekit.flask.command import ratekit_command

    app.cli.add_command(ratekit_command)
