"""LangGraph and LangChain for lightning-core. Importing this imports neither of them."""

from __future__ import annotations

from lightning_core.adapter import Adapter
from lightning_core.plugins import hookimpl
from lightning_langgraph.adapter import LangGraphAdapter

__all__ = ["LangGraphAdapter", "lightning_register_adapters"]


@hookimpl
def lightning_register_adapters() -> list[Adapter]:
    """Register the adapter."""
    return [LangGraphAdapter()]
