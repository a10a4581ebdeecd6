"""What the ASGI and the WSGI middleware share: their arguments, and what they decide to check of a request."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ratekit.addresses import X_FORWARDED_FOR, TrustedProxies
from ratekit.errors import UnusableRequestError
from ratekit.front import Answers, BodyFunction, Check, checked_cost, checked_mode, cost_of, mode_reader
from ratekit.headers import DEFAULT_STYLE
from ratekit.identity import KeyFunction, as_key_function, body_too_long, client_ip
from ratekit.keys import DEFAULT_PREFIX
from ratekit.limits import Policy
from ratekit.modes import RateLimitMode
from ratekit.protocol import Call
from ratekit.requests import FrontRequest
from ratekit.rules import Rule, RuleLimits, Rules, as_rule_policy

ADDRESS_ENDPOINT = "address"
Asked = tuple[Check, Call]  # the call is the one that decides the check, unless it takes a slot
_MOST_KNOWN = 16384
_log = logging.getLogger("ratekit.guard")


class UnverifiedIdentityWarning(UserWarning):
    """Who is limited is what clients say of themselves, with no limit by address beside it."""


class Guard:
    """The arguments of a middleware, checked when it is built.

    default, rules and exempt say which policy a path has; by says who is limited; cost is a number or a callable of the
    request; headers names one style or several; body makes the body of a 429 of the result; trusted_hops is a number of
    proxies or their networks, and trusted_header the header that they set; address_limit is checked for every request, by
    its address, beside the rest.
    """

    def __init__(
        self,
        *,
        default: RuleLimits | Mapping[str, Any] | None = "100/min",
        rules: Mapping[str, RuleLimits | Mapping[str, Any]] | None = None,
        by: KeyFunction | Callable[[Any], str | None] | str = "ip",
        cost: int | Callable[[Any], int] = 1,
        exempt: Iterable[str] = (),
        headers: str | Iterable[str] = DEFAULT_STYLE,
        body: BodyFunction | None = None,
        mode: str | RateLimitMode | None = None,
        trusted_hops: int | Iterable[str] | str | None = None,
        trusted_header: str = X_FORWARDED_FOR,
        address_limit: RuleLimits | None = None,
        prefix: str = DEFAULT_PREFIX,
    ) -> None:
        self.rules = Rules(rules, default, exempt)
        self.rule = self.rules.find  # of a request, by its method and path; None if it is not limited
        self.by = as_key_function(by)
        self.answers = Answers(headers, body)
        self.proxies = TrustedProxies.of(trusted_hops, trusted_header)
        self._prefix = prefix
        self._cost = checked_cost(cost)
        self.mode = mode_reader(checked_mode(mode))
        self._address_policy: Policy | None = None
        if address_limit is not None:
            self._address_policy = as_rule_policy(ADDRESS_ENDPOINT, address_limit)
        elif self.by.is_claimed:
            _warn_of_claims(self.by)
        self._nameless: set[str] = set()
        # Where nothing but the peer makes a difference, what there is to check of it is found once.
        self.is_by_peer = self.by == client_ip() and self.proxies.is_empty and not callable(self._cost)
        self._known: dict[tuple[Rule, str | None], Sequence[Asked]] = {}
        self.known_checks = self._known.get  # what was to check of an earlier request, by its rule and its peer

    def check_body(self, request: FrontRequest) -> None:
        """Refuse a request whose body is too long to be looked into."""
        if request.body is None:
            raise body_too_long(self.by)

    def checks(self, request: FrontRequest, rule: Rule) -> Sequence[Asked]:
        """Return what there is to check of a request: by its address if there is such a limit, and by its rule."""
        asked = [(check, check.call(self._prefix)) for check in self._checks(request, rule)]
        # A soft limit draws a number for every request, and a slot is one request's own.
        if self.is_by_peer and not any(call.compiled.is_soft or call.compiled.has_slots for _, call in asked):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[rule, request.peer] = asked
        return asked

    def _checks(self, request: FrontRequest, rule: Rule) -> Sequence[Check]:
        checks = []
        if self._address_policy is not None and (address := request.address()) is not None:
            checks.append(Check(self._address_policy, ADDRESS_ENDPOINT, address))
        subject = self._subject(request, rule)
        if subject is not None and rule.policy is not None:
            checks.append(Check(rule.policy, rule.endpoint, subject, cost_of(self._cost, request)))
        return checks

    def _subject(self, request: FrontRequest, rule: Rule) -> str | None:
        """Who does not say what clients have to say is known by the address: saying nothing must not pay."""
        try:
            subject = self.by.read(request)
        except ValueError as error:
            raise UnusableRequestError(f"who is limited cannot be told from the request: {error}") from None
        if subject is None and (self.by.is_claimed or self.by.is_address):
            subject = request.address()
            if subject is None and rule.endpoint not in self._nameless:
                self._nameless.add(rule.endpoint)
                _log.warning("requests of %s have no address (a Unix socket?), and pass: set trusted_hops", rule.endpoint)
        return subject


def _warn_of_claims(by: KeyFunction) -> None:
    warnings.warn(
        f"by={by.name} limits clients by what they say of themselves: who sends another value each time is never limited. "
        "Verify it before this middleware, or set address_limit beside it",
        UnverifiedIdentityWarning,
        stacklevel=4,
    )
