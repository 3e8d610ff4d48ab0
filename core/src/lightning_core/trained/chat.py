"""ChatClient: asks an OpenAI-compatible address for replies. It blocks, and needs no event loop."""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from email.message import Message as Headers
from email.utils import parsedate_to_datetime
from typing import IO, Any, Final
from urllib.parse import urlsplit

import msgspec

from lightning_core import __version__
from lightning_core.errors import EngineError, UsageError
from lightning_core.records import Json
from lightning_core.redaction import HIDDEN, redacted, without_userinfo

_OPENAI: Final = "https://api.openai.com/v1"
_TRIES: Final = 4
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 60.0
_LARGEST: Final = 64 * 1024 * 1024
_SHOWN: Final = 300
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_ADVICE: Final = {
    401: "; name the variable that holds its key with `api_key_env`",
    403: "; name the variable that holds its key with `api_key_env`",
    404: "; the address ends in what stands before `/chat/completions`, mostly `/v1`, and the server must know the model",
}
_NO_CHAT: Final = (
    msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError, RecursionError,
)  # fmt: skip


class StoppedError(Exception):
    """Nobody waits for the reply any more."""


class ChatReply(msgspec.Struct, frozen=True):
    """A reply with text."""

    text: str
    """The text."""
    prompt_tokens: int | None
    """Tokens of the messages, as the server counted them."""
    completion_tokens: int | None
    """Tokens of the reply, as the server counted them."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: the key would go along."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:  # fmt: skip
        """Make the redirect an error."""


class ChatClient:
    """Asks one address. May be used by several threads at once.

    What is overloaded or cannot be reached is asked a few times, with the wait that the server asks for; what refuses, or
    takes longer than `timeout`, is one error at once.
    """

    def __init__(
        self, address: str | None, *, api_key_env: str | None = None, timeout: float = 120.0
    ) -> None:
        """
        Args:
            address: `http://HOST/v1`; None is `OPENAI_BASE_URL`, else OpenAI's.
            api_key_env: the variable that holds the key. By default `OPENAI_API_KEY`, which is sent to OpenAI and to the host
                of `OPENAI_BASE_URL` alone.
            timeout: seconds that a reply may take.

        Raises:
            UsageError: the address is none, or a key is needed and not set.
        """
        if timeout <= 0:
            raise UsageError(f"`timeout`: expected seconds above 0 but got {timeout!r}")
        url = (address or os.environ.get("OPENAI_BASE_URL") or _OPENAI).rstrip("/")
        self._host = _host(url)
        self.is_openai = f".{self._host}".endswith(".api.openai.com")
        """Whether it is OpenAI's own address, or one of its regions'."""
        self._url = f"{url}/chat/completions"
        self._key = _key(self._host, self.is_openai, api_key_env)
        self._timeout = timeout
        proxies = urllib.request.ProxyHandler({} if self._host in _LOOPBACK else None)
        self._opener = urllib.request.build_opener(proxies, _NoRedirects)

    def __str__(self) -> str:
        return f"model endpoint {self._host}"

    def ask(self, body: dict[str, Json], stop: threading.Event) -> ChatReply:
        """The reply to a chat request.

        Args:
            body: the request.
            stop: is set where nobody waits any more; cuts waits short.

        Raises:
            EngineError: the server refuses, cannot be reached, is too slow, or answers without text.
            StoppedError: `stop` was set.
        """
        data = msgspec.json.encode(body)
        fault = ""
        for number in range(_TRIES):
            if stop.is_set():
                raise StoppedError
            wait = _FIRST_WAIT * 2**number
            try:
                status, headers, said = self._post(data)
            except TimeoutError as error:
                raise EngineError(
                    f"{self}: no reply in {self._timeout:g} s; give it longer with `timeout`"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                fault = f"cannot be reached: {self._clean(f'{type(reason).__name__}: {reason}')}"
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise EngineError(f"{self}: {fault}") from error
            else:
                if 200 <= status < 300:
                    reply, fault = _read(said)
                    if reply is not None:
                        return reply
                    fault = fault or f"answered what is no chat's reply: {self._said(said)}"
                else:
                    fault = f"answered {status}: {self._said(said)}"
                    if not _passes(status, said):
                        raise EngineError(f"{self}: {fault}{_ADVICE.get(status, '')}")
                    wait = _wanted(headers.get("retry-after", ""), wait)
            if wait > _LONGEST_WAIT:
                raise EngineError(f"{self}: {fault}; it asks to wait {wait:.0f} s: try again then")
            if number + 1 < _TRIES:
                stop.wait(wait)
        raise EngineError(f"{self}: {fault}; given up after {_TRIES} tries")

    def _post(self, data: bytes) -> tuple[int, Headers, bytes]:
        headers = {"content-type": "application/json", "user-agent": f"lightning-core/{__version__}"}  # fmt: skip
        request = urllib.request.Request(self._url, data, headers, method="POST")
        if self._key:
            request.add_unredirected_header("authorization", f"Bearer {self._key}")
        ends = time.monotonic() + self._timeout
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                return response.status, response.headers, self._whole(response, ends)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, self._whole(error.fp, ends)

    def _whole(self, response: Any, ends: float) -> bytes:
        parts, size = [], 0
        while part := response.read1(65536):
            parts.append(part)
            size += len(part)
            if size > _LARGEST:
                raise EngineError(f"{self}: its reply is larger than {_LARGEST} bytes")
            if time.monotonic() > ends:
                raise TimeoutError
        return b"".join(parts)

    def _said(self, data: bytes) -> str:
        """What a server said, on one line."""
        text = data.decode(errors="replace")
        # An error of another form than OpenAI's is shown as it is.
        with contextlib.suppress(*_NO_CHAT):
            text = str(msgspec.json.decode(data)["error"]["message"])
        return self._clean(text)[:_SHOWN] or "nothing"

    def _clean(self, text: str) -> str:
        """Text on one line, without the key and what looks like one."""
        if self._key:
            text = text.replace(self._key, HIDDEN)
        line = " ".join(redacted(text).split())
        return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)  # fmt: skip


def _host(url: str) -> str:
    """The host of an address.

    Raises:
        UsageError: it is none, or holds more than an address.
    """
    where = f"`model_endpoint` {without_userinfo(url)!r}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{where}: {error}; expected `http://HOST/v1`") from None
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not host or port == 0 or not plain:
        raise UsageError(f"{where}: expected `http://HOST/v1` or `https://HOST/v1`")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError(
            f"{where}: expected an address without credentials or a query; name the variable that holds the key with"
            " `api_key_env`"
        )
    return host


def _key(host: str, is_openai: bool, variable: str | None) -> str | None:
    """The key for a host; None for one elsewhere, which would learn a key that is not for it."""
    known = is_openai or host == urlsplit(os.environ.get("OPENAI_BASE_URL", "")).hostname
    if variable is None and not known:
        return None
    name = variable or "OPENAI_API_KEY"
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"model endpoint {host}: `{name}` holds characters that no key has")
    if not key and (variable is not None or is_openai):
        raise UsageError(
            f"model endpoint {host}: `{name}` is not set; set it, or name the variable that holds the key with `api_key_env`"
        )
    return key or None


def _read(data: bytes) -> tuple[ChatReply | None, str]:
    """A chat's reply with text; else None, and why there is none where it is a chat's reply."""
    try:
        body = msgspec.json.decode(data)
        choice = body["choices"][0]
        text = choice["message"].get("content") or ""
        usage = body.get("usage") or {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        reply = msgspec.convert((text, *counts), tuple[str, int | None, int | None])
    except (*_NO_CHAT, msgspec.ValidationError):
        return None, ""
    if not reply[0].strip():
        ended = choice.get("finish_reason")
        return (
            None,
            f"answered without text, finish reason {ended!r}; allow more `max_tokens`, or take another model",
        )
    return ChatReply(*reply), ""


def _passes(status: int, said: bytes) -> bool:
    """Whether a refusal is one that passes."""
    if status == 429:
        return b"insufficient_quota" not in said  # OpenAI's word for an account without money.
    return status in (408, 425) or status >= 500


def _wanted(text: str, otherwise: float) -> float:
    """Seconds that a `retry-after` asks to wait, in either of its forms."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return otherwise
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
