"""Gateway: takes model calls, sends them where they belong, records them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from aiohttp import web

from lightning_core.errors import TokenError
from lightning_core.gateway.asides import COUNT, ROUTES, Aside
from lightning_core.gateway.asking import Services
from lightning_core.gateway.dialects import DIALECTS, dialect_of
from lightning_core.gateway.exchange import Exchange
from lightning_core.gateway.headers import session_token
from lightning_core.gateway.incoming import AiohttpRequest, Incoming
from lightning_core.gateway.labels import SESSION
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.outgoing import Outgoing, Sent, refusal_reply
from lightning_core.gateway.policy import Policies
from lightning_core.gateway.recorder import Recorder
from lightning_core.gateway.refusal import Refusal
from lightning_core.gateway.session import Session
from lightning_core.gateway.targets import Targets
from lightning_core.gateway.translating import Speech, remember
from lightning_core.gateway.upstream import Upstream
from lightning_core.store.base import Store
from lightning_core.tokens import Claims, Scope, TokenSigner
from lightning_core.trace import CallErrorKind

_PREFIX = "/s/"
_PATHS = (_PREFIX, "/v1/")
_PLAIN_PATHS = (*_PATHS, "/openai/")
_KEYS = ("authorization", "api-key", "x-api-key")
_REMEMBERED_TOKENS = 4096


class Gateway:
    """Answers the model calls of the attempts whose sessions are open.

    Serve it with a `Front` before `web.Server(gateway.handle, handler_cancellation=True, access_log=None)`: without the
    first an agent that goes away does not cancel its call, and an access log would hold session tokens.
    """

    def __init__(
        self,
        *,
        store: Store,
        signer: TokenSigner,
        allow_targets: Sequence[str] | None = None,
        limits: GatewayLimits = GatewayLimits(),  # noqa: B008 - frozen
    ) -> None:
        """
        Args:
            store: where calls are recorded.
            signer: checks session tokens.
            allow_targets: `host`, `host:port` or `*.domain` that observed calls may go to; None allows any.
            limits: bounds on sizes and waits.
        """
        self._store = store
        self._signer = signer
        self._limits = limits
        self._targets = Targets(allow_targets)
        self.policies = Policies(limits)
        """Where train and val calls go, and whether they wait."""
        self._sessions: dict[str, Session] = {}
        self._claims: dict[str, Claims] = {}
        self._services: Services | None = None
        self.plain: str | None = None
        """The attempt whose session takes the calls that name none; they go to its upstream. None refuses them."""

    async def start(self) -> None:
        """Begin to take calls."""
        upstream = Upstream(self._limits)
        recorder = Recorder(self._store)
        self._services = Services(self._limits, recorder, upstream, self._targets, Speech())

    async def close(self) -> None:
        """End every session and close every connection. May be called more than once."""
        for attempt_id in list(self._sessions):
            await self.end(attempt_id)
        services, self._services = self._services, None
        if services is not None:
            services.upstream.close()

    # Sessions ----------------------------------------------------------------------------------------------------

    def open(self, session: Session) -> None:
        """Take the calls of an attempt from now on; its token must name it."""
        gate = self.policies.of(session.run)
        session.start(self._limits, gate, session.deadline - time.time())
        for call in session.earlier:
            remember(session, call, self._limits)
        session.earlier = ()
        self._sessions[session.attempt_id] = session

    async def end(self, attempt_id: str, *, grace: float = 0.0) -> Session | None:
        """Take no more calls of an attempt, and return once all that it made are in the store.

        Args:
            attempt_id: the attempt.
            grace: seconds that calls under way may still take before they are cancelled.

        Returns:
            Its session; None where none was open.
        """
        session = self._sessions.pop(attempt_id, None)
        if session is None:
            return None
        await session.drain(grace, _ended(attempt_id))
        return session

    def calls_under_way(self, attempt_id: str) -> int:
        """The calls of one attempt that have not ended."""
        session = self._sessions.get(attempt_id)
        return 0 if session is None else session.in_flight

    @property
    def in_flight(self) -> int:
        """Calls under way in all modes, those that wait for a paused policy included."""
        return sum(session.in_flight for session in self._sessions.values())

    # Requests ----------------------------------------------------------------------------------------------------

    def matches(self, request: web.BaseRequest) -> bool:
        """Whether a request is the gateway's: by its path, or because it names its session in a header."""
        return self.takes(request.path, request.headers)

    def takes(self, path: str, headers: Mapping[str, str]) -> bool:
        """The same, of its path and its headers, whose names are found in lower case."""
        paths = _PATHS if self.plain is None else _PLAIN_PATHS
        return path.startswith(paths) or SESSION in headers

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request that aiohttp's server took in."""
        return Sent(await self.answer(AiohttpRequest(request)))

    async def answer(self, request: Incoming) -> Outgoing:
        """Answer one request, to the last byte.

        Raises:
            ConnectionError: the agent has gone.
        """
        try:
            reply = await self._reply(request)
        except Refusal as refusal:
            form = dialect_of(request.path.rstrip("/").removesuffix(COUNT))
            reply = refusal_reply(request, refusal, form)
        reply.finish()
        return reply

    async def _reply(self, request: Incoming) -> Outgoing:
        token, path = _token_and_path(request)
        plain = token is None
        session = self._session(token)
        services = self._services
        if services is None:
            raise Refusal(503, "paused", "the gateway is not running", CallErrorKind.PAUSED)
        if request.method == "POST":
            dialect = dialect_of(path)
            if dialect is not None:
                return await Exchange(services, session, request, dialect, path, fixed=plain).run()
        aside = await Aside(services, session, request, path, fixed=plain).answer()
        if aside is not None:
            return aside
        known = ", ".join(f"`POST …{dialect.suffix}`" for dialect in DIALECTS)
        raise Refusal(
            404,
            "unknown_route",
            f"`{request.method} {path}` is no format that the gateway speaks; it speaks {known}, {ROUTES}",
        )

    def _session(self, token: str | None) -> Session:
        if token is None and self.plain is not None:
            session = self._sessions.get(self.plain)
            if session is None:
                raise _ended(self.plain)
            return session
        if token is None:
            raise _unknown(
                "no session; expected `/s/SESSION/v1/…`, the header `x-lightning-session`, or the session's token as the API key"
            )
        claims = self._claims.get(token)
        if claims is None or claims.expires_at < time.time():
            try:
                claims = self._signer.verify(token, Scope.SESSION)
            except (TokenError, ValueError) as error:
                self._claims.pop(token, None)
                raise _unknown(str(error)) from None
            if len(self._claims) >= _REMEMBERED_TOKENS:
                self._claims.clear()
            self._claims[token] = claims
        session = self._sessions.get(claims.attempt_id or "")
        if session is None:
            raise _ended(claims.attempt_id)
        return session


def _token_and_path(request: Incoming) -> tuple[str | None, str]:
    """The session's token, and the path without it."""
    path = request.path.rstrip("/")
    if path.startswith(_PREFIX):
        first, slash, rest = path[len(_PREFIX) :].partition("/")
        return first, slash + rest
    headers = request.headers
    if named := headers.get(SESSION):
        return named, path
    for name in _KEYS:
        if (key := headers.get(name)) and (token := session_token(key)) is not None:
            return token, path
    return None, path


def _unknown(message: str) -> Refusal:
    return Refusal(401, "unknown_session", message)


def _ended(attempt_id: str | None) -> Refusal:
    return Refusal(
        401,
        "unknown_session",
        f"attempt `{attempt_id}` has no open session: it has ended, or the server was started again",
        CallErrorKind.CLIENT_GONE,
    )
