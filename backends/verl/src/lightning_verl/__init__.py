"""lightning-verl: a backend that trains with verl, which runs in an environment of its own.

This half is light: it imports neither torch nor verl nor Ray. What runs there is in `lightning_verl.trainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_core.plugins import hookimpl

if TYPE_CHECKING:
    from lightning_core.backend import Backend
    from lightning_core.executor import Executor

__all__ = ["lightning_register_backends", "lightning_register_executors"]


@hookimpl
def lightning_register_backends() -> list[Backend]:
    """The backend `verl`."""
    from lightning_verl.backend import VerlBackend

    return [VerlBackend()]


@hookimpl
def lightning_register_executors() -> list[Executor]:
    """The executor `ray`."""
    from lightning_verl.ray_executor import RayExecutor

    return [RayExecutor()]
