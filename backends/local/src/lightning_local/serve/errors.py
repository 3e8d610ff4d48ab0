"""Refusals, in OpenAI's form."""

from __future__ import annotations


class BadRequest(Exception):
    """A request that cannot be answered; becomes `{"error": {...}}` with the status."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.kind = kind
