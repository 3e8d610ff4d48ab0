"""OptimizeConfig: what an optimisation was asked to do, whatever the backend."""

from __future__ import annotations

import msgspec

from lightning_core.records import Record


class OptimizeConfig(Record, frozen=True, kw_only=True, omit_defaults=False):
    """What an optimisation was asked to do; `optimize` in `runs/NAME/run.json`."""

    backend: str
    """The backend's name."""
    algorithm: str = "grpo"
    """The algorithm, by the backend's name for it."""
    steps: int = 20
    """Steps in all; a step runs rollouts, learns from them once, and publishes what came of it."""
    batch_size: int = 6
    """Tasks in each step."""
    group_size: int = 8
    """Rollouts of each task in a step; they form a group."""
    train_agents: str | None = None
    """A regular expression over the whole label of an agent or node: whose calls are learnt from; None is all."""
    credit: str = "final"
    """The credit rule, or a mixture of rules."""
    group_by: str = "task"
    """What a baseline is taken over: `task` or `task_agent`."""
    aggregation: str = "rollout"
    """What counts the same in the loss: each `token`, each `sequence`, or each `rollout`."""
    sampler: str = "shuffled"
    """What draws the tasks of a step."""
    seed: int = 0
    """Of the draws, and of the trainer."""
    quorum: float = 1.0
    """Share of a step's rollouts that must have ended for the step to go on; the others are cancelled."""
    refill: int = 0
    """How often, at most, groups of equal rewards are replaced within a step by groups of other tasks."""
    max_staleness: int = 0
    """How many versions older than the newest policy a call may be; 0 without `asynchronous` rollouts."""
    asynchronous: bool = False
    """Whether the next step's rollouts run while the trainer works on this one's."""
    allow_retokenized: bool = False
    """Whether token ids that were re-made from text may be learnt from."""
    val_every: int = 0
    """Steps between two validations; 0 validates only before the first step and after the last."""
    val_repeats: int = 1
    """Rollouts of each validation task."""
    val_by: str | None = None
    """The metadata field that names a validation task's kind: results are shown for each, and the interval of the gain
    is taken over kinds."""
    save_every: int = 1
    """Steps between two checkpoints."""
    reflection_model: str | None = None
    """The model that reflects on what the agent did and proposes prompts; for backends that tune a strategy."""
    budget: str | None = None
    """The bounds of the search, such as `300 rollouts, 2 USD, 30 min`; for backends that tune a strategy."""
    models: tuple[str, ...] = ()
    """The models to choose from for each agent or node; for backends that tune a strategy."""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    """The backend's own options, as they were given."""
