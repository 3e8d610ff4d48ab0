"""Naming adapters so that a child process can enter them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lightning_core.adapter import Adapter


def child_adapters(adapters: Iterable[Adapter]) -> dict[str, str]:
    """`module:Class` of each adapter by the modules after whose import it is entered.

    Left out are those whose class another process cannot import.
    """
    return {
        trigger: f"{type(adapter).__module__}:{type(adapter).__qualname__}"
        for adapter in adapters
        for trigger in adapter.triggers
        if type(adapter).__module__ != "__main__" and "<locals>" not in type(adapter).__qualname__
    }


def with_own(adapters: Sequence[Adapter], own: Adapter) -> tuple[Adapter, ...]:
    """`adapters`, and an agent's own one where none of them is of its kind."""
    return tuple(adapters) if is_among(adapters, own) else (*adapters, own)


def is_among(adapters: Iterable[Adapter], own: Adapter) -> bool:
    """Whether one of `adapters` is of the kind of `own`, and so instruments the same."""
    return any(type(adapter) is type(own) for adapter in adapters)
