"""Steps: the graded rollouts of each step and validation, and the numbers that they give."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightning_core.learn import make_step
from lightning_core.learn.credit import CreditRuleFactory
from lightning_core.learn.validation import rewards_by_task, validation_line
from lightning_core.rollout import Mode
from lightning_core.trace import Trace
from lightning_verl.learning import Learning

STEP: Final = "step"
"""The key in a rollout's metadata under which its step is: the one for which it was asked, or after which it is
validated."""
_KEPT: Final = 20
"""Steps for which rollouts are kept that no step has learnt from."""


class Steps:
    """Collects traces as they are graded; gives the line of a step once verl has done it."""

    def __init__(self, learning: Learning, credit: Mapping[str, CreditRuleFactory]) -> None:
        self._learning = learning
        self._credit = credit
        self._train: dict[str, dict[str, Trace]] = {}
        self._asked_for: dict[str, int] = {}
        self._val: dict[int, list[Trace]] = defaultdict(list)

    def add(self, trace: Trace) -> None:
        """Take a graded trace; one that is not of a step of ours is left."""
        step, group = trace.rollout.metadata.get(STEP), trace.rollout.group
        if not isinstance(step, int) or group is None:
            return
        if trace.rollout.mode is Mode.VAL:
            self._val[step].append(trace)
        else:
            self._train.setdefault(group, {})[trace.rollout.id] = trace
            self._asked_for[group] = step

    def line(self, step: int, groups: Sequence[str]) -> dict[str, Any]:
        """The numbers of a step by the names that every backend uses; forgets its rollouts.

        Args:
            step: the step.
            groups: the ids of the groups that it learnt from.
        """
        traces = [list(self._train.pop(group, {}).values()) for group in groups]
        for group, asked_for in list(self._asked_for.items()):
            if group in groups or asked_for < step - _KEPT:
                del self._asked_for[group]
                self._train.pop(group, None)
        if not traces:
            return {}
        return make_step(traces, self._learning.rules(step - 1, self._credit)).report.metrics()

    def validation(self, step: int) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """The numbers of the validation after a step, and the rewards by task; empty where there was none."""
        traces = self._val.pop(step, [])
        if not traces:
            return {}, {}
        return validation_line(traces), rewards_by_task(traces)


_NAMES: Final = {
    "actor/pg_loss": "update/loss",
    "actor/entropy": "update/entropy",
    "actor/pg_clipfrac": "update/clip_share",
    "actor/ppo_kl": "update/approx_kl",
    "actor/grad_norm": "update/grad_norm",
    "critic/vf_loss": "update/value_loss",
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
