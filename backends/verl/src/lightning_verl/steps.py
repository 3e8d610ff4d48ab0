"""Steps: the graded rollouts of each step and validation, and the numbers that they give."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from lightning_core.learn import LearningRules, SampleRules, make_step
from lightning_core.learn.validation import rewards_by_task, validation_line
from lightning_core.optimization import OptimizeConfig
from lightning_core.rollout import Mode
from lightning_core.trace import Trace

_ESTIMATORS: Final = {"grpo": "grpo", "dr_grpo": "dr_grpo"}
STEP: Final = "step"
"""The key in a rollout's metadata under which its step is: the one being made, or after which it is validated."""


class Steps:
    """Collects traces as they are graded; gives the line of a step once verl has done it."""

    def __init__(self, asked: OptimizeConfig) -> None:
        self._rules = LearningRules(
            samples=SampleRules(
                train_agents=asked.train_agents, allow_retokenized=asked.allow_retokenized
            ),
            estimator=_ESTIMATORS[asked.algorithm],
        )
        self._train: dict[int, dict[str, list[Trace]]] = defaultdict(lambda: defaultdict(list))
        self._val: dict[int, list[Trace]] = defaultdict(list)

    def add(self, trace: Trace) -> None:
        """Take a graded trace; one that is not of a step of ours is left."""
        step = trace.rollout.metadata.get(STEP)
        if not isinstance(step, int):
            return
        if trace.rollout.mode is Mode.VAL:
            self._val[step].append(trace)
        else:
            self._train[step][trace.rollout.group or ""].append(trace)

    def line(self, step: int) -> dict[str, Any]:
        """The numbers of a step's rollouts, by the names that every backend uses; forgets the rollouts."""
        groups = list(self._train.pop(step, {}).values())
        return make_step(groups, self._rules).report.metrics() if groups else {}

    def validation(self, step: int) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """The numbers of the validation after a step, and the rewards by task; empty where there was none."""
        traces = self._val.pop(step, [])
        if not traces:
            return {}, {}
        return validation_line(traces), rewards_by_task(traces)


_NAMES: Final = {
    "actor/pg_loss": "loss",
    "actor/entropy": "entropy",
    "actor/pg_clipfrac": "clip_share",
    "actor/ppo_kl": "kl",
    "actor/grad_norm": "update/gradient_norm",
    "actor/lr": "update/learning_rate",
    "timing_s/step": "time/step",
    "timing_s/gen": "time/rollouts",
    "timing_s/update_actor": "time/update",
    "timing_s/update_weights": "time/publish",
    "timing_s/save_checkpoint": "time/save",
}
"""verl's names of what every backend reports, and ours."""


def renamed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """verl's numbers by our names where there is one, else under `verl/`; what is no number is left out."""
    return {
        _NAMES.get(name, f"verl/{re.sub(r'[^A-Za-z0-9_./@:+-]', '_', name)}"): value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
