"""Tokens: scoped, expiring, not to be forged."""

import stat
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import TokenError
from lightning_core.tokens import Claims, Scope, TokenSigner

KEY = b"k" * 32


def session(**changes):
    return Claims(
        **{"scope": Scope.SESSION, "expires_at": time.time() + 60, "attempt_id": "r.1", "fence": 3}
        | changes
    )


def test_a_token_says_what_was_signed_and_fits_a_path():
    token = TokenSigner(KEY).sign(claims := session())
    assert TokenSigner(KEY).verify(token, Scope.SESSION) == claims
    assert token.replace(".", "").replace("-", "").replace("_", "").isalnum()


def test_another_key_refuses_it():
    with pytest.raises(TokenError, match="signature"):
        TokenSigner(b"x" * 32).verify(TokenSigner(KEY).sign(session()), Scope.SESSION)


def test_an_expired_one_is_refused():
    with pytest.raises(TokenError, match="expired"):
        TokenSigner(KEY).verify(
            TokenSigner(KEY).sign(session(expires_at=time.time() - 1)), Scope.SESSION
        )


def test_a_session_cannot_do_what_an_admin_may():
    with pytest.raises(TokenError, match="is for `session` but this needs `admin`"):
        TokenSigner(KEY).verify(TokenSigner(KEY).sign(session()), Scope.ADMIN)


@given(st.integers(0, 400), st.integers(1, 255))
def test_a_changed_byte_is_refused(position, change):
    token = bytearray(TokenSigner(KEY).sign(session(expires_at=4e9)).encode())
    position %= len(token)
    token[position] = (token[position] + change) % 256
    with pytest.raises(TokenError):
        TokenSigner(KEY).verify(token.decode("latin-1"), Scope.SESSION)


@given(st.text())
def test_garbage_is_refused(text):
    with pytest.raises(TokenError):
        TokenSigner(KEY).verify(text, *Scope)


def test_the_key_file_is_its_owners_alone_and_is_kept(tmp_path):
    first = TokenSigner.from_file(tmp_path / "server.key")
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    TokenSigner.from_file(tmp_path / "server.key").verify(first.sign(session()), Scope.SESSION)
