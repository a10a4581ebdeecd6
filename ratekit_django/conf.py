"""The setting RATEKIT: one property per key, read when it is first needed, and again when settings change."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core import mail
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ratekit import stores
from ratekit.core.errors import ConfigurationError
from ratekit.core.headers import DEFAULT_STYLE
from ratekit.core.keys import DEFAULT_PREFIX, check_prefix
from ratekit.core.modes import RateLimitMode, weakest
from ratekit.core.outages import OnOutage, as_on_outage
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.web.answers import ResponseWriter
from ratekit.web.arguments import checked_mode, current_mode
from ratekit.web.client_address import X_FORWARDED_FOR, TrustedProxies
from ratekit.web.identity import DEFAULT_ANONYMOUS, check_anonymous
from ratekit.web.plans import PlanFunction, Plans, as_plans
from ratekit.web.url_rules import UrlRules
from ratekit.web.view_limit import ViewLimit
from ratekit_django.background import Background
from ratekit_django.cache_url import url_of_cache

if TYPE_CHECKING:
    from ratekit.rules.reload import Rules

KEYS: dict[str, Any] = {
    "STORE_URL": None,
    "CACHE_ALIAS": None,
    "PREFIX": DEFAULT_PREFIX,
    "ON_OUTAGE": OnOutage.OPEN,
    "DEADLINE": 0.05,
    "IDENTIFY": None,
    "ANONYMOUS": None,
    "MODE": None,
    "FLEET_MODE": False,
    "FOLLOW_OVERRIDES": None,
    "VIOLATIONS": None,
    "HEADERS": DEFAULT_STYLE,
    "BODY": None,
    "TEMPLATE": "429.html",
    "TRUSTED_HOPS": None,
    "TRUSTED_HEADER": X_FORWARDED_FOR,
    "RULES": None,
    "RULES_SOURCE": None,
    "RULES_SERVICE": None,
    "RULES_FUNCTIONS": (),
    "RULES_FALLBACK": None,
    "DEFAULT": None,
    "EXEMPT": (),
    "PLANS": None,
    "PLAN_OF": None,
    "ADMIN_LOGIN": None,
}


CHECKED = (
    "identify", "anonymous", "mode", "fleet_mode", "follows_overrides", "writer", "template", "proxies", "plans", "plan_of",
    "violations", "rules_source", "admin_login",
)  # fmt: skip
DATABASE = "database"  # RULES_SOURCE: that of Django, where ratekit_django.database has its tables


class Conf:
    """What RATEKIT says, in the form in which it is used. A value that makes no sense is a ConfigurationError."""

    @property
    def given(self) -> Mapping[str, Any]:
        """The setting as it is."""
        given = getattr(settings, "RATEKIT", None) or {}
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"RATEKIT {given!r} is not a dict of settings")
        return given

    def __getitem__(self, key: str) -> Any:
        return self.given.get(key, KEYS[key])

    @cached_property
    def store_url(self) -> str:
        """STORE_URL, the server of CACHE_ALIAS, or what RATE_LIMIT_STORE_URL names."""
        url, alias = self["STORE_URL"], self["CACHE_ALIAS"]
        if url is not None and alias is not None:
            raise ConfigurationError("RATEKIT has both STORE_URL and CACHE_ALIAS: give one of them")
        if alias is not None:
            return url_of_cache(alias)
        if url is not None and (not isinstance(url, str) or not url):
            raise ConfigurationError(f"STORE_URL {url!r} is not a URL")
        return url or stores.default_url()

    @cached_property
    def prefix(self) -> str:
        """PREFIX: what keys start with."""
        return check_prefix(self["PREFIX"])

    @cached_property
    def on_outage(self) -> OnOutage:
        """ON_OUTAGE: what limits do when the store cannot tell, unless they say so themselves."""
        return as_on_outage(self["ON_OUTAGE"])

    @cached_property
    def identify(self) -> Callable[[Any], Any]:
        """IDENTIFY: the callable that says for which project a request was authenticated."""
        return _callable("IDENTIFY", self["IDENTIFY"]) or project_on_request

    @cached_property
    def anonymous(self) -> str:
        """ANONYMOUS: what is done with requests without a project, or a user. By default, their address is limited."""
        given = self["ANONYMOUS"]
        return DEFAULT_ANONYMOUS if given is None else check_anonymous(given)

    @cached_property
    def mode(self) -> RateLimitMode | None:
        """MODE: of this project; the weaker of it and the global one counts."""
        return checked_mode(self["MODE"])

    @cached_property
    def fleet_mode(self) -> bool:
        """FLEET_MODE: whether the mode that the store has for every process is followed."""
        if not isinstance(self["FLEET_MODE"], bool):
            raise ConfigurationError(f"FLEET_MODE {self['FLEET_MODE']!r} is neither True nor False")
        return bool(self["FLEET_MODE"])

    @cached_property
    def writer(self) -> ResponseWriter:
        """HEADERS and BODY: the styles of the headers, and the body of a 429."""
        return ResponseWriter(self["HEADERS"], _callable("BODY", self["BODY"]))

    @cached_property
    def template(self) -> str | None:
        """TEMPLATE: for the 429 of a client that prefers HTML; None: it gets the problem like the others."""
        template = self["TEMPLATE"]
        if template is not None and (not isinstance(template, str) or not template):
            raise ConfigurationError(f"TEMPLATE {template!r} is not the name of a template")
        return template

    @cached_property
    def proxies(self) -> TrustedProxies:
        """TRUSTED_HOPS (by default, NUM_PROXIES) and TRUSTED_HEADER: who may say on whose behalf they ask."""
        hops = self["TRUSTED_HOPS"]
        return TrustedProxies.of(num_proxies() if hops is None else hops, self["TRUSTED_HEADER"])

    @cached_property
    def rules(self) -> UrlRules:
        """RULES, DEFAULT and EXEMPT: limits by URL names and patterns."""
        return UrlRules(self["RULES"], self["DEFAULT"], self["EXEMPT"])

    @cached_property
    def admin_login(self) -> tuple[ViewLimit, ...]:
        """ADMIN_LOGIN: how many logins may fail on the admin's login page, of an address and of an account."""
        from ratekit_django.logins import admin_login_limits

        return admin_login_limits(self["ADMIN_LOGIN"])

    @cached_property
    def plans(self) -> Plans:
        """PLANS: named sets of limits, as a dict, Plans, or the dotted path of one."""
        given = self["PLANS"]
        return as_plans(_imported("PLANS", given) if isinstance(given, str) else given)

    @cached_property
    def plan_of(self) -> PlanFunction | None:
        """PLAN_OF: the callable that names the plan of a request."""
        return _callable("PLAN_OF", self["PLAN_OF"])

    @cached_property
    def rules_source(self) -> Rules | None:
        """RULES_SOURCE: a document of rules, by its path, its URL, or itself, or "database": that of Django.

        The other three are arguments of Rules.
        """
        given = self["RULES_SOURCE"]
        if given is None:
            return None
        from ratekit.rules.options import as_rules

        if given == DATABASE:
            self._need_database(f"RULES_SOURCE {DATABASE!r}")
            given = self.database_url
        functions, fallback = self["RULES_FUNCTIONS"], self["RULES_FALLBACK"]
        return as_rules(given, self["RULES_SERVICE"], functions, fallback, asks_plans=self.plan_of is not None)

    def limiter(self, on_outage: str | None = None) -> RateLimiter:
        """Return the limiter that waits, made on first use."""
        made = self._limiters.get(on_outage)
        return made or self._limiters.setdefault(on_outage, RateLimiter(self.store_url, **self._options(on_outage)))

    def async_limiter(self, on_outage: str | None = None) -> AsyncRateLimiter:
        """Return the limiter that is awaited, made on first use."""
        made = self._async_limiters.get(on_outage)
        return made or self._async_limiters.setdefault(
            on_outage, AsyncRateLimiter(self.store_url, **self._options(on_outage))
        )

    @cached_property
    def follows_overrides(self) -> bool:
        """FOLLOW_OVERRIDES: whether overrides are copied from the database, which ratekit_django.database is for.

        By default they are if that application is installed, but in tests, where a thread may not use the database.
        """
        given = self["FOLLOW_OVERRIDES"]
        if not isinstance(given, bool | None):
            raise ConfigurationError(f"FOLLOW_OVERRIDES {given!r} is neither True nor False")
        if given:
            self._need_database("FOLLOW_OVERRIDES True")
        return self._has_database and not hasattr(mail, "outbox") if given is None else given

    @cached_property
    def violations(self) -> str | None:
        """VIOLATIONS: how refused requests are written to the database: "plain" (True), "hashed"; None: they are not."""
        given = self["VIOLATIONS"]
        known = {None: None, False: None, True: "plain", "plain": "plain", "hashed": "hashed"}
        if not isinstance(given, bool | str | None) or given not in known:
            raise ConfigurationError(f"VIOLATIONS {given!r} is neither True, nor False, nor 'plain', nor 'hashed'")
        if known[given] is not None:
            self._need_database(f"VIOLATIONS {given!r}")
        return known[given]

    @property
    def database_url(self) -> str | None:
        """The URL of the database with ratekit's tables, None if ratekit_django.database is not installed."""
        if not self._has_database:
            return None
        from ratekit_django.database.urls import own_url

        return own_url()

    @property
    def _has_database(self) -> bool:
        return apps.is_installed("ratekit_django.database")

    def _need_database(self, what: str) -> None:
        if not self._has_database:
            raise ConfigurationError(f"{what} needs 'ratekit_django.database' in INSTALLED_APPS")

    def mode_of(self, limit: ViewLimit) -> RateLimitMode:
        """Return the mode of a limit now: the weakest of the global one, MODE, and its own."""
        return self.mode_now(limit.mode)

    def mode_now(self, own: RateLimitMode | None = None) -> RateLimitMode:
        """Return the mode of a request now: the weakest of the global one, MODE, and that of its limit.

        The first request that is limited begins what runs beside requests.
        """
        self.background.begin()
        mode = current_mode(own)
        return mode if self.mode is None else weakest(mode, self.mode)

    @cached_property
    def background(self) -> Background:
        """What runs in threads beside requests."""
        return Background(self)

    def check(self) -> None:
        """Read every setting, and make a limiter, which opens no connection: what makes no sense is told now."""
        for name in (*CHECKED, "rules"):
            getattr(self, name)
        self.rules.check_plans(self.plan_of)
        self.limiter()

    def reset(self) -> None:
        """Forget what was read, and close what was opened."""
        if (background := vars(self).get("background")) is not None:
            background.close()
        if (rules := vars(self).get("rules_source")) is not None:
            rules.close()
        for limiter in vars(self).get("_limiters", {}).values():
            limiter.close()
        vars(self).clear()

    @cached_property
    def _limiters(self) -> dict[str | None, RateLimiter]:
        return {}

    @cached_property
    def _async_limiters(self) -> dict[str | None, AsyncRateLimiter]:
        return {}

    def _options(self, on_outage: str | None) -> dict[str, Any]:
        return {"prefix": self.prefix, "on_outage": on_outage or self.on_outage, "deadline": self["DEADLINE"]}


def project_on_request(request: Any) -> tuple[Any, Any] | None:
    """Return the project where IDENTIFY is not set: what authentication has put on the request."""
    org_id, project_id = getattr(request, "org_id", None), getattr(request, "project_id", None)
    return None if org_id is None or project_id is None else (org_id, project_id)


def num_proxies() -> int | None:
    """Return how many proxies the settings of Django REST framework or of Django Ninja name, None if they do not say."""
    of_drf = getattr(settings, "REST_FRAMEWORK", None) or {}
    found: int | None = of_drf.get("NUM_PROXIES")
    return getattr(settings, "NINJA_NUM_PROXIES", None) if found is None else found


def workers() -> str | None:
    """Return how many workers the environment asks servers for, None if it does not say."""
    return os.environ.get("WEB_CONCURRENCY")


def _callable(key: str, value: Any) -> Callable[[Any], Any] | None:
    if value is None:
        return None
    found = _imported(key, value) if isinstance(value, str) else value
    if not callable(found):
        raise ConfigurationError(f"{key} {value!r} is neither a callable nor the dotted path of one")
    return found  # type: ignore[no-any-return]


def _imported(key: str, path: str) -> Any:
    try:
        return import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"{key} {path!r} cannot be imported: {error}") from None


conf = Conf()


def get_limiter() -> RateLimiter:
    """Return the project's limiter, for views that wait: it has peek, check, charge and refund. The mode does not apply."""
    return conf.limiter()


def get_async_limiter() -> AsyncRateLimiter:
    """Return the project's limiter, for async views under ASGI: get_limiter, awaited."""
    return conf.async_limiter()


def get_plans() -> Plans:
    """Return the project's plans: their `replace` puts others in force at once, in this process."""
    return conf.plans


def _follow(*, setting: str, **_: Any) -> None:
    if setting in ("RATEKIT", "CACHES", "REST_FRAMEWORK", "NINJA_NUM_PROXIES"):
        conf.reset()


setting_changed.connect(_follow, dispatch_uid="ratekit")
