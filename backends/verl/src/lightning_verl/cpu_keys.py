"""verl's keys on the platform `cpu`: what it needs to run on processors, and what it must not try there."""

from __future__ import annotations

from typing import Any, Final

from lightning_verl.job import CPU_PLATFORM

_ROLLOUT: Final = "actor_rollout_ref.rollout"
_ACTOR: Final = "actor_rollout_ref.actor"
_REF: Final = "actor_rollout_ref.ref"
_MODELS: Final = ("actor_rollout_ref.model", "critic.model")
_ENGINES: Final = (f"{_ACTOR}.fsdp_config", f"{_REF}.fsdp_config", "critic.fsdp")

CPU_ENVIRONMENT: Final = {
    "VERL_PLATFORM": CPU_PLATFORM,
    # verl registers its FSDP engine for two kinds of devices, of which a processor is none.
    "VERL_ENGINE_DEVICE": "cuda",
}
"""What each of verl's processes has to have in its environment."""


def cpu_keys(devices: int = 1, rollout_devices: int = 0) -> dict[str, Any]:
    """The keys, which go before the user's own.

    Args:
        devices: workers on this machine, `trainer.n_gpus_per_node`. Each has a replica of vLLM beside it.
        rollout_devices: replicas that have devices of their own instead.
    """
    keys: dict[str, Any] = {
        "trainer.device": "cpu",
        # verl counts accelerators. Ray takes its word for those that are not there.
        "ray_kwargs.ray_init.num_gpus": devices + rollout_devices,
        # With as few as there are, Ray waits for ever to place verl's many small actors.
        "ray_kwargs.ray_init.num_cpus": 64,
        "ray_kwargs.ray_init.object_store_memory": 500_000_000,
        f"{_ACTOR}.use_torch_compile": False,
        f"{_ROLLOUT}.dtype": "float32",
        f"{_ROLLOUT}.load_format": "auto",
        f"{_ROLLOUT}.enforce_eager": True,
        f"{_ROLLOUT}.enable_sleep_mode": False,
        f"{_ROLLOUT}.free_cache_engine": False,
        f"{_ROLLOUT}.max_num_seqs": 16,
        f"{_ROLLOUT}.engine_kwargs.vllm.worker_extension_cls": "lightning_verl.trainer.vllm_cpu.CPUWorkerExtension",
    }
    for model in _MODELS:
        keys |= {
            f"{model}.use_remove_padding": False,
            f"{model}.enable_gradient_checkpointing": False,
            f"{model}.override_config.attn_implementation": "sdpa",
        }
    for engine in _ENGINES:
        keys |= {
            f"{engine}.use_torch_compile": False,
            f"{engine}.model_dtype": "fp32",
            f"{engine}.mixed_precision.param_dtype": "fp32",
            f"{engine}.mixed_precision.reduce_dtype": "fp32",
        }
    if devices + rollout_devices > 1:
        # vLLM binds a replica to all processors but one; replicas would share those few, and leave the others idle.
        keys["ray_kwargs.ray_init.runtime_env.env_vars.VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    return keys
