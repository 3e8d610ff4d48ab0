"""Watching the trainer: what it reports, and the lines of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import EngineError
from lightning_core.learn.validation import compared
from lightning_core.runs import Artifact, Run
from lightning_core.task import Task
from lightning_verl.config import CONSUMED, METRICS
from lightning_verl.job import Consumed, Done, Failed, Progress
from lightning_verl.lines import LinesFile, StepMetrics
from lightning_verl.process import TrainerProcess
from lightning_verl.state import State, checkpoint_step, newest_checkpoint
from lightning_verl.steps import Steps, renamed

_LOOK: Final = 0.5
_STEP_KEY: Final = "training/global_step"
"""What verl's line of a step has, and that of a validation before the first has not."""


class Watch:
    """Follows the trainer, and logs each step."""

    def __init__(self, run: Run, steps: Steps, state: State, folder: Path) -> None:
        self._run = run
        self._steps = steps
        self._metrics = LinesFile(folder / METRICS, StepMetrics)
        self._consumed = LinesFile(folder / CONSUMED, Consumed)
        self._groups: dict[int, tuple[str, ...]] = {}
        self._state = state
        self._done_before = checkpoint_step(run.folder)

    async def until_done(self, process: TrainerProcess, beside: Coroutine[Any, Any, None]) -> None:
        """Until the trainer has done its steps.

        Args:
            process: the trainer.
            beside: what goes on until then, and ends only by an error.

        Raises:
            LightningError: the trainer or the run failed.
        """
        reporting = asyncio.ensure_future(self._report(process))
        tailing = asyncio.ensure_future(self._tail())
        failing = asyncio.ensure_future(self._run.failed())
        cancelling = asyncio.ensure_future(beside)
        every: list[asyncio.Future[Any]] = [reporting, tailing, failing, cancelling]
        try:
            await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                raise failing.result()
            for other in (tailing, cancelling):
                if other.done():
                    other.result()
            reporting.result()
        finally:
            for each in every:
                each.cancel()
            await asyncio.gather(*every, return_exceptions=True)
            # What was learnt before a failure is known of it too.
            await self._take_lines(last=True)

    async def _report(self, process: TrainerProcess) -> None:
        done = False
        async for report in process.reports():
            match report:
                case Progress(text=text):
                    self._run.say(text)
                case Failed(message=message):
                    raise EngineError(
                        f"backend `verl`: {message}\nits log is {str(process.log)!r}; once it is mended, go on with `--resume`"
                    )
                case Done():
                    done = True
        if not done:
            raise EngineError(
                f"backend `verl`: the trainer ended before its steps were done; the end of {str(process.log)!r}:\n"
                f"{process.tail()}"
            )

    async def _tail(self) -> None:
        while True:
            await self._take_lines()
            await asyncio.sleep(_LOOK)

    async def _take_lines(self, *, last: bool = False) -> None:
        # First the numbers: what they were made of is written before them.
        lines = self._metrics.read()
        consumed = self._consumed.read()
        if lines or last:
            # What an earlier start has done and not told. By now its rollouts have been told once more.
            done = self._done_before
            lines = [line for line in self._metrics.left if line.step <= done] + lines
            consumed = [each for each in self._consumed.left if each.step <= done] + consumed
            self._metrics.left.clear()
            self._consumed.left.clear()
        for each in consumed:
            # A step that was begun anew is made of all that it tried.
            self._groups[each.step] = (*self._groups.get(each.step, ()), *each.groups)
        for line in lines:
            await self._take(line)

    async def _take(self, line: StepMetrics) -> None:
        run, state = self._run, self._state
        found, rewards = self._steps.validation(line.step)
        if rewards:
            state.vals[str(line.step)] = rewards
        if _STEP_KEY in line.data:
            made = self._steps.line(line.step, self._groups.pop(line.step, ()))
            numbers = {**made, **renamed(line.data), "version": line.step}
            state.step = max(state.step, line.step)
            run.save(msgspec.to_builtins(state))
            if not run.logged(line.step):  # Else it is a step that verl repeats after a kill.
                await run.log(numbers, step=line.step)
        else:
            run.save(msgspec.to_builtins(state))
        if found:
            await run.log(found, step=line.step)
        asked = run.config.optimize
        assert asked is not None
        if line.step < asked.steps:
            run.say(f"step {line.step + 1} of {asked.steps}: rollouts, then learning")

    def artifact(self, tasks: Sequence[Task]) -> Artifact:
        """What the run has come to, by its validation tasks."""
        run, state = self._run, self._state
        asked = run.config.optimize
        assert asked is not None
        metrics = {
            "steps": state.step,
            "version": state.step,
            **compared(state.vals, tasks, asked.val_by),
        }
        return Artifact(
            kind="checkpoint",
            path=str(newest_checkpoint(run.folder).relative_to(run.folder)),
            apply=f"lightning-core export --run {run.config.name} --format hf --output DIR, then"
            " lightning-core serve --model DIR",
            metrics=metrics,
        )
