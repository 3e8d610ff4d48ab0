"""What is known of a server with an OpenAI-compatible address: whose key it may see, which refusals pass, what it says."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lightning_core.errors import UsageError
from lightning_core.redaction import HIDDEN, redacted

OPENAI: Final = "https://api.openai.com/v1"
"""OpenAI's own address."""
ANTHROPIC: Final = "https://api.anthropic.com/v1"
"""Anthropic's own address."""
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts that no proxy is asked for."""
NOT_OF_THE_FORM: Final = (
    msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError, RecursionError,
)  # fmt: skip
"""What reading a body as OpenAI's form may raise."""
_SHOWN: Final = 300


def is_openai(host: str | None) -> bool:
    """Whether it is OpenAI's own host, or one of its regions'."""
    return f".{host}".endswith(".api.openai.com")


def is_anthropic(host: str | None) -> bool:
    """Whether it is Anthropic's own host."""
    return f".{host}".endswith(".api.anthropic.com")


def key_for(host: str | None, variable: str | None, *, who: str) -> str | None:
    """The key for a host; None for one elsewhere, which would learn a key that is not for it.

    Args:
        host: where it is sent.
        variable: the variable that holds it. By default `OPENAI_API_KEY`, for OpenAI and the host of `OPENAI_BASE_URL` alone.
        who: who needs it, for a message.

    Raises:
        UsageError: it is needed and not set, or is none.
    """
    known = is_openai(host) or host == urlsplit(os.environ.get("OPENAI_BASE_URL", "")).hostname
    if variable is None and not known:
        return None
    name = variable or "OPENAI_API_KEY"
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{who} {host}: `{name}` holds characters that no key has")
    if not key and (variable is not None or is_openai(host)):
        raise UsageError(
            f"{who} {host}: `{name}` is not set; set it, or name the variable that holds the key with `api_key_env`"
        )
    return key or None


def passes(status: int, said: bytes) -> bool:
    """Whether a refusal is one that passes: of a server that is overloaded, not of one that was asked for what it has not.

    Args:
        status: the HTTP status.
        said: the body.
    """
    if status == 429:
        return b"insufficient_quota" not in said  # OpenAI's word for an account without money.
    return status in (408, 425) or status >= 500


def retry_after(text: str) -> float | None:
    """Seconds that a server asks to wait by its header `retry-after`, in either form; None where it asks nothing."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def said(body: bytes, key: str | None) -> str:
    """What a server said went wrong, on one bounded line: its message, else all of it. See `cleaned`."""
    text = body.decode(errors="replace")
    # An error of another form than OpenAI's is shown as it is.
    with contextlib.suppress(*NOT_OF_THE_FORM):
        text = str(msgspec.json.decode(body)["error"]["message"])
    return cleaned(text, key)[:_SHOWN] or "nothing"


def cleaned(text: str, key: str | None) -> str:
    """Text on one line, without the key, what looks like one, and characters that a terminal would obey."""
    if key:
        text = text.replace(key, HIDDEN)
    line = " ".join(redacted(text).split())
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line
    )
