"""lightning-prompt: a backend that tunes the strategy of an agent whose code and weights stay as they are.

Importing this package imports neither gepa nor Optuna; they load where a search begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_core.plugins import hookimpl

if TYPE_CHECKING:
    from lightning_core.backend import Backend

__all__ = ["lightning_register_backends"]


@hookimpl
def lightning_register_backends() -> list[Backend]:
    """The backend `prompt`."""
    from lightning_prompt.backend import PromptBackend

    return [PromptBackend()]
