"""The backend `local`: reinforcement learning and fine-tuning of a policy on one machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from lightning_core.backend import Backend
from lightning_core.capability import Capability
from lightning_core.errors import UsageError
from lightning_core.runs import Artifact, Run, RunConfig


class LocalBackend(Backend):
    """Trains with torch in the run's own process, and hands new weights to the engine after each step."""

    name: ClassVar[str] = "local"
    needs: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.WEIGHTS_IN_PLACE}
    )
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.TRAINS_WEIGHTS})
    formats: ClassVar[tuple[str, ...]] = ("policy.pt", "peft", "hf")

    def check(self, config: RunConfig) -> None:
        """Refuse a model that cannot be trained, an option that is unknown, and a sampling that a trainer cannot
        follow.

        Raises:
            UsageError: the message says what may be given.
        """
        from lightning_local import models
        from lightning_local.train.plan import plan_of

        if config.model is None or not models.accepts(config.model):
            raise UsageError(
                f"backend `{self.name}`: cannot train model {config.model!r}: expected `smollm2`, a Hugging Face folder, or a"
                " hub id `org/name`; give it with `--model`"
            )
        plan_of(config)

    def engine_options(self, config: RunConfig) -> Mapping[str, str]:
        """Log-probabilities of the distribution that was sampled from, since that is what is trained."""
        return {"logprobs": "processed"}

    async def optimize(self, run: Run) -> Artifact:
        """Train for as many steps as the run asks for; resumes where the run has a state.

        Raises:
            UsageError: the model, a LoRA target or a checkpoint cannot be used.
            EngineError: the engine does not take the weights.
        """
        # Read when torch is first imported. Threads that spin while they wait take six times as long as ones that sleep
        # where anything else runs: the engine, the agents, another program.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from lightning_local.train.loop import Loop
        from lightning_local.train.plan import plan_of

        return await Loop(run, plan_of(run.config)).run()

    def export(self, folder: Path, *, format: str, output: Path) -> Path:
        """Write the newest checkpoint as `policy.pt`, as a PEFT adapter folder, or as a Hugging Face folder with the
        adapter merged in.

        Raises:
            UsageError: the run has no checkpoint yet, or trained full weights and so has no adapter.
            StoreError: it cannot be written.
        """
        from lightning_local.train import artifact
        from lightning_local.train.state import read_state

        return artifact.export(read_state(folder).checkpoint_in(folder), format, output)
