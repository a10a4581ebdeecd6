"""Every error that ratekit raises, in one tree.

RatekitError
├── ConfigurationError          also a ValueError: something was built with a value that makes no sense
│   ├── DocumentError           a document of rules is refused; carries every problem and its place
│   └── MissingExtraError       also an ImportError: an optional dependency is not installed
├── RateLimitExceeded           the caller is over the limit; carries the result
├── RateLimitUnavailable        the store cannot tell, and the limiter was asked to refuse then
├── DatabaseUnavailable         the database does not answer; no check of a limit raises it
├── SourceUnavailable           the source of the rules does not answer
├── UnusableRequestError        who asks, or what it costs, cannot be told from the request: a 4xx
├── UnknownLimitsError          limits= or plan_of answered a name or a rate that stands for no limits: a 500
└── WrongTypeError              also a TypeError: a callable of the application answered what it must not: a 500
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratekit.core.results import RateLimitResult

_MOST_SHOWN = 5  # problems of a document in the text of one error


class RatekitError(Exception):
    """Base of every error of ratekit."""


class ConfigurationError(RatekitError, ValueError):
    """A value that makes no sense; the message names the field and the value."""


class DocumentError(ConfigurationError):
    """A document of rules is refused whole. `problems` has a sentence for each fault, which begins with its place."""

    def __init__(self, problems: Sequence[str], origin: str = "") -> None:
        self.problems = tuple(problems)
        self.origin = origin
        more = f" (and {len(self.problems) - _MOST_SHOWN} more)" if len(self.problems) > _MOST_SHOWN else ""
        text = "; ".join(self.problems[:_MOST_SHOWN]) + more
        super().__init__(f"{origin}: {text}" if origin else text)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.origin)


class MissingExtraError(ConfigurationError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs a package that is not installed: pip install 'ratekit[{extra}]'")
        self._given = (what, extra)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given


class RateLimitExceeded(RatekitError):
    """The caller is over the limit. `result` says by how much and until when."""

    def __init__(self, result: RateLimitResult) -> None:
        super().__init__(result.describe())
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.result,)


class RateLimitUnavailable(RatekitError):
    """The store cannot tell, and the limiter's on_outage is "closed". `reason` says what is wrong with the store."""

    def __init__(self, reason: str, retry_after: float = 1.0) -> None:
        super().__init__(f"the rate limit cannot be checked now: {reason}")
        self.reason = reason
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.retry_after)


class DatabaseUnavailable(RatekitError):
    """The database does not answer, or refuses. `reason` is its own sentence, without passwords."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the database does not answer: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,)


class SourceUnavailable(RatekitError):
    """The source of the rules does not answer. The rules in force stay."""


class UnusableRequestError(RatekitError):
    """Who asks, or what it costs, cannot be told from the request. `status` is the 4xx to answer with."""

    def __init__(self, detail: str, status: int = 400) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status


class UnknownLimitsError(RatekitError):
    """A callable of the application (limits, plan_of) answered what is neither a plan nor limits: a bug, and so a 500."""


class WrongTypeError(RatekitError, TypeError):
    """A callable of the application (by, cost, limits, …) answered a value of a wrong type: a bug, and so a 500.

    The message names the type and never the value, which may be a secret.
    """
