"""AutoGen for lightning-core. Importing this imports nothing of AutoGen."""

from __future__ import annotations

from lightning_autogen.adapter import AutoGenAdapter
from lightning_core.adapter import Adapter
from lightning_core.plugins import hookimpl

__all__ = ["AutoGenAdapter", "lightning_register_adapters"]


@hookimpl
def lightning_register_adapters() -> list[Adapter]:
    """Register the adapter."""
    return [AutoGenAdapter()]
