"""The OpenAI Agents SDK for lightning-core. Importing this does not import it."""

from __future__ import annotations

from lightning_core.adapter import Adapter
from lightning_core.plugins import hookimpl
from lightning_openai_agents.adapter import OpenAIAgentsAdapter

__all__ = ["OpenAIAgentsAdapter", "lightning_register_adapters"]


@hookimpl
def lightning_register_adapters() -> list[Adapter]:
    """Register the adapter."""
    return [OpenAIAgentsAdapter()]
