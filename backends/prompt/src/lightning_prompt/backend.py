"""The backend `prompt`: better agents without touching weights or code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from lightning_core.backend import Backend
from lightning_core.capability import Capability
from lightning_core.errors import UsageError
from lightning_core.litellm_engine import LiteLLMEngineFactory, provider_of
from lightning_core.runs import Artifact, Run, RunConfig


class PromptBackend(Backend):
    """Searches a Strategy for an agent: prompts, demonstrations, decision rules, interaction patterns, model choice."""

    name: ClassVar[str] = "prompt"
    needs: ClassVar[frozenset[Capability]] = frozenset()
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.TUNES_STRATEGY})
    needs_model: ClassVar[bool] = False
    formats: ClassVar[tuple[str, ...]] = ("strategy.json",)

    def check(self, config: RunConfig) -> None:
        """Refuse options that are unknown or cannot be, and a provider's reflection model that cannot be asked.

        Raises:
            UsageError: the message says what may be given, or what is missing.
        """
        from lightning_prompt.plan import plan_of

        reflecting = plan_of(config).asked.reflection_model
        if reflecting is not None and provider_of(reflecting) is not None:
            LiteLLMEngineFactory().create(reflecting, folder=Path(), options={})

    async def optimize(self, run: Run) -> Artifact:
        """Search until the budget is used up, and compare what was found with the agent as it is, on held-out tasks.

        Raises:
            UsageError: there is nothing to tune or to choose by.
            LightningError: rollouts could not be run, or the reflection model not be asked.
        """
        from lightning_prompt.job import optimize

        return await optimize(run)

    def export(self, folder: Path, *, format: str, output: Path) -> Path:
        """Copy the strategy file.

        Raises:
            UsageError: the search has not ended.
        """
        from lightning_prompt.search import STRATEGY

        found = folder / STRATEGY
        if not found.is_file():
            raise UsageError(
                f"run `{folder.name}`: the search has not ended, and nothing is chosen; go on with `--resume`. What has been"
                f" tried lies in {str(folder / 'strategies')!r}"
            )
        target = output / STRATEGY if output.is_dir() else output
        shutil.copyfile(found, target)
        return target
