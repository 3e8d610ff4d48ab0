"""Where an observed call goes, and whether it may."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec
from yarl import URL

from lightning_core.gateway.refusal import Refusal
from lightning_core.provider import LOOPBACK, OPENAI, is_openai

_DEPLOYMENT = re.compile(r"/deployments/([^/?]+)/")
_OURS = re.compile(r"https?://[^/]*/s/lc1\.")
_REMEMBERED = 1024


class Target(msgspec.Struct, frozen=True):
    """An upstream address that a call may go to."""

    url: URL
    """The address, without credentials and fragment."""
    shown: str
    """The address without query and credentials, for the record."""
    host: str
    """The `Host` header."""
    opening: bytes
    """A request's first line after the method, and the `Host` header."""
    proxy: URL | None
    """The forward proxy on the way, by the environment's rules."""
    key: tuple[str, str, int | None, str]
    """Equal for addresses that share connections."""


class Targets:
    """Reads and checks addresses; remembers the latest, since agents call few."""

    def __init__(self, allowed: Sequence[str] | None) -> None:
        """
        Args:
            allowed: `host`, `host:port` or `*.domain` that `x-lightning-target` may name; None allows any.
        """
        self._allowed = None if allowed is None else tuple(item.lower() for item in allowed)
        self._known: dict[tuple[str, bool], Target] = {}
        self._proxies = urllib.request.getproxies()

    def observed(
        self,
        named: str | None,
        *,
        upstream: str | None,
        path: str,
        suffix: str,
        query: str,
        home: str = OPENAI,
    ) -> tuple[Target, bool]:
        """Where an observed call goes, and whether that is the very path that the agent used.

        Args:
            named: `x-lightning-target`.
            upstream: the session's upstream; None stands for `home`.
            path: the path after the session's prefix.
            suffix: the end of the path that names the format.
            query: the query, without `?`.
            home: the format's own provider. OpenAI's address stands for it too.

        Raises:
            Refusal: the target is no address, or its host is not allowed.
        """
        # An agent that was pointed at the gateway, and then instrumented, names the session's own address.
        if named is not None and not _OURS.match(named):
            return self._target(named, check=True), True
        base = (upstream or home).rstrip("/")
        if home != OPENAI and is_openai(urlsplit(base).hostname):
            base = home
        tail = f"?{query}" if query else ""
        if "/deployments/" not in path:
            return self._target(base + suffix + tail, check=True), True
        if base.endswith("/v1"):
            # OpenAI's form: the model goes into the body, and `api-version` means nothing.
            return self._target(base + suffix, check=True), False
        return self._target(base + path + tail, check=True), True

    def beside(self, target: Target, suffix: str, other: str) -> Target:
        """The address of another format at the same upstream.

        Args:
            target: the address of a format.
            suffix: the end of the path that names that format.
            other: the end of the path that names the other.
        """
        # The address has been checked, and no other host is named.
        return self._target(target.shown.rstrip("/").removesuffix(suffix) + other, check=False)

    def trusted(self, text: str) -> Target:
        """A target that the run itself named.

        Raises:
            Refusal: it is no address.
        """
        return self._target(text, check=False)

    def _target(self, text: str, *, check: bool) -> Target:
        known = self._known.get((text, check))
        if known is not None:
            return known
        try:
            url = URL(text, encoded=True)
            host, port = url.host, url.port
        except ValueError as error:
            raise Refusal(400, "bad_request", f"target: not an address: {error}") from None
        if url.scheme not in ("http", "https") or not host:
            raise Refusal(400, "bad_request", "target: expected an absolute http or https address")
        if check and not self._allows(host.lower(), port):
            raise Refusal(
                403,
                "target_not_allowed",
                f"host `{host}:{port}` is not allowed; start the server with `--allow-target {host}`",
            )
        target = self._made(url.with_user(None).with_fragment(None), host)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[text, check] = target
        return target

    def _allows(self, host: str, port: int | None) -> bool:
        if self._allowed is None:
            return True
        for item in self._allowed:
            if item.startswith("*."):
                if host.endswith(item[1:]):
                    return True
            elif item in (host, f"{host}:{port}"):
                return True
        return False

    def _made(self, url: URL, host: str) -> Target:
        proxy = self._proxy(url, host)
        # A proxy is told the whole address, unless a tunnel leads through it.
        whole = proxy is not None and url.scheme == "http"
        asked = str(url) if whole else url.raw_path_qs
        name = url.host_port_subcomponent or host
        opening = f"{asked} HTTP/1.1\r\nHost: {name}\r\n"
        return Target(
            url=url,
            shown=str(url.with_query(None)),
            host=name,
            opening=opening.encode("utf-8", "surrogateescape"),
            proxy=proxy,
            key=(url.scheme, host, url.port, str(proxy)),
        )

    def _proxy(self, url: URL, host: str) -> URL | None:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        if proxy is None or host in LOOPBACK or urllib.request.proxy_bypass(host):
            return None
        return URL(proxy)


def deployment_of(path: str) -> str | None:
    """The deployment's name in an Azure path; None in any other."""
    match = _DEPLOYMENT.search(path)
    return match[1] if match else None
