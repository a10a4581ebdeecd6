"""A Django request as key functions see it: Django parses, so that a limit counts what the view will read.

Also where a request keeps what was decided about it.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Container, MutableMapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, Self

from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.core.files.uploadhandler import FileUploadHandler, SkipFile
from django.http import QueryDict
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.http.request import RawPostDataException, UnreadablePostError

from ratekit.core.errors import UnusableRequestError
from ratekit.core.results import RateLimitResult
from ratekit.web.client_address import TrustedProxies
from ratekit.web.identity import KeyFunction, body_too_long
from ratekit.web.ledger import LEDGER, Ledger
from ratekit.web.parsers import MULTIPART, cookie_texts
from ratekit.web.requests import WsgiRequest, asgi_header_lines, principal_of
from ratekit.web.settling import Usage

_STATE = "ratekit"


class DjangoRequest(WsgiRequest):
    """A request of Django's, or of a framework on top of it. Its META has the names of WSGI under ASGI too."""

    def __init__(self, request: Any, proxies: TrustedProxies) -> None:
        self._request = request
        self._parsing = getattr(request, "_request", request)  # Django's own, within that of Django REST framework
        self._environ = request.META
        self.proxies = proxies
        self.method = request.method or "GET"
        # The test client of Django Ninja before 1.7 makes requests that have no path_info.
        self.path = getattr(request, "path_info", request.path)

    @property
    def native(self) -> Any:
        """The request itself."""
        return self._request

    @property
    def application_request(self) -> Any:
        """The request itself: Django's, or that of Django REST framework."""
        return self._request

    @property
    def principal(self) -> str | None:
        """The user of Django's AuthenticationMiddleware."""
        return principal_of(getattr(self._request, "user", None))

    def header_lines(self, name: str) -> Sequence[str]:
        """Return every line of a header; under WSGI, the server has joined them."""
        scope = getattr(self._parsing, "scope", None)
        return asgi_header_lines(scope, name) if isinstance(scope, dict) else super().header_lines(name)

    def header(self, name: str) -> str | None:
        """Return a header, as request.headers has it; None if its lines differ."""
        return None if super().header(name) is None else self._parsing.headers.get(name)

    def query_values(self, name: str) -> Sequence[str]:
        """Return all values of a parameter, as request.GET has them."""
        values: Sequence[str] = _parsed(lambda: self._parsing.GET.getlist(name))
        return values

    def cookie(self, name: str) -> str | None:
        """Return a cookie, as request.COOKIES has it; None if there are several different ones."""
        texts = cookie_texts(self.header_lines("cookie"), name)
        return self._parsing.COOKIES.get(name) or None if len(texts) == 1 else None

    def form_values(self, name: str) -> Sequence[str]:
        """Return all texts of a field, as Django parses the form, whatever the method."""
        fields, files = _parsed(self._form)
        texts: Sequence[str] = fields.getlist(name)
        if texts and name in files:  # Django REST framework puts both into one place
            raise UnusableRequestError(f"the field {name!r} of the form is a text and a file")
        return texts

    def _form(self) -> tuple[QueryDict, Container[str]]:
        """Parse the form, apart from request.POST: a view may yet choose its upload handlers."""
        request, body = self._parsing, self.body
        if body is None:
            return request.POST, request.FILES
        if self.media_type.kind == MULTIPART:
            files = _FileNames()
            return MultiPartParser(request.META, io.BytesIO(body), [files], request.encoding).parse()[0], files.names
        self.media_type.require_utf8()
        return QueryDict(body, encoding="utf-8"), ()

    @property
    def has_parsed_form(self) -> bool:
        """Whether Django has parsed the body as a form, and only request.POST and request.FILES are left of it."""
        return self.body is None and self.media_type.is_form and hasattr(self._parsing, "_post")


class _FileNames(FileUploadHandler):
    """Takes the names of the fields that are files, and leaves out what is in them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def new_file(self, field_name: str, *args: Any, **options: Any) -> None:
        self.names.add(field_name)
        raise SkipFile

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        """A file that is skipped has no chunks."""

    def file_complete(self, file_size: int) -> None:
        """A file that is skipped is never complete."""


def _parsed(parse: Callable[[], Any]) -> Any:
    """Let Django parse. What it refuses is a 400, and so is a charset that is none."""
    try:
        return parse()
    except (SuspiciousOperation, BadRequest, MultiPartParserError, LookupError, ValueError):
        raise UnusableRequestError("the query or the form of the request cannot be parsed") from None


class Dispatch:
    """One call of a view with a request, and what was decided about it.

    A context manager: while it is entered, it is the dispatch of its request.
    """

    __slots__ = ("_tokens", "deciders", "depth", "has_inner", "identity", "is_called_within", "ledger", "outcomes", "state")

    def __init__(self, state: RequestState, ledger: Ledger) -> None:
        self.state = state
        self.ledger = ledger
        self.depth = len(ledger.fronts)  # it ends what was decided since then
        self.deciders: list[object] = []  # the views, rules and throttles that have decided
        self.has_inner = False  # another dispatch has begun in this one
        self.identity: str | None = None  # the subject of the project
        self.outcomes: set[str] = set()  # what Django's signals have said of it
        self.is_called_within = False  # it was begun in another dispatch, which makes the response that is sent
        self._tokens: list[Token[Dispatch | None]] = []

    def __enter__(self) -> Self:
        outer = _running.get()
        self.is_called_within = outer is not None and outer.ledger is not self.ledger
        self._tokens.append(_running.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _running.reset(self._tokens.pop())

    def inner(self, decider: object) -> Dispatch:
        """Begin the dispatch of a view that is called in this one.

        The first joins this one, since stacked decorators are one dispatch: limits that meet charge once, and a refusal
        gives back what all have spent. Each ends its own: something between them may make a 401 of an exception. Any further
        one is decided for itself: a batch view calls views again and again.
        """
        dispatch = Dispatch(self.state, Ledger())
        if not self.has_inner and decider not in self.deciders:
            dispatch.ledger, dispatch.deciders, dispatch.identity = self.ledger, self.deciders, self.identity
            dispatch.outcomes = self.outcomes
            dispatch.ledger.fronts += (decider,)
            dispatch.depth = len(dispatch.ledger.fronts)
        self.has_inner = True
        dispatch.deciders.append(decider)
        return dispatch


_running: ContextVar[Dispatch | None] = ContextVar("ratekit_dispatch", default=None)


class RequestState:
    """What was decided about one request: `request.ratekit`. A copy of a request has its own."""

    def __init__(self, request: Any) -> None:
        self.request = weakref.ref(request)
        self.has_middleware = False  # the middleware will write the headers
        self.is_awaited = False  # the limiter that is awaited has decided last, and settles
        self._closers: list[Callable[[], None]] = []  # called with the end of the request
        self._outer: Ledger | None = _shared(request).get(LEDGER)
        self._outermost = self.begin()

    @classmethod
    def of(cls, request: Any) -> RequestState:
        """Return the state of a request, made on first use."""
        request = getattr(request, "_request", request)  # of Django REST framework
        state: RequestState | None = vars(request).get(_STATE)
        if state is None or state.request() is not request:
            state = cls(request)
            setattr(request, _STATE, state)
        return state

    def on_close(self, closer: Callable[[], None]) -> None:
        """Call something when Django closes the request, which it does with the response that is sent in the end.

        A middleware may put another response in the place of the one that was answered, as for a 304.
        """
        self._closers.append(closer)
        if (request := self.request()) is not None and "close" not in vars(request):
            request.close = _Close(request, self._closers)

    @property
    def results(self) -> tuple[RateLimitResult, ...]:
        """The results of the limits that were decided so far, in this dispatch of the request to a view."""
        return tuple(self.ledger.results)

    @property
    def is_over_limit(self) -> bool:
        """Whether a limit has said no, one with block=False or in monitor mode included."""
        return any(result.is_over_limit for result in self.ledger.results)

    def add(self, amount: int | None = None, /, **units: int) -> None:
        """Add to what the request has cost so far, for limits with an estimate: the sum is its actual cost."""
        Usage(self.ledger).add(amount, **units)

    def settle(self, actual: int | None = None, /, **units: int) -> None:
        """Say what the request has cost, for limits with an estimate: a number, or numbers by unit."""
        Usage(self.ledger).settle(actual, **units)

    def begin(self) -> Dispatch:
        """Begin the outermost dispatch of the request."""
        outer = self._outer
        ledger = Ledger(outer)
        if outer is not None:
            ledger.fronts = (*outer.fronts, self)  # a front around this one ends what is its own
        self._outermost = Dispatch(self, ledger)
        return self._outermost

    @property
    def dispatch(self) -> Dispatch:
        """The dispatch that runs."""
        running = _running.get()
        return running if running is not None and running.state is self else self._outermost

    @property
    def ledger(self) -> Ledger:
        """The ledger of the dispatch that runs."""
        return self.dispatch.ledger

    def ledger_for(self, decider: object) -> Ledger:
        """Return the ledger of the dispatch that runs, for a throttle.

        Another dispatch begins where the throttle decides a second time, or after a view that was called here.
        """
        dispatch = self.dispatch
        if decider in dispatch.deciders or dispatch.has_inner:
            dispatch.ledger, dispatch.deciders, dispatch.identity, dispatch.outcomes = Ledger(), [], None, set()
            dispatch.has_inner, dispatch.depth = False, 0
        dispatch.deciders.append(decider)
        return dispatch.ledger

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a request that is pickled or copied deeply has not been decided


class _Close:
    """The close of a request: calls what waits for it, and closes the files of the request. A deep copy closes nothing."""

    def __init__(self, request: Any = None, closers: list[Callable[[], None]] | None = None) -> None:
        self._request = (lambda: None) if request is None else weakref.ref(request)
        self._closers = [] if closers is None else closers

    def __call__(self) -> None:
        while self._closers:
            self._closers.pop(0)()
        if (request := self._request()) is not None:
            type(request).close(request)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


def usage_of(request: Any) -> RequestState:
    """Return `request.ratekit`: what was decided about a request, and where a view says what it has cost."""
    return RequestState.of(request)


def running_dispatch() -> Dispatch | None:
    """Return the dispatch that runs in this context, of whichever request."""
    return _running.get()


def _shared(request: Any) -> MutableMapping[str, Any]:
    """Return what all fronts of a request share: the scope under ASGI, else the environ."""
    scope = getattr(request, "scope", None)
    state: MutableMapping[str, Any] = scope if isinstance(scope, dict) else request.META
    return state


def is_asgi(request: Any) -> bool:
    """Whether a request came through ASGI, whose event loop outlives it; an async view under WSGI has one of its own."""
    return isinstance(getattr(request, "scope", None), dict)


def read_body(front: DjangoRequest, by: KeyFunction) -> bytes | None:
    """Return the body for a key function that looks into it; None where it was parsed as a form before, or read."""
    request = getattr(front.native, "_request", front.native)
    if not hasattr(request, "_body") and getattr(request, "_read_started", False):
        return None
    if front.is_longer_than(by.most_body):
        raise body_too_long(by)
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        raise body_too_long(by) from None
    except (RawPostDataException, UnreadablePostError):
        return None
    if len(body) > by.most_body:
        raise body_too_long(by)
    return body
