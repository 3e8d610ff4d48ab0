"""Naming adapters so that a child process can enter them."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_core.adapter import Adapter


def child_adapters(adapters: Iterable[Adapter]) -> dict[str, str]:
    """`module:Class` of each adapter by the modules after whose import it is entered."""
    return {
        trigger: f"{type(adapter).__module__}:{type(adapter).__qualname__}"
        for adapter in adapters
        for trigger in adapter.triggers
    }
