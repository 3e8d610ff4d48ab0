"""Providers that a model's prefix names, and the variables in which their keys are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.instrument.context import PLACEHOLDER_KEY


class Provider(msgspec.Struct, frozen=True):
    """What is known of a provider without LiteLLM."""

    needs: tuple[tuple[str, ...], ...]
    """Environment variables without which it cannot be asked; one of each group will do."""
    secrets: tuple[str, ...]
    """Environment variables that hold keys."""


PROVIDERS: Final[dict[str, Provider]] = {
    "anthropic": Provider(
        needs=(("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),),
        secrets=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    ),
    "azure": Provider(
        needs=(
            ("AZURE_API_BASE",),
            ("AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_AD_TOKEN", "AZURE_CLIENT_SECRET"),
        ),
        secrets=(
            "AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_AD_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_PASSWORD",
        ),
    ),
    # What of AWS is missing only its own library can tell: there are files, roles and single sign-on too.
    "bedrock": Provider(
        needs=(),
        secrets=(
            "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK",
        ),
    ),
    "gemini": Provider(
        needs=(("GEMINI_API_KEY", "GOOGLE_API_KEY"),),
        secrets=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
}  # fmt: skip
"""By the prefix with which a model of theirs is named, as in `anthropic/claude-sonnet-4-5`."""


def provider_of(model: str) -> str | None:
    """The provider that a model's prefix names; None where it names none of `PROVIDERS`, or the model is a folder."""
    prefix, _, name = model.partition("/")
    named = prefix in PROVIDERS and name and "@http" not in name and not Path(model).is_dir()
    return prefix if named else None


def check_keys(model: str) -> None:
    """Refuse a model whose key is not there. Says nothing of providers that are not in `PROVIDERS`.

    Raises:
        UsageError: variables are not set; the message names them.
    """
    provider = PROVIDERS.get(provider_of(model) or "")
    for names in provider.needs if provider else ():
        if not any(
            os.environ.get(name, PLACEHOLDER_KEY) not in ("", PLACEHOLDER_KEY) for name in names
        ):
            raise missing(model, names)


def without_placeholders(names: Iterable[str]) -> None:
    """Unset the variables in which an agent's clients, and no provider, find a key."""
    for name in names:
        if os.environ.get(name) == PLACEHOLDER_KEY:
            del os.environ[name]


def missing(model: str, names: tuple[str, ...]) -> UsageError:
    """That a model cannot be asked without one of these variables."""
    first, *others = (f"`{name}`" for name in names)
    instead = f" (or {', '.join(others)})" if others else ""
    return UsageError(f"engine `litellm`: model {model!r}: {first}{instead} is not set; set it")
