"""Configuration: verl's keys from what was asked of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lightning_core.runs import RunConfig
from lightning_verl.cpu_keys import CPU_ENVIRONMENT, cpu_keys
from lightning_verl.job import AGENT_LOOP, CPU_WEIGHTS, SEPARATE, TRAINER, Platform
from lightning_verl.learning import CLIP, CLIPS, CRITIC, LOSSES
from lightning_verl.options import (
    ROLLOUT_DEVICES,
    check_sequence_parallel,
    devices,
    hydra_value,
    rollout_devices,
    trains_lora,
)
from lightning_verl.plan import Plan, model_path

CHECKPOINTS: Final = "checkpoints"
"""The folder in the trainer's for verl's checkpoints."""
METRICS: Final = "metrics.jsonl"
"""The file in the trainer's folder to which verl writes the numbers of each step."""
CONSUMED: Final = "consumed.jsonl"
"""The file there to which our trainer writes what each step learns from."""
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_ACTOR: Final = "actor_rollout_ref.actor"
_WEIGHTS: Final = f"{_ROLLOUT}.checkpoint_engine"
_RAY_ENV: Final = "ray_kwargs.ray_init.runtime_env.env_vars"
_RAY_RESOURCES: Final = tuple(
    f"ray_kwargs.ray_init.{name}" for name in ("num_cpus", "num_gpus", "object_store_memory")
)


def overrides(
    plan: Plan,
    config: RunConfig,
    folder: Path,
    *,
    train: Path,
    val: Path,
    validates: bool,
    resumes: bool = False,
    flash: bool = True,
) -> tuple[str, ...]:
    """Hydra overrides of verl's configuration, the user's last.

    Raises:
        UsageError: the model, or something that needs flash-attn, cannot be had.

    Args:
        plan: what was asked.
        config: the run's configuration.
        folder: where the trainer may write, absolute.
        train: the file with a row for each training task.
        val: the same for validation; any such file where nothing is validated.
        validates: whether there are validation tasks.
        resumes: whether verl goes on from a checkpoint, and so is past the validation before the first step.
        flash: whether the verl environment has flash-attn; without it torch's own attention is used.
    """
    asked = plan.asked
    keys: dict[str, Any] = {
        # The advantages are ours; verl is told whether there is a value network.
        "algorithm.adv_estimator": "gae" if asked.algorithm in CRITIC else "grpo",
        "data.train_files": str(train),
        "data.val_files": str(val),
        "data.train_batch_size": asked.batch_size,
        "data.max_response_length": config.sampling.max_tokens,
        # Rows hold the ids of tasks. How long prompts are shows when the agent makes them.
        "data.filter_overlong_prompts": False,
        "data.dataloader_num_workers": 0,
        # In the order in which our sampler has drawn them.
        "data.shuffle": False,
        "data.validation_shuffle": False,
        "actor_rollout_ref.model.path": model_path(config.model or ""),
        # What counts the same is in the advantages.
        f"{_ACTOR}.loss_agg_mode": "token-mean",
        f"{_ACTOR}.policy_loss.loss_mode": LOSSES.get(asked.algorithm, "vanilla"),
        f"{_ACTOR}.clip_ratio_low": CLIPS.get(asked.algorithm, CLIP)[0],
        f"{_ACTOR}.clip_ratio_high": CLIPS.get(asked.algorithm, CLIP)[1],
        f"{_ACTOR}.ppo_mini_batch_size": asked.batch_size,
        # Micro-batches by tokens: how many rows a step has depends on the samples that the rollouts made.
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ACTOR}.strategy": "fsdp2",
        f"{_ACTOR}.fsdp_config.seed": asked.seed,
        f"{_ROLLOUT}.name": "vllm",
        f"{_ROLLOUT}.mode": "async",
        f"{_ROLLOUT}.n": asked.group_size,
        f"{_ROLLOUT}.seed": asked.seed,
        f"{_ROLLOUT}.temperature": config.sampling.temperature,
        f"{_ROLLOUT}.val_kwargs.temperature": config.validation.temperature,
        f"{_ROLLOUT}.val_kwargs.do_sample": config.validation.temperature > 0,
        f"{_ROLLOUT}.val_kwargs.n": asked.val_repeats,
        f"{_ROLLOUT}.calculate_log_probs": True,
        f"{_ROLLOUT}.tensor_model_parallel_size": 1,
        f"{_ROLLOUT}.agent.num_workers": 1,
        f"{_ROLLOUT}.agent.default_agent_loop": AGENT_LOOP,
        f"{_ROLLOUT}.agent.agent_loop_config_path": str(folder / "agent_loop.yaml"),
        # Rewards come with the rollouts; verl's own reward workers stay idle.
        "reward.num_workers": 1,
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": TRAINER,
        "trainer.v1.sampler.custom_sampler.path": "pkg://lightning_verl.trainer.sampler",
        "trainer.v1.sampler.custom_sampler.name": "AsyncSampler"
        if asked.asynchronous
        else "Sampler",
        "trainer.v1.sampler.sampler_kwargs.refill": asked.refill,
        "trainer.v1.sampler.sampler_kwargs.consumed": str(folder / CONSUMED),
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.total_training_steps": asked.steps,
        "trainer.total_epochs": asked.steps + 1,
        "trainer.save_freq": asked.save_every,
        "trainer.test_freq": (asked.val_every or asked.steps) if validates else -1,
        "trainer.val_before_train": validates and not resumes,
        "trainer.logger": ["file"],
        "trainer.project_name": "lightning-core",
        "trainer.experiment_name": config.name,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": str(folder / CHECKPOINTS),
        "trainer.max_actor_ckpt_to_keep": 2,
        "trainer.max_critic_ckpt_to_keep": 2,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }
    if asked.algorithm in CRITIC:
        keys["critic.model.path"] = keys["actor_rollout_ref.model.path"]
        keys["critic.strategy"] = "fsdp2"
    if asked.refill:
        # Groups are replaced one by one.
        keys["data.gen_batch_size"] = 1
    if asked.asynchronous:
        # One step's rollouts are ahead. What is too old is waited for, not thrown away.
        keys[f"trainer.v1.{plan.mode}.num_warmup_batches"] = 1
        keys["trainer.v1.sampler.max_off_policy_threshold"] = asked.max_staleness + 1
        keys["trainer.v1.sampler.max_off_policy_strategy"] = "wait"
        # The trainer starts from newer weights than those that sampled.
        keys["algorithm.rollout_correction.rollout_is"] = "token"
    if plan.mode == SEPARATE:
        keys["actor_rollout_ref.hybrid_engine"] = False
        keys[f"trainer.v1.{SEPARATE}.parameter_sync_step"] = 1
        keys[ROLLOUT_DEVICES] = rollout_devices(asked.options)
        if plan.platform is Platform.CPU:
            keys[f"{_WEIGHTS}.backend"] = CPU_WEIGHTS
            keys[f"{_WEIGHTS}.custom_backend_module"] = "lightning_verl.trainer.weights_cpu"
        else:
            keys[f"{_WEIGHTS}.backend"] = "nccl"
    # Ray's processes may run where our environment is not.
    keys[f"{_RAY_ENV}.VERL_FILE_LOGGER_PATH"] = str(folder / METRICS)
    if own_ray(plan):
        # A Ray of our own, whatever others run on this machine. vLLM listens where Ray says that this machine is, and asks for no key.
        keys["ray_kwargs.ray_init.address"] = "local"
        keys["ray_kwargs.ray_init._node_ip_address"] = "127.0.0.1"
        keys["ray_kwargs.ray_init.include_dashboard"] = False
    if trains_lora(asked.options):
        # The gateway's calls name the model, so vLLM would answer without an adapter beside it, and say nothing.
        keys["actor_rollout_ref.model.lora.merge"] = True
    if not flash or plan.platform is Platform.CPU:
        check_sequence_parallel(asked.options)
    if not flash:
        for model in ("actor_rollout_ref.model", "critic.model"):
            keys[f"{model}.override_config.attn_implementation"] = "sdpa"
    if plan.platform is Platform.CPU:
        keys |= cpu_keys(devices(asked.options), rollout_devices(asked.options))
        # The processes of a Ray that is joined have its environment, not ours.
        keys |= {f"{_RAY_ENV}.{name}": value for name, value in CPU_ENVIRONMENT.items()}
    if not own_ray(plan):
        # A Ray that is joined has what it has, and refuses to be told.
        keys = {key: value for key, value in keys.items() if not key.startswith(_RAY_RESOURCES)}
    return tuple(f"++{key}={hydra_value(value)}" for key, value in keys.items()) + plan.theirs


def own_ray(plan: Plan) -> bool:
    """Whether the trainer starts a Ray of its own; else it joins the one that the user named."""
    address = "ray_kwargs.ray_init.address="
    return not any(each.lstrip("+").startswith(address) for each in plan.theirs)
