"""The gateway's HTTP client: connections, kept and reused."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Hashable

from yarl import URL

from lightning_core.gateway.http1 import Broken, Connection, Silent
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.refusal import Refusal
from lightning_core.gateway.targets import Target
from lightning_core.trace import CallErrorKind

_KEPT_SECONDS = 60.0


class Upstream:
    """Sends requests as they are: no redirects, cookies or headers of its own, and no decompression.

    The number of connections has no bound: one would make calls wait for one another, and sessions have budgets.
    """

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._idle: dict[Hashable, list[tuple[Connection, float]]] = {}
        self._tls: ssl.SSLContext | None = None

    def close(self) -> None:
        """Close the connections that are not in use."""
        for kept in self._idle.values():
            for connection, _ in kept:
                connection.close()
        self._idle.clear()

    async def send(
        self, method: bytes, target: Target, headers: bytes, body: bytes | None
    ) -> Connection:
        """Send a request and return the connection once the reply's head has come.

        The caller reads the body and then gives the connection to `release`, or closes it.

        Args:
            method: `GET` or `POST`.
            target: where to.
            headers: lines, each with its line end, without `Host` and `Content-Length`.
            body: None for no body.

        Raises:
            Refusal: no connection, one that broke, or silence.
        """
        if target.proxy is not None and target.url.scheme == "http":
            headers += _credentials(target.proxy).encode()
        if body is None:
            data = b"%b %b%b\r\n" % (method, target.opening, headers)
        else:
            length = len(body)
            data = b"%b %b%bContent-Length: %d\r\n\r\n%b" % (
                method,
                target.opening,
                headers,
                length,
                body,
            )
        while True:
            connection = self._kept(target) or await self._connect(target)
            try:
                connection.send(data)
                await connection.head()
            except Silent as error:
                raise self.failure(error, target) from error
            except Broken as error:
                if connection.served > 1:
                    continue  # the upstream closed a kept connection as it was used again
                raise self.failure(error, target) from error
            except BaseException:
                connection.close()
                raise
            return connection

    def release(self, target: Target, connection: Connection) -> None:
        """Keep a connection for the next request where it can serve one, else close it."""
        if connection.reusable:
            self._idle.setdefault(target.key, []).append((connection, time.monotonic()))
        else:
            connection.close()

    async def drop(self, target: Target, connection: Connection) -> None:
        """Read the rest of a reply that nobody wants, and release its connection."""
        try:
            while await connection.read():
                pass
        except Broken:
            pass  # what matters of it has come
        finally:
            self.release(target, connection)

    def failure(self, error: Broken, target: Target) -> Refusal:
        """What a broken connection means to the agent."""
        where = f"upstream `{target.host}`"
        if isinstance(error, Silent):
            return Refusal(504, "timeout", f"{where}: {error}", CallErrorKind.TIMEOUT)
        return Refusal(502, "cut", f"{where}: the connection broke: {error}", CallErrorKind.CUT)

    def _kept(self, target: Target) -> Connection | None:
        kept = self._idle.get(target.key)
        while kept:
            connection, since = kept.pop()
            if connection.reusable and time.monotonic() - since < _KEPT_SECONDS:
                return connection
            connection.close()
        return None

    async def _connect(self, target: Target) -> Connection:
        try:
            async with asyncio.timeout(self._limits.connect_timeout):
                return await self._open(target)
        except TimeoutError:
            reason = f"no answer in {self._limits.connect_timeout:g} s"
        except (OSError, Broken, UnicodeError) as error:
            reason = str(error) or type(error).__name__
        message = f"upstream `{target.host}`: no connection: {reason}"
        raise Refusal(502, "refused", message, CallErrorKind.REFUSED)

    async def _open(self, target: Target) -> Connection:
        loop = asyncio.get_running_loop()
        secure = target.url.scheme == "https"
        tls = self._context() if secure else None
        server = target.proxy or target.url
        direct_tls = tls if target.proxy is None else None
        _, connection = await loop.create_connection(
            lambda: Connection(self._limits.idle_timeout),
            server.host or "",
            server.port or 0,
            ssl=direct_tls,
            server_hostname=server.host if direct_tls is not None else None,
        )
        if target.proxy is not None and tls is not None:
            await self._tunnel(connection, target, tls)
        return connection

    async def _tunnel(self, connection: Connection, target: Target, tls: ssl.SSLContext) -> None:
        where = f"{target.url.host}:{target.url.port}"
        proxy = target.proxy
        assert proxy is not None  # the caller has looked
        try:
            connection.send(
                f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{_credentials(proxy)}\r\n".encode()
            )
            await connection.head()
            if connection.status != 200 or connection.transport is None:
                raise Broken(f"the proxy `{proxy.host}` answered {connection.status}")
            secured = await asyncio.get_running_loop().start_tls(
                connection.transport, connection, tls, server_hostname=target.url.host
            )
            if secured is None:
                raise Broken(f"the proxy `{proxy.host}` closed the connection")
            connection.use(secured)
            connection.served = 0
        except BaseException:
            connection.close()
            raise

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


def _credentials(proxy: URL) -> str:
    """The header line that a proxy wants; empty where its address names no user."""
    if proxy.user is None:
        return ""
    pair = f"{proxy.user}:{proxy.password or ''}".encode()
    return f"Proxy-Authorization: Basic {base64.b64encode(pair).decode()}\r\n"
