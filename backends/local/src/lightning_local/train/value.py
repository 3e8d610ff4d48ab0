"""ValueNet: what PPO expects of a state.

A copy of the model's decoder with a linear head. Where the policy trains an adapter, so does the copy: its frozen
weights are the policy's own tensors, and only the adapter and the head take memory. With full weights it is a whole
second model. It has its own optimiser, and nothing that it learns reaches the policy's weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_core.errors import UsageError
from lightning_local.train import checkpoint
from lightning_local.train.lora import add_lora
from lightning_local.train.options import LocalOptions
from lightning_local.train.policy import Policy, checkpoint_layers, hidden_states
from lightning_local.train.rows import Pass


class ValueNet(torch.nn.Module):
    """Expects the sum of rewards that follows, before each target of a pass."""

    def __init__(self, policy: Policy, options: LocalOptions) -> None:
        """Build it on the policy's twin decoder; at first it expects 0 everywhere.

        Raises:
            UsageError: a LoRA target that does not exist.
        """
        super().__init__()
        decoder: Any = policy.twin
        self.decoder = decoder
        if policy.lora:
            add_lora(decoder, options, seed=options.seed + 1)
        else:
            decoder.requires_grad_(True)
        self.head = torch.nn.Linear(policy.hidden, 1, device=policy.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        if options.gradient_checkpointing:
            checkpoint_layers(self.decoder)

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """The parameters that are trained."""
        return [each for each in self.parameters() if each.requires_grad]

    def forward(self, micro: Pass) -> Tensor:
        """Value before each target, shape [S, N]."""
        states = hidden_states(self.decoder, micro).float()
        values: Tensor = self.head(states)[:, 0][micro.slots]
        return values

    def trained_state(self) -> dict[str, Tensor]:
        """The trained weights by name, on the CPU."""
        return {
            name: each.detach().cpu().clone()
            for name, each in self.named_parameters()
            if each.requires_grad
        }

    def read(self, path: Path) -> None:
        """Put weights in place that a checkpoint holds.

        Raises:
            UsageError: they are of another value network, or cannot be read.
        """
        state = checkpoint.read_tensors(path).get("value_state_dict", {})
        own = {name: each for name, each in self.named_parameters() if each.requires_grad}
        for name in sorted(own.keys() | state.keys()):
            ours, theirs = (tuple(d[name].shape) if name in d else None for d in (own, state))
            if ours != theirs:
                raise UsageError(
                    f"value network {str(path)!r} is another's: `{name}` has shape {theirs}, expected {ours}"
                )
        with torch.no_grad():
            for name, each in own.items():
                each.copy_(state[name])
