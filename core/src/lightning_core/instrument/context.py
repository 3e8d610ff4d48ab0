"""Which attempt, agent and node the running code belongs to.

A `Scope` lives in a context variable; where none is set, the scope of the whole process applies, which a worker
hands to a child process in `LIGHTNING_CORE_SESSION`. Standard library only, and no import of lightning_core: child
processes load this file in virtual environments that lack the package.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar

from .sinks import HttpSink
from .spans import OpenSpan
from .variables import SESSION

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
"""The variables in which SDKs look for a key."""
PLACEHOLDER_KEY = "lightning-core"
"""What `KEYS` are set to where the gateway has no use for a key: the session travels on its own."""

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, Protocol

    class SpanSink(Protocol):
        """Takes spans. One may come twice, first open and then ended."""

        def emit(self, span: OpenSpan) -> None:
            """Take one span. Must not block and must not raise."""

    class ScopeSource(Protocol):
        """Knows more about the running code than the context variable says: a framework's own context."""

        def resolve(self, scope: Scope | None) -> Scope | None:
            """The scope that applies where the context variable (or the process) says `scope`."""

        def forget(self, attempt: str) -> None:
            """Drop what is kept for an attempt that has ended."""


class Scope:
    """What the running code belongs to. Not changed once it is made; compared by identity."""

    # No dataclass: it would cost the start of every child process, and the copies that each span wants several times as
    # long.
    __slots__ = (
        "adapters",
        "agent",
        "attempt",
        "gateway",
        "labels",
        "node",
        "session",
        "set_key",
        "sink",
        "span",
        "strategy",
    )

    def __init__(
        self,
        *,
        gateway: str,
        session: str,
        attempt: str,
        sink: SpanSink,
        span: str | None = None,
        agent: str | None = None,
        node: str | None = None,
        labels: Mapping[str, str] | None = None,
        adapters: Mapping[str, str] | None = None,
        set_key: bool = False,
        strategy: str | None = None,
    ) -> None:
        """
        Args:
            gateway: origin of the gateway, `http://HOST:PORT`.
            session: the session's token.
            attempt: id of the attempt.
            sink: where its spans go.
            span: id of the innermost span.
            agent: label: the agent that is at work.
            node: label: the graph node that is at work.
            labels: any other labels.
            adapters: for child processes: `module:Class` of an adapter by the module after whose import it is entered.
            set_key: for child processes: whether the variables in `KEYS` are replaced.
            strategy: for child processes: the file with the attempt's strategy; None where they find it as this process
                did.
        """
        self.gateway = gateway
        self.session = session
        self.attempt = attempt
        self.sink = sink
        self.span = span
        self.agent = agent
        self.node = node
        self.labels: Mapping[str, str] = labels or {}
        self.adapters: Mapping[str, str] = adapters or {}
        self.set_key = set_key
        self.strategy = strategy

    def inside(
        self, span: str | None, agent: str | None, node: str | None, labels: Mapping[str, str]
    ) -> Scope:
        """The same attempt within a span, or under other labels."""
        scope = _new(Scope)
        scope.gateway = self.gateway
        scope.session = self.session
        scope.attempt = self.attempt
        scope.sink = self.sink
        scope.span = span
        scope.agent = agent
        scope.node = node
        scope.labels = labels
        scope.adapters = self.adapters
        scope.set_key = self.set_key
        scope.strategy = self.strategy
        return scope

    def __repr__(self) -> str:
        # Without the token.
        return f"Scope(attempt={self.attempt!r}, span={self.span!r}, agent={self.agent!r}, node={self.node!r})"

    @property
    def base_url(self) -> str:
        """The session's OpenAI-compatible address; holds the token."""
        return f"{self.gateway}/s/{self.session}/v1"


_scope: ContextVar[Scope | None] = ContextVar("lightning_core_scope", default=None)
_sources: list[ScopeSource] = []
_lock = threading.Lock()
_process: tuple[str | None, Scope | None] = (None, None)
_prefix = os.urandom(8).hex()
_numbers = itertools.count()
_new = object.__new__


def current() -> Scope | None:
    """The scope of the running code, or None outside every attempt."""
    scope = base()
    for source in _sources:
        scope = source.resolve(scope)
    return scope


def base() -> Scope | None:
    """The scope that the context variable, else the process, gives: `current` before any source was asked."""
    return _scope.get() or process_scope()


def process_scope() -> Scope | None:
    """The scope that `LIGHTNING_CORE_SESSION` gives to the whole process, or None."""
    global _process
    raw = os.environ.get(SESSION)
    if raw != _process[0]:
        with _lock:
            if raw != _process[0]:
                _process = (raw, _read(raw) if raw else None)
    return _process[1]


def _read(raw: str) -> Scope | None:
    try:
        data = json.loads(raw)
        gateway, session, attempt = data["gateway"], data["session"], data["attempt"]
        return Scope(
            gateway=gateway,
            session=session,
            attempt=attempt,
            sink=HttpSink(gateway, session, attempt),
            span=data.get("span"),
            adapters=data.get("adapters") or {},
            set_key=os.environ.get("OPENAI_API_KEY") == PLACEHOLDER_KEY,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The value is not quoted: it may hold a token.
        sys.stderr.write(
            f"lightning-core: `{SESSION}` cannot be read ({type(error).__name__}); model calls of"
            " this process are not recorded. A worker sets it; do not set it by hand\n"
        )
        return None


@contextmanager
def attempt(scope: Scope) -> Iterator[Scope]:
    """Run what is inside as the attempt of `scope`."""
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _reset(token)
        for source in list(_sources):
            source.forget(scope.attempt)


class entered:
    """Run what is inside in `scope`; the attempt goes on afterwards."""

    # A class, since adapters enter it for each step of a stream. Named as what it is used as.
    __slots__ = ("_inside", "_token")

    def __init__(self, scope: Scope | None) -> None:
        self._inside = scope

    def __enter__(self) -> None:
        self._token = _scope.set(self._inside)

    def __exit__(self, *raised: object) -> None:
        _reset(self._token)


@contextmanager
def label(
    *, agent: str | None = None, node: str | None = None, **labels: str
) -> Iterator[Scope | None]:
    """Label the model calls made inside. Does nothing outside an attempt."""
    scope = current()
    if scope is None:
        yield None
        return
    with entered(relabelled(scope, agent=agent, node=node, **labels)):
        yield base()


def relabelled(
    scope: Scope, *, agent: str | None = None, node: str | None = None, **labels: str
) -> Scope:
    """`scope` with the labels that are given."""
    return scope.inside(
        scope.span,
        scope.agent if agent is None else agent,
        scope.node if node is None else node,
        {**scope.labels, **labels} if labels else scope.labels,
    )


@contextmanager
def span(
    kind: str,
    name: str,
    attributes: Mapping[str, Any] | None = None,
    *,
    agent: str | None = None,
    node: str | None = None,
) -> Iterator[OpenSpan | None]:
    """A span around what is inside, which becomes its child. Gives None outside an attempt.

    An agent span labels the calls inside with its name as `agent`, a node span as `node`, unless told otherwise.
    """
    opened = start_span(kind, name, attributes, agent=agent, node=node)
    if opened is None:
        yield None
        return
    token = _scope.set(opened.scope)
    try:
        yield opened
    except BaseException as error:
        end_span(opened, error=describe_error(error))
        raise
    else:
        end_span(opened)
    finally:
        _reset(token)


def start_span(
    kind: str,
    name: str,
    attributes: Mapping[str, Any] | None = None,
    *,
    agent: str | None = None,
    node: str | None = None,
    scope: Scope | None = None,
    started_at: float | None = None,
) -> OpenSpan | None:
    """Start a span within `scope`, by default the current one; None outside an attempt.

    It does not become the current span: enter its `scope` for that. End it with `end_span`.
    """
    scope = scope or current()
    if scope is None:
        return None
    if agent is None:
        agent = name if kind == "agent" else scope.agent
    if node is None:
        node = name if kind == "node" else scope.node
    identifier = new_id()
    opened = OpenSpan(
        identifier,
        scope.inside(identifier, agent, node, scope.labels),
        kind,
        name,
        scope.span,
        time.time() if started_at is None else started_at,
        dict(attributes) if attributes else {},
    )
    scope.sink.emit(opened)  # Known even where its end is never seen.
    return opened


def end_span(opened: OpenSpan, *, error: str | None = None) -> None:
    """End a span and give it to its sink. A span that has ended already stays as it is."""
    if opened.ended_at is None:
        opened.ended_at = time.time()
        opened.error = error
        opened.scope.sink.emit(opened)


def new_id() -> str:
    """An id that no other has, in any process."""
    return f"{_prefix}{next(_numbers):016x}"


def describe_error(error: BaseException) -> str:
    """What was raised, in one bounded line."""
    text = str(error)
    return f"{type(error).__name__}: {text}"[:4096] if text else type(error).__name__


@contextmanager
def source(source: ScopeSource) -> Iterator[None]:
    """Ask `source` whenever the current scope is wanted, while the context is open. May be nested."""
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


def _reset(token: Any) -> None:
    try:  # noqa: SIM105 - `suppress` takes longer than all the rest
        _scope.reset(token)
    except ValueError:
        # An async generator may be closed in another context than the one that started it: that one never saw the value.
        pass


def _after_fork() -> None:
    global _lock, _prefix
    _lock = threading.Lock()
    _prefix = os.urandom(8).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
