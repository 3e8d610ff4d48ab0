"""Configuration: verl's keys from what was asked of the run, and from `--set`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import installed
from lightning_core.runs import RunConfig
from lightning_verl.cpu_keys import cpu_keys
from lightning_verl.job import AGENT_LOOP, TRAINER, Platform
from lightning_verl.learning import CRITIC, ESTIMATORS, LOSSES, Learning

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
CHECKPOINTS: Final = "checkpoints"
"""The folder in the trainer's for verl's checkpoints."""
METRICS: Final = "metrics.jsonl"
"""The file in the trainer's folder to which verl writes the numbers of each step."""
CONSUMED: Final = "consumed.jsonl"
"""The file there to which our trainer writes what each step learns from."""
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_ACTOR: Final = "actor_rollout_ref.actor"
TAKEN: Final[Mapping[str, str]] = {
    "actor_rollout_ref.model.path": "give the model with `--model`",
    "algorithm.adv_estimator": "give the algorithm with `--algorithm`",
    "algorithm.norm_adv_by_std_in_grpo": "give the algorithm with `--algorithm`: `grpo` divides, `dr_grpo` does not",
    "algorithm.filter_groups.enable": "give it with `--refill`",
    f"{_ACTOR}.loss_agg_mode": "give it with `--aggregation`",
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
    "data.shuffle": "tasks are shuffled",
    "trainer.total_training_steps": "give it with `--steps`",
    "trainer.total_epochs": "give the number of steps with `--steps`",
    "trainer.save_freq": "give it with `--save-every`",
    "trainer.test_freq": "give it with `--val-every`",
    "trainer.val_before_train": "it is validated before the first step where `--val` is given",
    "trainer.default_local_dir": "checkpoints lie in the run's folder",
    "trainer.resume_mode": "give `--resume`",
    "trainer.resume_from_path": "give `--resume`",
    "trainer.use_v1": "only verl's V1 trainer has the extension points",
    "trainer.v1.trainer_mode": "give `--async` for `colocate_async`; `separate_async` is not supported",
    "trainer.v1.sampler.max_off_policy_threshold": "give it with `--max-staleness`",
    "trainer.logger": "set `LIGHTNING_CORE_TRACK`, such as to `wandb`",
    "trainer.device": "give `--set platform=cpu`, else verl finds it",
}
"""Keys of verl's that we set, and what the user gives instead."""
ALGORITHMS: Final = tuple(ESTIMATORS)
"""What `--algorithm` may be."""
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
_MOST_TOKENS: Final = 16384
"""verl's own `ppo_max_token_len_per_gpu`."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, checked."""

    asked: OptimizeConfig
    """What was asked of any backend."""
    python: str | None
    """The option `python`."""
    platform: Platform
    """The option `platform`."""
    grading_timeout: float
    """The option `grading_timeout`."""
    learning: Learning
    """What is learnt, and how."""
    theirs: tuple[str, ...]
    """Hydra overrides that the user gave."""


def plan_of(config: RunConfig) -> Plan:
    """The plan of a run.

    Raises:
        UsageError: an option is unknown, or contradicts another; the message says what may be given.
    """
    asked = config.optimize
    if asked is None:
        raise UsageError("backend `verl`: expected what is to be optimised")
    _check_asked(config, asked)
    options = dict(asked.options)
    python = options.pop("python", None)
    try:
        platform = Platform(options.pop("platform", Platform.ACCELERATOR))
    except ValueError as error:
        raise UsageError(
            f"option `platform`: expected {' or '.join(f'`{each}`' for each in Platform)} but got"
            f" {asked.options['platform']!r}"
        ) from error
    grading = options.pop("grading_timeout", "600")
    if not re.fullmatch(r"\d+(\.\d+)?", grading) or float(grading) <= 0:
        raise UsageError(
            f"option `grading_timeout`: expected a positive number of seconds but got {grading!r}"
        )
    for key in options:
        _check_key(key, asked)
    plan = Plan(
        asked=asked,
        python=python,
        platform=platform,
        grading_timeout=float(grading),
        learning=Learning.of(
            asked,
            max_tokens=_number(options, f"{_ACTOR}.ppo_max_token_len_per_gpu", _MOST_TOKENS)
            * _sequence_parallel(options),
        ),
        theirs=tuple(f"{key}={value}" for key, value in options.items() if not _same(key, asked)),
    )
    _check_batch(plan, options)
    # Raises what is wrong with it while nothing has started.
    plan.learning.rules(0, installed().credit())
    return plan


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
        "data.shuffle": True,
        "data.seed": asked.seed,
        "data.validation_shuffle": False,
        "actor_rollout_ref.model.path": model_path(config.model or ""),
        # What counts the same is in the advantages.
        f"{_ACTOR}.loss_agg_mode": "token-mean",
        f"{_ACTOR}.policy_loss.loss_mode": LOSSES.get(asked.algorithm, "vanilla"),
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
        keys["trainer.v1.colocate_async.num_warmup_batches"] = 1
        keys["trainer.v1.sampler.max_off_policy_threshold"] = asked.max_staleness + 1
        keys["trainer.v1.sampler.max_off_policy_strategy"] = "wait"
    # Ray's processes may run where our environment is not.
    keys["ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH"] = str(folder / METRICS)
    if own_ray(plan):
        # A Ray of our own, whatever others run on this machine. vLLM listens where Ray says that this machine is, and asks for no key.
        keys["ray_kwargs.ray_init.address"] = "local"
        keys["ray_kwargs.ray_init._node_ip_address"] = "127.0.0.1"
        keys["ray_kwargs.ray_init.include_dashboard"] = False
    if _trains_lora(asked.options):
        # The gateway's calls name the model, so vLLM would answer without an adapter beside it, and say nothing.
        keys["actor_rollout_ref.model.lora.merge"] = True
    if not flash or plan.platform is Platform.CPU:
        _check_sequence_parallel(asked.options)
    if not flash:
        for model in ("actor_rollout_ref.model", "critic.model"):
            keys[f"{model}.override_config.attn_implementation"] = "sdpa"
    if plan.platform is Platform.CPU:
        keys |= cpu_keys(_devices(asked.options))
    return tuple(f"++{key}={hydra_value(value)}" for key, value in keys.items()) + plan.theirs


def own_ray(plan: Plan) -> bool:
    """Whether the trainer starts a Ray of its own; else it joins the one that the user named."""
    address = "ray_kwargs.ray_init.address="
    return not any(each.lstrip("+").startswith(address) for each in plan.theirs)


def model_path(model: str) -> str:
    """The model as verl takes it: a folder's absolute path, or a hub id.

    Raises:
        UsageError: it is neither.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UsageError(
                f"model {model!r}: has no `config.json`; expected a Hugging Face folder or `ORGANISATION/NAME`"
            )
        return str(folder.resolve())
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        raise UsageError(
            f"model {model!r}: backend `verl` takes a Hugging Face folder or `ORGANISATION/NAME`, and there is no such folder"
        )
    return model


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


def _check_asked(config: RunConfig, asked: OptimizeConfig) -> None:
    if config.model is None:
        raise UsageError(
            "backend `verl`: expected a Hugging Face folder or hub id; give it with `--model`"
        )
    model_path(config.model)
    if asked.algorithm not in ALGORITHMS:
        raise UsageError(
            f"algorithm `{asked.algorithm}`: backend `verl` knows {', '.join(f'`{name}`' for name in ALGORITHMS)} yet"
        )
    if asked.algorithm not in CRITIC and asked.group_size < 2:
        raise UsageError(
            f"group_size: `{asked.algorithm}` compares the rollouts of a task with one another; take 2 or more, such as 8, or"
            " `--algorithm ppo`"
        )
    if asked.sampler != "shuffled":
        raise UsageError(
            f"sampler: backend `verl` takes only 'shuffled', but got {asked.sampler!r}; the backend `local` takes others"
        )
    if asked.asynchronous and asked.refill:
        raise UsageError("refill: cannot be had with `--async`; leave one of them out")
    limits = {name: getattr(config.sampling, name) for name in ("top_p", "top_k")}
    given_limits = [f"{name}={value!r}" for name, value in limits.items() if value is not None]
    if given_limits:
        raise UsageError(
            f"sampling: {', '.join(given_limits)} leaves tokens out that the trainer counts in; rollouts to learn from are"
            " sampled from the whole distribution"
        )


def _check_key(key: str, asked: OptimizeConfig) -> None:
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
    if bare in TAKEN and not _same(key, asked):
        raise UsageError(f"option `{key}`: {TAKEN[bare]}")


def _same(key: str, asked: OptimizeConfig) -> bool:
    """Whether the user says with verl's key what `--algorithm` says too."""
    return key.lstrip("+") == "algorithm.adv_estimator" and asked.algorithm in _ALSO.get(
        asked.options[key], ()
    )


def _number(options: Mapping[str, str], key: str, default: int, *, least: int = 1) -> int:
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


def _devices(options: Mapping[str, str]) -> int:
    """Devices of each machine."""
    return _number(options, "trainer.n_gpus_per_node", 1)


def _sequence_parallel(options: Mapping[str, str]) -> int:
    """Devices that share one sequence."""
    return max(_number(options, key, 1) for key in _ULYSSES)


def _trains_lora(options: Mapping[str, str]) -> bool:
    return any(_number(options, key, 0, least=0) for key in _LORA_RANKS)


def _check_sequence_parallel(options: Mapping[str, str]) -> None:
    if (many := _sequence_parallel(options)) > 1:
        raise UsageError(
            f"option `{_ULYSSES[0]}`: expected 1 but got {many}; without flash-attn verl computes other log-probabilities than"
            " vLLM, and says nothing. Install flash-attn (`lightning-core doctor --backend verl` names the wheel)"
        )


def _check_batch(plan: Plan, options: Mapping[str, str]) -> None:
    """Refuse rows that cannot be shared out evenly, which verl would refuse much later."""
    devices = _devices(options) * _number(options, "trainer.nnodes", 1)
    rows = plan.asked.batch_size * plan.asked.group_size
    if rows % devices:
        raise UsageError(
            f"batch_size: {plan.asked.batch_size} tasks of {plan.asked.group_size} rollouts are {rows} rollouts a step, which"
            f" {devices} devices cannot share evenly; choose `--batch-size` so that the product is a multiple of {devices}"
        )
