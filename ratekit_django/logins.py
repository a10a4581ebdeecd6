"""Logins: the outcomes that Django's signals tell of, and the limits of the admin's login page.

`count="login_failed"` counts a request in which `authenticate` has refused credentials. `reset_when="logged_in"` forgets
what was counted when somebody has logged in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.http import HttpRequest

from ratekit.core.errors import ConfigurationError
from ratekit.web.charging import add_outcome
from ratekit.web.plans import RuleLimits
from ratekit.web.view_limit import ViewLimit, view_limit
from ratekit_django.requests import RequestState, running_dispatch
from ratekit_django.urls import Url

FAILED, LOGGED_IN = "login_failed", "logged_in"
ADMIN_LOGIN = "admin login"  # the endpoint: accounts are the same on every admin site
_BY = {"address": "ip", "account": "form:username"}  # the form of Django's login calls the account so, whatever the model


def admin_login_limits(given: Any) -> tuple[ViewLimit, ...]:
    """Return the limits of the admin's login page: failed logins of an address and of an account, decided together."""
    if given is None:
        return ()
    limits: Mapping[str, RuleLimits] = given if isinstance(given, Mapping) else dict.fromkeys(_BY, given)
    if not limits or not set(limits) <= set(_BY):
        raise ConfigurationError(f"ADMIN_LOGIN {given!r} is neither a rate nor a dict of rates for 'address' and 'account'")
    try:
        return tuple(
            view_limit(limits=limits[who], by=_BY[who], methods=["POST"], count=FAILED, endpoint=ADMIN_LOGIN)
            for who in limits
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"ADMIN_LOGIN: {error}") from None


def is_admin_login(request: Any) -> bool:
    """Whether a request is for the login page of an admin site, whatever its name."""
    match = getattr(request, "resolver_match", None)
    return match is not None and _is_login_page(match.url_name, match.app_names)


def is_admin_login_url(url: Url) -> bool:
    """Whether a URL is the login page of an admin site."""
    return _is_login_page(url.name.rpartition(":")[2], url.apps)


def _is_login_page(name: str | None, apps: Sequence[str]) -> bool:
    return name == "login" and "admin" in apps


def _noting(word: str) -> Callable[..., None]:
    def note(request: Any = None, **_: Any) -> None:
        """Take note of an outcome, on the request that the signal names, else on the one that runs."""
        is_named = isinstance(getattr(request, "_request", request), HttpRequest)
        dispatch = RequestState.of(request).dispatch if is_named else running_dispatch()
        if dispatch is not None:
            dispatch.outcomes.add(word)

    return note


def _said(word: str, *, elsewhere: bool) -> Callable[[Any], bool]:
    """Return what tells whether a signal has spoken of a request; elsewhere: for fronts that are not Django's."""
    return lambda request: elsewhere if request is None else word in RequestState.of(request).dispatch.outcomes


_note_failed, _note_logged_in = _noting(FAILED), _noting(LOGGED_IN)
user_login_failed.connect(_note_failed, dispatch_uid="ratekit")
user_logged_in.connect(_note_logged_in, dispatch_uid="ratekit")
add_outcome(FAILED, _said(FAILED, elsewhere=True))
add_outcome(LOGGED_IN, _said(LOGGED_IN, elsewhere=False))
