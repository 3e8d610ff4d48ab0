"""Failures in OpenAI's form: status, body and headers by which an agent's SDK knows what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from lightning_core.provider import cleaned
from lightning_core.redaction import HIDDEN

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_CODES: Final = {
    "AuthenticationError": "invalid_api_key",
    "ContentPolicyViolationError": "content_filter",
    "ContextWindowExceededError": "context_length_exceeded",
    "NotFoundError": "model_not_found",
    "RateLimitError": "rate_limit_exceeded",
    "Timeout": "timeout",
    "UnsupportedParamsError": "unsupported_parameter",
}
"""OpenAI's `code` by the name of LiteLLM's exception."""
_PASSED_ON: Final = ("retry-after", "retry-after-ms", "x-should-retry")
"""Headers of a provider's refusal by which SDKs wait."""
_LONGEST: Final = 2000
_SHORTEST_SECRET: Final = 8


class Failure(Exception):
    """A request that is not answered."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """
        Args:
            status: the HTTP status.
            message: what is wrong.
            code: OpenAI's `code`.
            param: the parameter that is at fault.
            headers: of the reply.
        """
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    def body(self) -> bytes:
        """The body of the reply, or the data of a stream's event."""
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": str(self),
            "type": _TYPES.get(self.status, usual),
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})


def failure_of(error: Exception, secrets: Iterable[str]) -> Failure:
    """What an exception of LiteLLM's says to an agent.

    Args:
        error: the exception; one that is not LiteLLM's has status 500.
        secrets: variables whose values the message must not hold.
    """
    if isinstance(error, Failure):
        return error
    # What goes wrong in a stream stands in an exception of LiteLLM's own.
    within = getattr(error, "original_exception", None)
    error = within if isinstance(within, Exception) else error
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not 400 <= status <= 599:
        status = 500
    message = str(getattr(error, "message", None) or error) or type(error).__name__
    message = message.partition("Traceback (most recent call last)")[0]
    for name in secrets:
        value = os.environ.get(name, "")
        if len(value) >= _SHORTEST_SECRET:
            message = message.replace(value, HIDDEN)
    code = getattr(error, "code", None)
    known = next(
        (_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES), None
    )
    return Failure(
        status,
        cleaned(message, None)[:_LONGEST],
        code=code if isinstance(code, str) and not code.isdigit() else known,
        headers=_headers(error),
    )


def _headers(error: Any) -> dict[str, str]:
    """What a refusal says of another try."""
    sources = (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    )
    found: dict[str, str] = {}
    for source in sources:
        for name in _PASSED_ON:
            value = source.get(name) if source is not None else None
            if isinstance(value, str) and name not in found and value.isprintable():
                found[name] = value
    return found
