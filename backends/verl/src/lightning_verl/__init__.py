"""lightning-verl: a backend that trains with verl, which runs in an environment of its own.

This half is light: it imports neither torch nor verl nor Ray. What runs there is in `lightning_verl.trainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_core.plugins import hookimpl

if TYPE_CHECKING:
    from lightning_core.backend import Backend

__all__ = ["lightning_register_backends"]


@hookimpl
def lightning_register_backends() -> list[Backend]:
    """The backend `verl`."""
    from lightning_verl.backend import VerlBackend

    return [VerlBackend()]
