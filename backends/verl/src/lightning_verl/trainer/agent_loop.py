"""The agent loop that verl runs for each rollout: the agent runs elsewhere, and what it did comes back as samples."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import ray
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from lightning_core.client import Client
from lightning_core.learn import SampleRules
from lightning_core.rollout import Mode, Rollout
from lightning_verl.job import Job
from lightning_verl.steps import STEP
from lightning_verl.trainer.holder import job_of
from lightning_verl.trainer.rollouts import Rollouts
from lightning_verl.trainer.samples import Row, rows_of

log = logging.getLogger("lightning_verl.trainer")

_MOST_SECONDS: Final = 120.0


class RolloutLoop(AgentLoopBase):  # type: ignore[misc]  # verl has no types
    """One rollout of one task: enqueued on the run's server under an id that a repeated step makes again."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """The samples of the rollout, each with the rollout's reward.

        None, where it has no reward, or is the only one of its group that has: verl's statistics are over the
        rollouts that have rows, and it would take a lone reward for an advantage.
        """
        job, rollouts = await _shared()
        info = dict(row["extra_info"])
        mode, step, session = Mode(info["mode"]), int(row["global_steps"]), int(row["session_id"])
        of = self.rollout_config
        count = int(of.n if mode is Mode.TRAIN else of.val_kwargs.n)
        traces = await rollouts.group(group_of(job, info, mode, step, count))
        trace = traces[session]
        if trace.reward is None:
            log.warning(
                "rollout `%s`: not scored (%s); left out", trace.rollout.id, trace.attempt.cause
            )
            return []
        if mode is Mode.TRAIN and sum(each.reward is not None for each in traces) < 2:
            log.warning("rollout `%s`: alone of its group has a reward; left out", trace.rollout.id)
            return []
        rules = SampleRules(train_agents=job.train_agents, allow_retokenized=job.allow_retokenized)
        # The policy that step N learns from is the one after step N-1; validation is after the step it is named by.
        version = step if mode is Mode.VAL else step - 1
        rows = rows_of(trace, rules, version=version, filler=self.tokenizer.eos_token_id or 0)
        seconds = sum(max(0.0, call.ended_at - call.started_at) for call in trace.calls)
        return [self._output(each, trace.reward, len(trace.calls), seconds) for each in rows]

    @staticmethod
    def _output(row: Row, reward: float, turns: int, seconds: float) -> AgentLoopOutput:
        return AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.response_mask,
            response_logprobs=row.response_logprobs,
            reward_score=reward,
            num_turns=turns,
            metrics=AgentLoopMetrics(generate_sequences=seconds),
            extra_fields={
                "reward_extra_info": {},
                "min_global_steps": row.oldest,
                "max_global_steps": row.newest,
            },
        )


def group_of(job: Job, info: dict[str, Any], mode: Mode, step: int, count: int) -> list[Rollout]:
    """The rollouts of a row of the dataset in a step."""
    kind = "step" if mode is Mode.TRAIN else "val"
    stem = f"{job.run}:{info['task']}:{kind}-{step}.{info['index']}"
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


_made: dict[asyncio.AbstractEventLoop, asyncio.Task[tuple[Job, Rollouts]]] = {}


async def _shared() -> tuple[Job, Rollouts]:
    """What all agent loops of this process share."""
    loop = asyncio.get_running_loop()
    if loop not in _made:
        _made[loop] = loop.create_task(_make())
    return await asyncio.shield(_made[loop])


async def _make() -> tuple[Job, Rollouts]:
    async with asyncio.timeout(_MOST_SECONDS):
        job = await job_of(ray)
    # Closed with the process: verl tells agent loops of no end.
    client = await Client(job.url, job.token).__aenter__()
    return job, Rollouts(client, job.run, grading_timeout=job.grading_timeout)
