"""Trainer: samples in, a better policy out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from lightning_core.errors import UsageError
from lightning_core.learn.sample import Sample
from lightning_local.train import batch, checkpoint
from lightning_local.train.batch import Item
from lightning_local.train.options import LocalOptions
from lightning_local.train.policy import Policy
from lightning_local.train.report import UpdateReport
from lightning_local.train.sft import Conversation, to_samples
from lightning_local.train.step import Step
from lightning_local.train.value import ValueNet


class Trainer:
    """Trains one model. It belongs to one thread.

    Everything random in a step follows from the seed and the number of steps before it.
    """

    def __init__(self, model: str, options: LocalOptions, *, temperature: float) -> None:
        """Load the model and make it ready.

        Args:
            model: `smollm2`, a Hugging Face folder or a hub id.
            options: how to train.
            temperature: what the policy is sampled with.

        Raises:
            UsageError: there is no such model, device or LoRA target, or the temperature is not above 0.
        """
        if options.threads:
            torch.set_num_threads(options.threads)
        self.options = options
        self.policy = Policy(model, options, temperature=temperature)
        self.optimizer = self._adamw(self.policy.parameters, options.learning_rate)
        self.value: ValueNet | None = None
        self.value_optimizer: torch.optim.Optimizer | None = None
        if options.algorithm == "ppo":
            self.value = ValueNet(self.policy, options)
            self.value_optimizer = self._adamw(self.value.trained, options.value_learning_rate)
        self.updates = 0
        """Steps so far: calls of `update` or `fit`."""
        self.optimizer_steps = 0
        """Optimiser steps so far."""
        self.version = 0
        """The policy version that the last step began from."""

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The policy's optimiser, then the value network's where there is one."""
        return [each for each in (self.optimizer, self.value_optimizer) if each is not None]

    def update(self, samples: Sequence[Sample], *, version: int) -> UpdateReport:
        """One step on samples with advantages, or with credits for `ppo`; for `sft`, the same as `fit`.

        Args:
            samples: the step's, weighted.
            version: the policy version that is trained, which staleness is counted from.

        Raises:
            UsageError: a sample is not consistent, lacks its advantage, or none has a weight.
        """
        self.version = version
        if self.options.algorithm == "sft":
            return self.fit(samples)
        items = batch.read(
            samples, vocabulary=self.policy.vocabulary, by_value=self.value is not None
        )
        return self._run(items, supervised=False)

    def fit(self, examples: Sequence[Sample | Conversation]) -> UpdateReport:
        """One supervised step: raise the likelihood of the trained tokens, each of which counts the same.

        Args:
            examples: samples, such as the best traces', whose advantages do not matter; or conversations, of which the
                assistant's turns are learnt.

        Raises:
            UsageError: an example is not consistent, or the model's template cannot render it.
        """
        samples: list[Sample] = []
        for example in examples:
            if isinstance(example, Sample):
                samples.append(example)
            else:
                samples.extend(to_samples(example, self.policy.tokenizer))
        items = batch.read(samples, vocabulary=self.policy.vocabulary, supervised=True)
        return self._run(items, supervised=True)

    def weights(self, folder: Path) -> None:
        """Write what an engine loads: a PEFT adapter folder with LoRA, else a Hugging Face folder. Whole or not at all.

        Raises:
            StoreError: it cannot be written.
        """
        with checkpoint.whole_folder(folder) as aside:
            self.policy.write(aside)

    def save(self, folder: Path) -> None:
        """Write all that a later run needs to take the same next step. Whole or not at all.

        Raises:
            StoreError: it cannot be written; what was there before is unchanged.
        """
        with checkpoint.whole_folder(folder) as aside:
            self.policy.write(aside / checkpoint.WEIGHTS)
            states: dict[str, Any] = {
                "policy": self.optimizer.state_dict(),
                "torch_rng": torch.get_rng_state(),
            }
            if torch.cuda.is_available():
                states["cuda_rng"] = torch.cuda.get_rng_state_all()
            if self.value is not None and self.value_optimizer is not None:
                states["value"] = self.value_optimizer.state_dict()
                settings = {"base_model": self.policy.base_model, **self._options_shown()}
                torch.save(
                    {"value_state_dict": self.value.trained_state(), "training_config": settings},
                    aside / checkpoint.VALUE,
                )
            torch.save(states, aside / checkpoint.OPTIMIZER)
            (aside / checkpoint.STATE).write_bytes(self._state().to_json())

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            UsageError: there is no checkpoint, it is of another base model or LoRA shape, or a part of it is missing.
            FormatError: it cannot be read.
        """
        there = checkpoint.newest(folder)
        state = checkpoint.read_state(there)
        self._check(state, there)
        states = checkpoint.read_tensors(there / checkpoint.OPTIMIZER, device=self.policy.device)
        if self.value is not None and self.value_optimizer is not None:
            if "value" not in states:
                raise UsageError(
                    f"checkpoint {str(there)!r} holds no value network, which `algorithm=ppo` needs; go on with the"
                    " algorithm that it was trained with, or begin a new run"
                )
            self.value.read(there / checkpoint.VALUE)
            self.value_optimizer.load_state_dict(states["value"])
        self.policy.read(there / checkpoint.WEIGHTS)
        self.optimizer.load_state_dict(states["policy"])
        torch.set_rng_state(states["torch_rng"].cpu())
        if "cuda_rng" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([each.cpu() for each in states["cuda_rng"]])
        self.updates = state.updates
        self.optimizer_steps = state.optimizer_steps
        self.version = state.version

    # --- one step ---

    def _run(self, items: list[Item], *, supervised: bool) -> UpdateReport:
        started = time.monotonic()
        step = Step(self, items, supervised=supervised)
        if items:
            step.run()
        self.updates += 1
        seconds = time.monotonic() - started
        return step.report(seconds, self.version)

    def _adamw(
        self, parameters: list[torch.nn.Parameter], learning_rate: float
    ) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters,
            lr=learning_rate,
            betas=self.options.betas,
            eps=self.options.eps,
            weight_decay=self.options.weight_decay,
            fused=self.policy.device.partition(":")[0] in ("cpu", "cuda"),
        )

    def _options_shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(self.options)
        return shown

    def _state(self) -> checkpoint.CheckpointState:
        return checkpoint.CheckpointState(
            base_model=self.policy.base_model,
            fingerprint=self.policy.fingerprint,
            lora=self._lora(),
            temperature=self.policy.temperature,
            options=self._options_shown(),
            updates=self.updates,
            optimizer_steps=self.optimizer_steps,
            version=self.version,
        )

    def _lora(self) -> checkpoint.Lora | None:
        if not self.policy.lora:
            return None
        options = self.options
        return checkpoint.Lora(
            rank=options.lora_rank,
            alpha=options.lora_alpha,
            targets=tuple(sorted(options.lora_targets)),
        )

    def _check(self, state: checkpoint.CheckpointState, folder: Path) -> None:
        where = f"checkpoint {str(folder)!r}"
        if state.fingerprint != self.policy.fingerprint:
            raise UsageError(
                f"{where} is of base model {state.base_model!r}, not of {self.policy.base_model!r} as it is now;"
                " the weights that training began from differ"
            )
        if state.lora != self._lora():
            raise UsageError(
                f"{where} was trained with {_shape(state.lora)}, but now it is {_shape(self._lora())};"
                " use the same `lora_rank`, `lora_alpha` and `lora_targets`"
            )


def _shape(lora: checkpoint.Lora | None) -> str:
    if lora is None:
        return "full weights (`lora_rank=0`)"
    return f"`lora_rank={lora.rank}`, `lora_alpha={lora.alpha}`, `lora_targets={','.join(lora.targets)}`"
