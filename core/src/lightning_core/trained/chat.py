"""ChatClient: asks an OpenAI-compatible address for replies. It blocks, and needs no event loop."""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from email.message import Message as Headers
from typing import IO, Any, Final
from urllib.parse import urlsplit

import msgspec

from lightning_core import __version__
from lightning_core.errors import EngineError, UsageError
from lightning_core.provider import (
    LOOPBACK,
    NOT_OF_THE_FORM,
    OPENAI,
    cleaned,
    is_openai,
    key_for,
    passes,
    retry_after,
    said,
)
from lightning_core.records import Json
from lightning_core.redaction import without_userinfo

_TRIES: Final = 4
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 60.0
_LARGEST: Final = 64 * 1024 * 1024
_ADVICE: Final = {
    401: "; name the variable that holds its key with `api_key_env`",
    403: "; name the variable that holds its key with `api_key_env`",
    404: "; the address ends in what stands before `/chat/completions`, mostly `/v1`, and the server must know the model",
}


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
        url = (address or os.environ.get("OPENAI_BASE_URL") or OPENAI).rstrip("/")
        self._host = _host(url)
        self.is_openai = is_openai(self._host)
        """Whether it is OpenAI's own address, or one of its regions'."""
        self._url = f"{url}/chat/completions"
        self._key = key_for(self._host, api_key_env, who="model endpoint")
        self._timeout = timeout
        proxies = urllib.request.ProxyHandler({} if self._host in LOOPBACK else None)
        self._opener = urllib.request.build_opener(proxies, _NoRedirects)

    def __str__(self) -> str:
        return f"model endpoint {self._host}"

    def ask(self, request: dict[str, Json], stop: threading.Event) -> ChatReply:
        """The reply to a chat request.

        Args:
            request: the request.
            stop: is set where nobody waits any more; cuts waits short.

        Raises:
            EngineError: the server refuses, cannot be reached, is too slow, or answers without text.
            StoppedError: `stop` was set.
        """
        data = msgspec.json.encode(request)
        fault = ""
        for number in range(_TRIES):
            if stop.is_set():
                raise StoppedError
            wait = _FIRST_WAIT * 2**number
            try:
                status, headers, body = self._post(data)
            except TimeoutError as error:
                raise EngineError(
                    f"{self}: no reply in {self._timeout:g} s; give it longer with `timeout`"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                fault = (
                    f"cannot be reached: {cleaned(f'{type(reason).__name__}: {reason}', self._key)}"
                )
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise EngineError(f"{self}: {fault}") from error
            else:
                if 200 <= status < 300:
                    reply, fault = _read(body)
                    if reply is not None:
                        return reply
                    fault = fault or f"answered what is no chat's reply: {said(body, self._key)}"
                else:
                    fault = f"answered {status}: {said(body, self._key)}"
                    if not passes(status, body):
                        raise EngineError(f"{self}: {fault}{_ADVICE.get(status, '')}")
                    asked = retry_after(headers.get("retry-after", ""))
                    wait = wait if asked is None else asked
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


def _read(data: bytes) -> tuple[ChatReply | None, str]:
    """A chat's reply with text; else None, and why there is none where it is a chat's reply."""
    try:
        body = msgspec.json.decode(data)
        choice = body["choices"][0]
        text = choice["message"].get("content") or ""
        usage = body.get("usage") or {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        reply = msgspec.convert((text, *counts), tuple[str, int | None, int | None])
    except (*NOT_OF_THE_FORM, msgspec.ValidationError):
        return None, ""
    if not reply[0].strip():
        ended = choice.get("finish_reason")
        return (
            None,
            f"answered without text, finish reason {ended!r}; allow more `max_tokens`, or take another model",
        )
    return ChatReply(*reply), ""
