"""The loop of an optimisation: rollouts, samples, an update, a checkpoint, new weights for the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import LightningError, UsageError
from lightning_core.learn import Sample, make_step, tasks_to_refill
from lightning_core.learn.samplers import TaskSampler
from lightning_core.learn.step import Step
from lightning_core.learn.validation import compared, rewards_by_task, validation_line
from lightning_core.rollout import Mode
from lightning_core.runs import Artifact, RolloutRequest, Run
from lightning_core.task import Task
from lightning_core.trace import Trace
from lightning_local.train import artifact
from lightning_local.train.best import best
from lightning_local.train.plan import Plan
from lightning_local.train.report import UpdateReport
from lightning_local.train.retokenize import retokenized
from lightning_local.train.sft import Conversation
from lightning_local.train.state import State, to_state
from lightning_local.train.trainer import Trainer

log = logging.getLogger("lightning_local.train")

CHECKPOINTS: Final = "checkpoints"
"""Folder of checkpoints within the run's."""
_KEPT: Final = 2
"""Checkpoints that are kept: the newest, and the one before it should the disk fail."""

_BARREN: Final = 3
"""Steps without a scored rollout after which there is no sense in going on."""

Groups = list[list[Trace]]


class Loop:
    """One optimisation.

    After each step a checkpoint is written, then the state that names it, then the engine gets the weights, then the
    step is logged. Whenever it is killed, it goes on from the last state: rollouts that had ended are read from the
    store, and the same step is made of them.
    """

    def __init__(self, run: Run, plan: Plan) -> None:
        """
        Args:
            run: the run.
            plan: what is to be done.
        """
        self._run = run
        self._plan = plan
        self._state = State(base=plan.model)
        self._ahead: asyncio.Task[Groups] | None = None
        self._trainer: Trainer
        self._sampler: TaskSampler
        self._times: dict[str, float] = {}
        self._tasks: dict[str, Task] = {}
        self._conversations: dict[str, Conversation] = {}
        self._barren = 0

    async def run(self) -> Artifact:
        """See `Backend.optimize`."""
        run, plan = self._run, self._plan
        self._conversations = plan.conversations()
        train = await run.tasks("train")
        if self._conversations:
            train = [Task(id=name, input=None) for name in self._conversations]
        if not train:
            raise UsageError(
                "tasks: there are none to train on; expected some of the split `train`"
            )
        self._tasks = {task.id: task for task in train}
        self._sampler = plan.sampler(train)
        run.say(f"loading {plan.model} for training")
        self._trainer = await asyncio.to_thread(
            Trainer, plan.model, plan.options, temperature=run.config.sampling.temperature
        )
        try:
            await self._take_up()
            if not self._state.step:
                await self._validate()
            while self._state.step < plan.config.steps:
                await self._step()
            await self._validate()
            return await self._finish()
        finally:
            if self._ahead is not None:
                self._ahead.cancel()
                await asyncio.gather(self._ahead, return_exceptions=True)

    # Resuming --------------------------------------------------------------------------------------------------------

    async def _take_up(self) -> None:
        """Go on from the run's state, where it has one."""
        saved = self._run.load()
        if saved is None:
            self._state.sampler = self._sampler.state()
            return
        state = self._state = to_state(saved, self._run.config.name)
        if state.base != self._plan.model:
            raise UsageError(
                f"resume: the run trains {state.base!r} but {self._plan.model!r} is asked for; use another `--name`"
            )
        self._sampler.restore(state.sampler)
        if state.checkpoint is not None:
            self._run.say(f"taking up step {state.step}")
            await asyncio.to_thread(self._trainer.restore, self._run.folder / state.checkpoint)
        if state.version:
            await self._publish()
        if state.step:
            await self._log_once(state.step, state.line)
        if state.ahead is not None:
            self._start_ahead(state.step, [self._tasks[name] for name in state.ahead])

    async def _log_once(self, step: int, line: dict[str, Any]) -> None:
        """Log a step, unless an earlier start did: one that was killed since its last checkpoint is done again."""
        if not self._run.logged(step):
            await self._run.log(line, step=step)

    # A step ----------------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        run, plan, state = self._run, self._plan, self._state
        step = state.step
        self._times = {}
        began = time.monotonic()
        if self._conversations:
            await self._imitate(began)
            return
        with self._phase("rollouts"):
            groups, refills = await self._groups(step)
            if plan.rereads:
                groups = [list(await run.reread(group)) for group in groups]
            if plan.config.allow_retokenized:
                policy, options = self._trainer.policy, plan.options
                groups = [
                    await asyncio.to_thread(retokenized, group, policy, options) for group in groups
                ]
        ahead: list[str] | None = None
        if plan.config.asynchronous and step + 1 < plan.config.steps:
            tasks = self._sampler.draw(plan.config.batch_size)
            ahead = [task.id for task in tasks]
            self._start_ahead(step + 1, tasks)
        with self._phase("samples"):
            made = make_step(groups, plan.rules(state.version))
        self._check_scored(groups, made)
        for group in groups:
            self._sampler.update(
                group[0].task.id, [t.reward for t in group if t.reward is not None]
            )
        update = await self._update(made)
        line = {**made.report.metrics(), "groups/refilled": refills}
        await self._end_step(line, update, ahead, began)

    def _check_scored(self, groups: Groups, made: Step) -> None:
        """Give up where step after step nothing can be scored: something is wrong that learning does not mend.

        Raises:
            LightningError: with what went wrong first.
        """
        self._barren = 0 if made.report.scored else self._barren + 1
        if self._barren < _BARREN:
            return
        trace = groups[0][0]
        why = trace.attempt.error or next(
            (reward.details.get("error") for reward in trace.rewards if reward.details), None
        )
        raise LightningError(
            f"no rollout of the last {self._barren} steps could be scored; the first of this step ended as"
            f" `{trace.attempt.cause}`: {str(why or 'no reason given')[-2000:]}\nlook at it with"
            f" `lightning-core show {self._run.config.name} {trace.rollout.id}`, then go on with `--resume`"
        )

    async def _imitate(self, began: float) -> None:
        """A step on conversations that were given, without rollouts."""
        drawn = self._sampler.draw(self._plan.config.batch_size)
        self._say(f"learning from {len(drawn)} conversations")
        with self._phase("update"):
            update = await asyncio.to_thread(
                self._trainer.fit, [self._conversations[task.id] for task in drawn]
            )
        await self._end_step({}, update, None, began)

    async def _end_step(
        self,
        line: dict[str, Any],
        update: UpdateReport | None,
        ahead: list[str] | None,
        began: float,
    ) -> None:
        """Save, publish, log: in that order, so that what is logged is never lost."""
        state, config = self._state, self._plan.config
        changed = update is not None and update.optimizer_steps > 0
        state.version += changed
        state.step += 1
        state.sampler = self._sampler.state()
        state.ahead = ahead
        state.line = {"version": state.version, **line}
        if update is not None:
            state.line |= {f"update/{name}": value for name, value in update.metrics().items()}
        with self._phase("save"):
            await self._save()
        if changed:
            with self._phase("publish"):
                await self._publish()
        state.line |= {f"time/{name}": round(value, 3) for name, value in self._times.items()}
        state.line["time/step"] = round(time.monotonic() - began, 3)
        await self._log_once(state.step, state.line)
        every = config.val_every
        if every and state.step % every == 0 and state.step < config.steps:
            await self._validate()

    async def _groups(self, step: int) -> tuple[Groups, int]:
        """The groups of a step, those included that are replaced for being all equal; and how many replaced others."""
        config = self._plan.config
        self._say("rollouts")
        if self._ahead is not None:
            groups = await self._ahead
            self._ahead = None
        else:
            groups = await self._rollouts(f"step-{step}", self._sampler.draw(config.batch_size))
        refills, rules = 0, self._plan.rules(self._state.version)
        for number in range(config.refill):
            missing = len(tasks_to_refill(groups, rules)) - refills
            if missing <= 0:
                break
            self._say(f"rollouts for {missing} groups of equal rewards")
            tasks = self._sampler.draw(missing)
            groups += await self._rollouts(f"step-{step}-refill-{number}", tasks)
            refills += len(tasks)
        return groups, refills

    def _start_ahead(self, step: int, tasks: Sequence[Task]) -> None:
        self._ahead = asyncio.create_task(self._rollouts(f"step-{step}", tasks))

    async def _rollouts(self, key: str, tasks: Sequence[Task]) -> Groups:
        config = self._plan.config
        requests = [
            RolloutRequest(
                # The same task may be drawn twice where there are few.
                task=task,
                count=config.group_size,
                mode=Mode.TRAIN,
                key=key if task not in tasks[:place] else f"{key}-{place}",
                metadata={"step": key},
            )
            for place, task in enumerate(tasks)
        ]
        return await self._run.rollouts(requests, quorum=config.quorum)

    async def _update(self, made: Step) -> UpdateReport | None:
        options = self._plan.options
        samples: Sequence[Sample] = made.samples
        if options.algorithm == "sft":
            samples = best(samples, options.sft_reward)
        if not samples:
            log.warning("step %d: nothing to learn from; the policy stays", self._state.step + 1)
            return None
        self._say(f"learning from {len(samples)} samples")
        with self._phase("update"):
            report = await asyncio.to_thread(
                self._trainer.update, samples, version=self._state.version
            )
        for reason in report.skipped:
            log.warning("step %d: %s", self._state.step + 1, reason)
        return report

    # Weights ---------------------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Write a checkpoint, then the state that names it."""
        run, state = self._run, self._state
        every = self._plan.config.save_every
        if state.step % every == 0 or state.step >= self._plan.config.steps:
            name = f"{CHECKPOINTS}/step-{state.step:05d}"
            await asyncio.to_thread(self._trainer.save, run.folder / name)
            state.checkpoint = name
            run.save(msgspec.to_builtins(state))
            self._prune()

    def _prune(self) -> None:
        found = sorted((self._run.folder / CHECKPOINTS).glob("step-*"))
        for folder in found[:-_KEPT]:
            shutil.rmtree(folder, ignore_errors=True)

    async def _publish(self) -> None:
        run, version = self._run, self._state.version
        folder = run.folder / "policy"
        await asyncio.to_thread(self._trainer.weights, folder)
        await run.publish(folder, version=version)

    # Validation ------------------------------------------------------------------------------------------------------

    async def _validate(self) -> None:
        run, state = self._run, self._state
        key = str(state.step)
        tasks = await run.tasks("val")
        if not tasks or key in state.vals:
            return
        run.say(f"validating after step {state.step}")
        began = time.monotonic()
        groups = await run.rollouts(
            [
                RolloutRequest(
                    task=task,
                    count=self._plan.config.val_repeats,
                    mode=Mode.VAL,
                    key=f"val-{state.step}",
                )
                for task in tasks
            ]
        )
        traces = [trace for group in groups for trace in group]
        state.vals[key] = rewards_by_task(traces)
        run.save(msgspec.to_builtins(state))
        line = validation_line(traces)
        line["time/val"] = round(time.monotonic() - began, 3)
        await run.log(line, step=state.step)

    # The end ---------------------------------------------------------------------------------------------------------

    async def _finish(self) -> Artifact:
        run, state, plan = self._run, self._state, self._plan
        run.say("writing the artifact")
        folder = run.folder / "artifact"
        written = await asyncio.to_thread(
            artifact.export, state.checkpoint_in(run.folder), "policy.pt", folder
        )
        metrics = {
            "steps": state.step,
            "version": state.version,
            **compared(state.vals, await run.tasks("val"), plan.config.val_by),
        }
        return Artifact(
            kind="lora" if plan.options.lora_rank else "checkpoint",
            path=str(Path(written).relative_to(run.folder)),
            apply=f"lightning-core serve --policy {folder}",
            metrics=metrics,
        )

    def _say(self, text: str) -> None:
        """What is being done within a step."""
        self._run.say(f"step {self._state.step + 1} of {self._plan.config.steps}: {text}")

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._times[name] = self._times.get(name, 0.0) + time.monotonic() - began
