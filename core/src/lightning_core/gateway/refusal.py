"""Refusal: an answer that the gateway makes itself."""

from __future__ import annotations

import msgspec

from lightning_core.trace import CallErrorKind


class Refusal(Exception):
    """Ends the handling of a request with an error of the gateway's own, in OpenAI's form."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        kind: CallErrorKind = CallErrorKind.BAD_REQUEST,
        *,
        headers: dict[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.kind = kind
        self.headers = headers or {}
        self.param = param

    def body(self) -> bytes:
        """The error as JSON."""
        error = {
            "message": self.message,
            "type": f"lightning_{self.code}",
            "code": self.code,
            "param": self.param,
        }
        return msgspec.json.encode({"error": error})
