"""lightning-local: engines that serve a model on this machine, and a backend that trains one here.

Importing this package imports neither torch nor transformers; they load in the engine's own process, and where
training begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_core.plugins import hookimpl

if TYPE_CHECKING:
    from lightning_core.backend import Backend
    from lightning_core.engine import EngineFactory

__all__ = ["lightning_register_backends", "lightning_register_engines"]


@hookimpl
def lightning_register_backends() -> list[Backend]:
    """The backend `local`."""
    from lightning_local.backend import LocalBackend

    return [LocalBackend()]


@hookimpl
def lightning_register_engines() -> list[EngineFactory]:
    """The engines `local` (torch and transformers) and `vllm` (a vLLM server that we start)."""
    from lightning_local.engine import LocalEngineFactory
    from lightning_local.vllm import VLLMEngineFactory

    return [LocalEngineFactory(), VLLMEngineFactory()]
