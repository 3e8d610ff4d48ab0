"""Run as a program: what verl's own loss functions give for the tensors in a folder.

Usage: `python verl_reference.py FOLDER SETTINGS`; reads `case.pt`, writes `verl.pt` there.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

if importlib.util.find_spec("ray") is None:
    sys.modules["ray"] = (
        mock.MagicMock()
    )  # verl's workers need it; it is large, and losses do without

from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.utils.torch_functional import entropy_from_logits
from verl.workers.config import ActorConfig


def main(folder: Path, settings: dict[str, float]) -> None:
    """Compute all of them."""
    case = torch.load(folder / "case.pt", weights_only=True)
    config = ActorConfig(
        strategy="fsdp",
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
        clip_ratio_low=settings["low"],
        clip_ratio_high=settings["high"],
        clip_ratio_c=settings["dual"],
    )
    cispo = ActorConfig(
        strategy="fsdp",
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
        clip_ratio_low=1.0,
        clip_ratio_high=settings["high"],
    )
    losses: dict[str, Any] = {
        "vanilla": (core_algos.compute_policy_loss_vanilla, config),
        "gspo": (core_algos.compute_policy_loss_gspo, config),
        "cispo": (core_algos.compute_policy_loss_cispo, cispo),
        "reinforce": (core_algos.compute_policy_loss_reinforce, config),
    }
    found: dict[str, Any] = {}
    for name, (loss, chosen) in losses.items():
        logprobs = case["logprobs"].clone().requires_grad_()
        value, metrics = loss(
            case["old"],
            logprobs,
            case["advantages"],
            case["mask"],
            loss_agg_mode="token-mean",
            config=chosen,
        )
        value.backward()
        clipped = metrics.get("actor/pg_clipfrac", 0) + metrics.get("actor/pg_clipfrac_lower", 0)
        found[name] = {
            "loss": value.detach(),
            "grad": logprobs.grad,
            "kl": metrics["actor/ppo_kl"],
            "clipped": clipped,
        }
    for kind in ("k1", "k2", "k3"):
        found[kind] = core_algos.kl_penalty(case["logprobs"], case["reference"], kind)
    found["value"], _ = core_algos.compute_value_loss(
        case["values"],
        case["returns"],
        case["old_values"],
        case["mask"],
        cliprange_value=settings["value_clip"],
    )
    logits = torch.stack([case["logprobs"], case["old"], case["returns"]], dim=-1)
    found["entropy"] = entropy_from_logits(logits)
    found["importance"], _ = compute_rollout_correction_weights(
        case["logprobs"] - case["old"],
        case["mask"],
        rollout_is_threshold=settings["importance_cap"],
    )
    torch.save(found, folder / "verl.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
