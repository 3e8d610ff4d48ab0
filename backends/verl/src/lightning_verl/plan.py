"""Plan: what was asked of the backend, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import installed
from lightning_core.runs import RunConfig
from lightning_core.sampling import check_whole_distribution
from lightning_verl.job import ASYNC, SEPARATE, SYNC, Platform
from lightning_verl.learning import CRITIC, ESTIMATORS, Learning
from lightning_verl.options import (
    ROLLOUT_NODES,
    check_key,
    devices,
    number,
    rollout_devices,
    same,
    sequence_parallel,
)

SAMPLERS: Final = ("shuffled", "difficulty")
"""What `--sampler` may begin with."""
ALGORITHMS: Final = tuple(ESTIMATORS)
"""What `--algorithm` may be."""
_MOST: Final = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
_LOOPS: Final = "actor_rollout_ref.rollout.agent.num_workers"
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

    @property
    def mode(self) -> str:
        """verl's trainer."""
        if not self.asked.asynchronous:
            return SYNC
        return SEPARATE if rollout_devices(self.asked.options) else ASYNC


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
        check_key(key, asked)
    plan = Plan(
        asked=asked,
        python=python,
        platform=platform,
        grading_timeout=float(grading),
        learning=Learning.of(
            asked,
            max_tokens=number(options, _MOST, _MOST_TOKENS) * sequence_parallel(options),
        ),
        theirs=tuple(f"{key}={value}" for key, value in options.items() if not same(key, asked)),
    )
    _check_batch(plan, options)
    # Raises what is wrong with it while nothing has started.
    plan.learning.rules(0, installed().credit())
    return plan


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


def _check_asked(config: RunConfig, asked: OptimizeConfig) -> None:
    if config.model is None:
        raise UsageError(
            "backend `verl`: expected a Hugging Face folder or hub id; give it with `--model`"
        )
    model_path(config.model)
    if asked.algorithm not in ALGORITHMS:
        raise UsageError(
            f"algorithm `{asked.algorithm}`: backend `verl` knows {', '.join(f'`{name}`' for name in ALGORITHMS)}"
        )
    if asked.algorithm not in CRITIC and asked.group_size < 2:
        raise UsageError(
            f"group_size: `{asked.algorithm}` compares the rollouts of a task with one another; take 2 or more, such as 8, or"
            " `--algorithm ppo`"
        )
    if asked.sampler.partition(":")[0] not in SAMPLERS:
        raise UsageError(
            f"sampler: backend `verl` takes {' or '.join(f'`{name}`' for name in SAMPLERS)}, which draw before the first step, but"
            f" got {asked.sampler!r}; the backend `local` takes those that hear of rewards"
        )
    if asked.asynchronous and not asked.max_staleness:
        raise UsageError(
            "max_staleness: expected 1 or more with `--async`, as the rollouts that are ahead are one version old"
        )
    if asked.asynchronous and asked.refill:
        raise UsageError("refill: cannot be had with `--async`; leave one of them out")
    if asked.refill and number(asked.options, _LOOPS, 1) > 1:
        raise UsageError(
            f"option `{_LOOPS}`: expected 1 with `--refill`, as several would not see that a task is drawn twice in a step"
        )
    if rollout_devices(asked.options) and not asked.asynchronous:
        raise UsageError(
            f"option `{ROLLOUT_NODES}`: vLLM has devices of its own only with `--async`; without, it and the trainer take turns on"
            " the same ones"
        )
    check_whole_distribution(config.sampling)


def _check_batch(plan: Plan, options: Mapping[str, str]) -> None:
    """Refuse rows that cannot be shared out evenly, which verl would refuse much later."""
    every = devices(options) * number(options, "trainer.nnodes", 1)
    rows = plan.asked.batch_size * plan.asked.group_size
    if rows % every:
        raise UsageError(
            f"batch_size: {plan.asked.batch_size} tasks of {plan.asked.group_size} rollouts are {rows} rollouts a step, which"
            f" {every} devices cannot share evenly; choose `--batch-size` so that the product is a multiple of {every}"
        )
