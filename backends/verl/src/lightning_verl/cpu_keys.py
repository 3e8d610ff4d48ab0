"""verl's keys on the platform `cpu`: what it needs to run on processors, and what it must not try there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ROLLOUT: Final = "actor_rollout_ref.rollout"
_ACTOR: Final = "actor_rollout_ref.actor"
CPU_KEYS: Final[Mapping[str, Any]] = {
    "trainer.device": "cpu",
    # verl counts accelerators. Ray takes its word for one that is not there.
    "ray_kwargs.ray_init.num_gpus": 1,
    # With as few as there are, Ray waits for ever to place verl's many small actors.
    "ray_kwargs.ray_init.num_cpus": 64,
    "ray_kwargs.ray_init.object_store_memory": 500_000_000,
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    f"{_ACTOR}.use_torch_compile": False,
    f"{_ACTOR}.fsdp_config.use_torch_compile": False,
    f"{_ACTOR}.fsdp_config.model_dtype": "fp32",
    f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
    f"{_ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "fp32",
    f"{_ROLLOUT}.dtype": "float32",
    f"{_ROLLOUT}.load_format": "auto",
    f"{_ROLLOUT}.enforce_eager": True,
    f"{_ROLLOUT}.enable_sleep_mode": False,
    f"{_ROLLOUT}.free_cache_engine": False,
    f"{_ROLLOUT}.max_num_seqs": 16,
    f"{_ROLLOUT}.engine_kwargs.vllm.worker_extension_cls": "lightning_verl.trainer.vllm_cpu.CPUWorkerExtension",
}
"""They go before the user's own."""
