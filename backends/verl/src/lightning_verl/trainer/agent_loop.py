"""The agent loop that verl runs for each rollout: the agent runs elsewhere, and what it did comes back as samples."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import ray
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from lightning_core.client import Client
from lightning_core.learn.credit import CreditRuleFactory
from lightning_core.plugins import installed
from lightning_core.rollout import Mode, Rollout
from lightning_core.trace import Trace
from lightning_verl.job import Job
from lightning_verl.steps import STEP
from lightning_verl.trainer.holder import job_of
from lightning_verl.trainer.rollouts import Rollouts
from lightning_verl.trainer.samples import NOTE, Row, filler_row, rows_of

log = logging.getLogger("lightning_verl.trainer")

_MOST_SECONDS: Final = 120.0
_STEPS_KEPT: Final = 20


class RolloutLoop(AgentLoopBase):  # type: ignore[misc]  # verl has no types
    """One rollout of one task: enqueued on the run's server under an id that a repeated step makes again."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """The samples of the rollout; in validation one row, with the reward and nothing to learn.

        None where it has no reward, or nothing to learn from. What it counts for in its group is in the others' rows.
        """
        shared = await _shared()
        job, info = shared.job, dict(row["extra_info"])
        mode, step, session = Mode(info["mode"]), int(row["global_steps"]), int(row["session_id"])
        of = self.rollout_config
        count = int(of.n if mode is Mode.TRAIN else of.val_kwargs.n)
        draw = shared.draws.number(str(row["uid"]), mode, step, int(info["index"]))
        rollouts = group_of(job, info, mode, step, count, draw)
        group, rollout = str(rollouts[0].group), rollouts[session].id
        traces = await shared.rollouts.group(rollouts)
        trace = traces[session]
        if trace.reward is None:
            log.warning("rollout `%s`: not scored (%s); left out", rollout, trace.attempt.cause)
        filler = self.tokenizer.eos_token_id or 0
        # The policy that step N learns from is the one after step N-1; validation is after the step it is named by.
        version = step if mode is Mode.VAL else step - 1
        empty = filler_row(rollout, group, version=version, filler=filler)
        if mode is Mode.VAL:
            scored = [each.reward is not None for each in traces]
            # verl takes a batch without any row for a failure of its own.
            return (
                [self._output(empty, trace)]
                if scored[session] or (not any(scored) and session == 0)
                else []
            )
        rules = job.learning.rules(version, shared.credit)
        rows = shared.rows.of(group, count, lambda: rows_of(traces, rules, group=group))
        if not rows and session == 0:
            return [self._output(empty, trace)]
        return [self._output(each, trace) for each in rows.get(rollout, [])]

    @staticmethod
    def _output(row: Row, trace: Trace) -> AgentLoopOutput:
        seconds = sum(max(0.0, call.ended_at - call.started_at) for call in trace.calls)
        return AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.response_mask,
            response_logprobs=row.response_logprobs,
            reward_score=trace.reward or 0.0,
            num_turns=len(trace.calls),
            metrics=AgentLoopMetrics(generate_sequences=seconds),
            extra_fields={
                "reward_extra_info": {},
                "min_global_steps": row.oldest,
                "max_global_steps": row.newest,
                NOTE: msgspec.json.encode(row.note),
            },
        )


def group_of(
    job: Job, info: dict[str, Any], mode: Mode, step: int, count: int, draw: int = 0
) -> list[Rollout]:
    """The rollouts of a row of the dataset in a step, drawn there for the `draw`-th time more than once."""
    kind = "step" if mode is Mode.TRAIN else "val"
    stem = f"{job.run}:{info['task']}:{kind}-{step}.{info['index']}"
    if draw:
        stem = f"{stem}.{draw}"
    return [
        Rollout(
            id=f"{stem}:{number}",
            task_id=info["task"],
            run=job.run,
            group=stem,
            mode=mode,
            timeout=job.timeout,
            max_attempts=job.max_attempts,
            budget=job.budget,
            metadata={STEP: step},
        )
        for number in range(count)
    ]


class Draws:
    """Tells apart the times that a row is drawn within a step: where there are few tasks, one may be drawn again."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Mode, int], dict[int, list[str]]] = {}

    def number(self, uid: str, mode: Mode, step: int, index: int) -> int:
        """Which draw of a row verl's id is: 0 for the first.

        Args:
            uid: verl's id, the same for all rollouts of a draw.
            mode: whether it is drawn for a step or a validation.
            step: the step.
            index: the row.
        """
        while (mode, step) not in self._steps and len(self._steps) >= _STEPS_KEPT:
            del self._steps[next(iter(self._steps))]
        drawn = self._steps.setdefault((mode, step), {}).setdefault(index, [])
        if uid not in drawn:
            drawn.append(uid)
        return drawn.index(uid)


class GroupRows:
    """The rows of groups, made once for all rollouts of each."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[dict[str, list[Row]], int]] = {}

    def of(
        self, group: str, count: int, make: Callable[[], dict[str, list[Row]]]
    ) -> dict[str, list[Row]]:
        """The rows of a group, which are forgotten once `count` rollouts have asked."""
        rows, left = self._made.pop(group) if group in self._made else (make(), count)
        if left > 1:
            self._made[group] = (rows, left - 1)
        return rows


@dataclasses.dataclass(frozen=True)
class _Shared:
    """What all agent loops of a process share."""

    job: Job
    rollouts: Rollouts
    credit: Mapping[str, CreditRuleFactory]
    draws: Draws = dataclasses.field(default_factory=Draws)
    rows: GroupRows = dataclasses.field(default_factory=GroupRows)


_made: dict[asyncio.AbstractEventLoop, asyncio.Task[_Shared]] = {}


async def _shared() -> _Shared:
    loop = asyncio.get_running_loop()
    made = _made.get(loop)
    if made is None or (made.done() and made.exception() is not None):
        _made[loop] = loop.create_task(_make())
    return await asyncio.shield(_made[loop])


async def _make() -> _Shared:
    async with asyncio.timeout(_MOST_SECONDS):
        job = await job_of(ray)
    # Closed with the process: verl tells agent loops of no end.
    client = await Client(job.url, job.token).__aenter__()
    rollouts = Rollouts(client, job.run, grading_timeout=job.grading_timeout)
    return _Shared(job, rollouts, installed().credit())
