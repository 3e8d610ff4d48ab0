"""Options: what `--set` may say of verl's keys, and what was said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lightning_core.errors import UsageError
from lightning_core.optimization import OptimizeConfig
from lightning_verl.learning import CRITIC

OWN: Final = {
    "python": "the Python of the verl environment",
    "platform": "`accelerator` (what verl finds) or `cpu`",
    "grading_timeout": "seconds for which a rollout's reward is waited for",
}
"""Our own keys of `--set`; all others are verl's."""
GROUPS: Final = (
    "actor_rollout_ref", "algorithm", "critic", "data", "distillation", "global_profiler", "ray_kwargs", "reward",
    "skip", "trainer", "transfer_queue",
)  # fmt: skip
"""The first parts of verl's keys."""
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_ACTOR: Final = "actor_rollout_ref.actor"
ROLLOUT_NODES: Final = f"{_ROLLOUT}.nnodes"
"""The key for how many machines have devices for vLLM alone."""
ROLLOUT_DEVICES: Final = f"{_ROLLOUT}.n_gpus_per_node"
"""The key for how many such devices each has."""
TAKEN: Final[Mapping[str, str]] = {
    "actor_rollout_ref.model.path": "give the model with `--model`",
    "algorithm.adv_estimator": "give the algorithm with `--algorithm`",
    "algorithm.norm_adv_by_std_in_grpo": "give the algorithm with `--algorithm`: `grpo` divides, `dr_grpo` does not",
    "algorithm.filter_groups.enable": "give it with `--refill`",
    f"{_ACTOR}.loss_agg_mode": "give it with `--aggregation`",
    f"{_ACTOR}.shuffle": "rows are not shuffled: their weights are made for each update",
    f"{_ACTOR}.checkpoint.async_save": "a checkpoint is whole before the next step, so that `--resume` finds it",
    "critic.ppo_mini_batch_size": "the critic has as many updates a step as the actor; give"
    f" `{_ACTOR}.ppo_mini_batch_size`, in tasks",
    f"{_ROLLOUT}.n": "give it with `--group-size`",
    f"{_ROLLOUT}.temperature": "give it with `--temperature`",
    f"{_ROLLOUT}.top_p": "rollouts to learn from are sampled from the whole distribution",
    f"{_ROLLOUT}.top_k": "rollouts to learn from are sampled from the whole distribution",
    f"{_ROLLOUT}.val_kwargs.temperature": "give it with `--val-temperature`",
    f"{_ROLLOUT}.val_kwargs.n": "give it with `--val-repeats`",
    f"{_ROLLOUT}.name": "the gateway speaks with vLLM's server",
    f"{_ROLLOUT}.mode": "the gateway speaks with vLLM's server",
    f"{_ROLLOUT}.calculate_log_probs": "the log-probabilities come with the calls",
    f"{_ROLLOUT}.agent.default_agent_loop": "the agent loop is ours",
    f"{_ROLLOUT}.agent.agent_loop_config_path": "the agent loop is ours",
    f"{_ROLLOUT}.agent.agent_loop_manager_class": "the agent loop is ours",
    "data.train_files": "give the tasks with `--tasks`",
    "data.val_files": "give the tasks with `--val`",
    "data.train_batch_size": "give it with `--batch-size`",
    "data.max_response_length": "give it with `--max-tokens`",
    "data.seed": "give it with `--seed`",
    "data.shuffle": "give it with `--sampler`",
    "trainer.total_training_steps": "give it with `--steps`",
    "trainer.total_epochs": "give the number of steps with `--steps`",
    "trainer.save_freq": "give it with `--save-every`",
    "trainer.test_freq": "give it with `--val-every`",
    "trainer.val_before_train": "it is validated before the first step where `--val` is given",
    "trainer.default_local_dir": "checkpoints lie in the run's folder",
    "trainer.resume_mode": "give `--resume`",
    "trainer.resume_from_path": "give `--resume`",
    "trainer.use_v1": "only verl's V1 trainer has the extension points",
    "trainer.v1.trainer_mode": f"give `--async` for `colocate_async`, and `{ROLLOUT_NODES}` besides for `separate_async`",
    "trainer.v1.separate_async.parameter_sync_step": "new weights serve after each step",
    "trainer.v1.separate_async.hybrid_rollout.enable_switch": "vLLM has the trainer's devices, or its own",
    "actor_rollout_ref.hybrid_engine": f"vLLM has the trainer's devices, or its own with `{ROLLOUT_NODES}`",
    "trainer.v1.sampler.max_off_policy_threshold": "give it with `--max-staleness`",
    "trainer.logger": "set `LIGHTNING_CORE_TRACK`, such as to `wandb`",
    "trainer.device": "give `--set platform=cpu`, else verl finds it",
}
"""Keys of verl's that we set, and what the user gives instead."""
_ALSO: Final[Mapping[str, frozenset[str]]] = {
    "gae": frozenset({"ppo"}),
    "grpo": frozenset({"grpo", "dr_grpo", "gspo", "cispo"}),
    "rloo": frozenset({"rloo"}),
    "reinforce_plus_plus": frozenset({"reinforce_pp"}),
}
"""What a user of verl may say besides `--algorithm`: values of `algorithm.adv_estimator` that are no contradiction."""
_ULYSSES: Final = (
    f"{_ACTOR}.ulysses_sequence_parallel_size",
    f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
)
_LORA_RANKS: Final = ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank")


def check_key(key: str, asked: OptimizeConfig) -> None:
    """Refuse a key that cannot be given.

    Raises:
        UsageError: it is not known, cannot be, or is said by the run already; the message says what may be given.
    """
    bare = key.lstrip("+~")
    if key.startswith("~"):
        raise UsageError(f"option {key!r}: keys of verl's cannot be taken away, only set")
    if bare.partition(".")[0] not in GROUPS or "." not in bare:
        raise UsageError(
            f"option `{key}`: not known; our own are {', '.join(f'`{name}`' for name in OWN)}, and verl's begin with"
            f" {', '.join(f'`{group}.`' for group in GROUPS)}"
        )
    if (
        bare == "algorithm.use_kl_in_reward"
        and asked.options[key].lower() == "true"
        and asked.algorithm not in CRITIC
    ):
        raise UsageError(
            f"option `{key}`: `{asked.algorithm}` compares whole rollouts, and has no reward for each token; take"
            f" `{_ACTOR}.use_kl_loss=true`, or `--algorithm ppo`"
        )
    if bare == "actor_rollout_ref.model.lora.merge" and asked.options[key].lower() != "true":
        raise UsageError(
            f"option `{key}`: expected true but got {asked.options[key]!r}: the gateway's calls name the model, and vLLM"
            " would answer them without the adapter"
        )
    if bare in TAKEN and not same(key, asked):
        raise UsageError(f"option `{key}`: {TAKEN[bare]}")


def same(key: str, asked: OptimizeConfig) -> bool:
    """Whether the user says with verl's key what `--algorithm` says too."""
    return key.lstrip("+") == "algorithm.adv_estimator" and asked.algorithm in _ALSO.get(
        asked.options[key], ()
    )


def number(options: Mapping[str, str], key: str, default: int, *, least: int = 1) -> int:
    """A whole number that was given under a key of verl's, with or without `+`.

    Raises:
        UsageError: what was given is none, or too small.
    """
    given = {name.lstrip("+"): value for name, value in options.items()}
    text = given.get(key, str(default))
    if not text.isdigit() or int(text) < least:
        raise UsageError(
            f"option `{key}`: expected a whole number of {least} or more but got {text!r}"
        )
    return int(text)


def devices(options: Mapping[str, str]) -> int:
    """Devices of each machine."""
    return number(options, "trainer.n_gpus_per_node", 1)


def rollout_devices(options: Mapping[str, str]) -> int:
    """Devices of each machine that are for vLLM alone; 0 where it shares the trainer's."""
    return (
        number(options, ROLLOUT_DEVICES, devices(options))
        if number(options, ROLLOUT_NODES, 0, least=0)
        else 0
    )


def sequence_parallel(options: Mapping[str, str]) -> int:
    """Devices that share one sequence."""
    return max(number(options, key, 1) for key in _ULYSSES)


def trains_lora(options: Mapping[str, str]) -> bool:
    """Whether an adapter is trained in place of all weights."""
    return any(number(options, key, 0, least=0) for key in _LORA_RANKS)


def check_sequence_parallel(options: Mapping[str, str]) -> None:
    """Refuse what only flash-attn can do, where there is none.

    Raises:
        UsageError: devices are to share one sequence.
    """
    if (many := sequence_parallel(options)) > 1:
        raise UsageError(
            f"option `{_ULYSSES[0]}`: expected 1 but got {many}; without flash-attn verl computes other log-probabilities than"
            " vLLM, and says nothing. Install flash-attn (`lightning-core doctor --backend verl` names the wheel)"
        )


def hydra_value(value: object) -> str:
    """A value in the grammar of Hydra's overrides.

    Raises:
        UsageError: a string holds what Hydra would take for an interpolation.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(each)}" for key, each in value.items()) + "}"
    text = str(value)
    if "${" in text:
        raise UsageError(f"{text!r}: holds `${{`, which verl's configuration would replace")
    # A quoted string keeps backslashes, but for those before its quote.
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"
