"""Plan: what of a run's configuration the trainer and the loop need, checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.learn import GroupBy, LearningRules
from lightning_core.learn.advantage import ALGORITHMS
from lightning_core.learn.aggregation import Aggregation
from lightning_core.learn.credit import CreditRule, parse_credit
from lightning_core.learn.rules import SampleRules
from lightning_core.learn.samplers import TaskSampler, create_sampler
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import installed
from lightning_core.runs import RunConfig
from lightning_core.sampling import check_whole_distribution
from lightning_core.task import Task
from lightning_local.train.options import LocalOptions
from lightning_local.train.sft import Conversation, read_conversations

_COMPARES: Final = frozenset({"grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"})


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done."""

    model: str
    """The model that is trained."""
    config: OptimizeConfig
    """What was asked of any backend."""
    options: LocalOptions
    """What was asked of this one."""
    credit: CreditRule
    """Which reward is put down to which call."""

    @property
    def rereads(self) -> bool:
        """Whether rewards may come after a rollout has been graded."""
        return self.config.credit != "final"

    def rules(self, version: int) -> LearningRules:
        """How a step of policy `version` is made."""
        config = self.config
        return LearningRules(
            samples=SampleRules(
                train_agents=config.train_agents,
                allow_retokenized=config.allow_retokenized,
                oldest_version=version - config.max_staleness,
            ),
            credit=self.credit,
            estimator=ALGORITHMS[self.options.algorithm],
            group_by=GroupBy(config.group_by),
            aggregation=Aggregation(config.aggregation),
            drop_equal=bool(config.refill),
            version=version,
        )

    def conversations(self) -> dict[str, Conversation]:
        """The conversations to learn from in place of rollouts, by a name; empty where there are none.

        Raises:
            UsageError: the file cannot be read.
        """
        if not self.options.conversations:
            return {}
        found = read_conversations(Path(self.options.conversations))
        return {f"conversation-{number}": each for number, each in enumerate(found, start=1)}

    def sampler(self, tasks: Sequence[Task]) -> TaskSampler:
        """What draws the tasks of each step."""
        config = self.config
        return create_sampler(config.sampler, tasks, config.seed, installed().samplers())


def plan_of(config: RunConfig) -> Plan:
    """The plan of a run.

    Raises:
        UsageError: an algorithm, an option or a combination of them cannot be.
    """
    asked = config.optimize
    if asked is None or config.model is None:
        raise UsageError("backend `local`: expected a model and what is to be optimised")
    for key in ("algorithm", "seed"):
        if key in asked.options:
            raise UsageError(f"option `{key}`: give it as `--{key}`, not with `--set`")
    if asked.algorithm not in ALGORITHMS:
        known = ", ".join(f"`{name}`" for name in ALGORITHMS)
        raise UsageError(f"algorithm `{asked.algorithm}`: backend `local` knows {known}")
    options = LocalOptions.parse(
        {**asked.options, "algorithm": asked.algorithm, "seed": str(asked.seed)}
    )
    if options.conversations and asked.algorithm != "sft":
        raise UsageError("option `conversations`: only `--algorithm sft` learns from conversations")
    if ALGORITHMS[asked.algorithm] in _COMPARES and asked.group_size < 2:
        raise UsageError(
            f"group_size: `{asked.algorithm}` compares the rollouts of a task with one another, so a group of one says"
            " nothing; take 2 or more, such as 8, or `--algorithm ppo`"
        )
    check_whole_distribution(config.sampling)
    credit = parse_credit(asked.credit, installed().credit())
    plan = Plan(model=config.model, config=asked, options=options, credit=credit)
    # These raise what is wrong with them while nothing has started.
    plan.rules(0)
    plan.conversations()
    return plan
