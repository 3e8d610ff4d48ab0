"""Tokens: who may ask the server for what. HMAC-signed, scoped, expiring.

A token is `lc1.<claims>.<signature>`, both parts base64url without padding: it fits into a path segment, a header
and an environment variable. The key never leaves the server's run folder.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from enum import StrEnum
from pathlib import Path

import msgspec

from lightning_core.errors import ScopeError, TokenError
from lightning_core.records import Record

PREFIX = "lc1."
"""What every token begins with."""


class Scope(StrEnum):
    """What a token is for."""

    ADMIN = "admin"
    """The run: enqueue, read, grade, publish."""
    WORKER = "worker"
    """A worker: lease attempts and report them."""
    SESSION = "session"
    """One attempt: its model calls and spans, nothing else."""


class Claims(Record, frozen=True, kw_only=True):
    """What a token says."""

    scope: Scope
    """What it is for."""
    expires_at: float
    """Unix time in seconds after which it is refused."""
    attempt_id: str | None = None
    """The one attempt of a session."""
    fence: int | None = None
    """The fence of that attempt's lease."""


class TokenSigner:
    """Signs and checks tokens with one key."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 32:
            raise TokenError(f"token key: expected at least 32 bytes but got {len(key)}")
        self._key = key

    @classmethod
    def from_file(cls, path: Path) -> TokenSigner:
        """Read the key, making it first where there is none, readable by its owner alone."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls(path.read_bytes())
        with os.fdopen(descriptor, "wb") as file:
            file.write(key := secrets.token_bytes(32))
        return cls(key)

    def sign(self, claims: Claims) -> str:
        """A token that says `claims`."""
        body = _encode(msgspec.json.encode(claims))
        return f"{PREFIX}{body}.{_encode(self._mac(body))}"

    def issue(self, scope: Scope, *, seconds: float = 30 * 24 * 3600.0) -> str:
        """A token for a run or a worker, by default good for 30 days."""
        return self.sign(Claims(scope=scope, expires_at=time.time() + seconds))

    def verify(self, token: str, *scopes: Scope) -> Claims:
        """What a token says.

        Raises:
            ScopeError: it is for none of `scopes`.
            TokenError: it is malformed, forged or expired.
        """
        body, dot, signature = token.removeprefix(PREFIX).partition(".")
        if not token.startswith(PREFIX) or not dot:
            raise TokenError("token: not one of this server's; expected `lc1.…`")
        try:
            genuine = hmac.compare_digest(_decode(signature), self._mac(body))
        except ValueError:
            genuine = False
        if not genuine:
            raise TokenError(
                "token: the signature is wrong; it belongs to another server or was changed"
            )
        claims = msgspec.json.decode(_decode(body), type=Claims)
        if claims.expires_at < time.time():
            raise TokenError(
                f"token: expired {time.time() - claims.expires_at:.0f} s ago; ask for a new one"
            )
        if claims.scope not in scopes:
            wanted = " or ".join(f"`{scope}`" for scope in scopes)
            raise ScopeError(f"token: is for `{claims.scope}` but this needs {wanted}")
        return claims

    def _mac(self, body: str) -> bytes:
        return hmac.digest(self._key, body.encode(), hashlib.sha256)[:24]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
