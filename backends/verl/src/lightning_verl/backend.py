"""The backend `verl`: reinforcement learning by verl's own trainer, which runs in an environment of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from lightning_core.backend import Backend
from lightning_core.capability import Capability
from lightning_core.client import Client
from lightning_core.errors import EngineError, LightningError, UsageError
from lightning_core.findings import Finding
from lightning_core.folder import RunFolder
from lightning_core.learn.validation import compared
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import installed
from lightning_core.recipe import Recipe
from lightning_core.records import Json
from lightning_core.rollout import Mode, Rollout
from lightning_core.runs import Access, Artifact, Run, RunConfig
from lightning_core.task import Task
from lightning_core.trace import Trace
from lightning_verl import environment
from lightning_verl.config import (
    CHECKPOINTS,
    CONSUMED,
    METRICS,
    Plan,
    hydra_value,
    overrides,
    own_ray,
    plan_of,
)
from lightning_verl.dataset import write_rows
from lightning_verl.examine import examine
from lightning_verl.export import FORMATS, export
from lightning_verl.job import (
    AGENT_LOOP,
    ASYNC,
    CPU_PLATFORM,
    SYNC,
    Consumed,
    Done,
    Failed,
    Job,
    Platform,
    Progress,
)
from lightning_verl.lines import LinesFile, StepMetrics
from lightning_verl.process import TrainerProcess
from lightning_verl.recipe import recipe
from lightning_verl.steps import STEP, Steps, renamed
from lightning_verl.stragglers import Stragglers

_LOOK: Final = 0.5
_LATEST: Final = "latest_checkpointed_iteration.txt"
_STEP_KEY: Final = "training/global_step"
"""What verl's line of a step has, and that of a validation before the first has not."""
_WITHDRAW_SECONDS: Final = 10.0


class State(msgspec.Struct, kw_only=True):
    """What `run.save` keeps; the weights are in verl's own checkpoints."""

    backend: str = "verl"
    """Whose state it is."""
    python: str = ""
    """The Python of the verl environment, for `export`."""
    step: int = 0
    """Steps that are done."""
    vals: dict[str, dict[str, list[float]]] = msgspec.field(default_factory=dict)
    """Rewards of validation by step and task."""


class VerlBackend(Backend):
    """Starts verl in its environment, lets it enqueue rollouts on the run's server, and watches it."""

    name: ClassVar[str] = "verl"
    needs: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.WEIGHTS_IN_PLACE}
    )
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.TRAINS_WEIGHTS})
    serves: ClassVar[bool] = True
    formats: ClassVar[tuple[str, ...]] = FORMATS

    def check(self, config: RunConfig) -> None:
        """Refuse what cannot be, and an environment that lacks something.

        Raises:
            UsageError: the message says what may be given, or how to make the environment.
        """
        environment.check(environment.find_python(plan_of(config).python))

    async def optimize(self, run: Run) -> Artifact:
        """Train by verl until it has done its steps; it resumes from its own checkpoints.

        Raises:
            UsageError: there are no tasks to train on, or the environment lacks something.
            EngineError: the trainer failed; the message says why and where its log is.
            LightningError: the run failed, such as for want of workers.
        """
        plan = plan_of(run.config)
        python = environment.find_python(plan.python)
        folder = (run.folder / "verl").resolve()
        folder.mkdir(mode=0o700, exist_ok=True)
        train, val = await run.tasks("train"), await run.tasks("val")
        if not train:
            raise UsageError(
                "tasks: there are none to train on; expected some of the split `train`"
            )
        write_rows(folder / "train.jsonl", train, Mode.TRAIN, at_least=plan.asked.batch_size)
        write_rows(folder / "val.jsonl", val or train, Mode.VAL, kind=plan.asked.val_by)
        loop = [{"name": AGENT_LOOP, "_target_": "lightning_verl.trainer.agent_loop.RolloutLoop"}]
        # JSON is YAML too.
        (folder / "agent_loop.yaml").write_bytes(msgspec.json.encode(loop) + b"\n")
        state = _state(run.load(), run.config.name)
        state.python = str(python)
        steps = Steps(plan.learning, installed().credit())
        stragglers = Stragglers(plan.asked)

        def settled(trace: Trace) -> None:
            steps.add(trace)
            stragglers.add(trace)

        # A step that was cut off is learnt from anew, with what of it had ended.
        access = run.delegate(settled, again=partial(_of_later, state))
        job = Job(
            run=run.config.name,
            url=access.url,
            token=access.token,
            overrides=overrides(
                plan, run.config, folder,
                train=folder / "train.jsonl", val=folder / "val.jsonl", validates=bool(val),
                resumes=_resumes(run.folder, state, plan.asked),
                flash=environment.has_flash_attention(environment.check(python)),
            ),
            train=run.config.sampling,
            val=run.config.validation,
            timeout=run.config.timeout,
            max_attempts=run.config.max_attempts,
            budget=run.config.budget,
            learning=plan.learning,
            mode=ASYNC if plan.asked.asynchronous else SYNC,
            consumed=str(folder / CONSUMED),
            grading_timeout=plan.grading_timeout,
            platform=plan.platform,
        )  # fmt: skip
        watch = _Watch(run, steps, state, folder)
        env = _environ(plan, python, folder / METRICS)
        run.say("starting verl")
        try:
            async with (
                TrainerProcess(
                    python, job, log=RunFolder(run.folder).logs / "verl.log", env=env
                ) as process,
                Client(access.url, access.token) as client,
            ):
                await watch.until_done(process, stragglers.cancel(client, run.config.name))
        finally:
            await _withdraw(access, run.config.name)
        return watch.artifact(val)

    def option_text(self, value: Json) -> str:
        """A value of `[backend.verl]` as `--set` takes it: text as it is, anything else in Hydra's grammar."""
        return value if isinstance(value, str) else hydra_value(value)

    def export(self, folder: Path, *, format: str, output: Path) -> Path:
        """Write the newest checkpoint as a Hugging Face folder, by verl's own merger, or as `policy.pt`.

        Raises:
            UsageError: there is no checkpoint yet, the environment is gone, or the output is there already.
            EngineError: the merger or the writer failed.
        """
        run = RunFolder(folder)
        python = environment.find_python(_state(run.load_state(), folder.name).python or None)
        checkpoint = newest_checkpoint(folder)
        return export(run.read_config(), checkpoint, python, format=format, output=output)

    def examine(self, options: Mapping[str, str]) -> Iterable[Finding]:
        """What the verl environment has, by the option `python`, and whether it fits with this one and this machine."""
        return examine(options)

    def recipe(self, venv: Path, *, python: Path, variant: str | None) -> Recipe:
        """How the verl environment is made.

        Raises:
            UsageError: not here, not with that Python, or not for that variant.
        """
        return recipe(venv, python=python, variant=variant)


class _Watch:
    """Follows the trainer, and logs each step."""

    def __init__(self, run: Run, steps: Steps, state: State, folder: Path) -> None:
        self._run = run
        self._steps = steps
        self._metrics = LinesFile(folder / METRICS, StepMetrics)
        self._consumed = LinesFile(folder / CONSUMED, Consumed)
        self._groups: dict[int, tuple[str, ...]] = {}
        self._state = state

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
            await self._take_lines()

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

    async def _take_lines(self) -> None:
        # First the numbers: what they were made of is written before them.
        lines = self._metrics.read()
        for each in self._consumed.read():
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
            await run.log(numbers, step=line.step)
        else:
            run.save(msgspec.to_builtins(state))
        if found:
            await run.log(found, step=line.step)
        asked = run.config.optimize
        assert asked is not None
        if line.step < asked.steps:
            run.say(f"step {line.step + 1}: rollouts, then learning")

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


def newest_checkpoint(folder: Path) -> Path:
    """verl's newest whole checkpoint in a run's folder.

    Raises:
        UsageError: there is none yet.
    """
    return folder / "verl" / CHECKPOINTS / f"global_step_{_checkpoint_step(folder)}"


def _checkpoint_step(folder: Path) -> int:
    try:
        return int((folder / "verl" / CHECKPOINTS / _LATEST).read_text())
    except (OSError, ValueError):
        raise UsageError(
            f"run `{folder.name}`: has no checkpoint of verl's yet; it writes one every `--save-every` steps"
        ) from None


def _of_later(state: State, rollout: Rollout) -> bool:
    """Whether a rollout is of a step that is not done, or of a validation that is not known."""
    step = rollout.metadata.get(STEP)
    if not isinstance(step, int):
        return False
    return str(step) not in state.vals if rollout.mode is Mode.VAL else step > state.step


def _resumes(folder: Path, state: State, asked: OptimizeConfig) -> bool:
    """Whether verl goes on from a checkpoint without validating it first.

    It validates first where the run was cut off between a checkpoint and the validation that was due after it.
    """
    try:
        step = _checkpoint_step(folder)
    except UsageError:
        return False
    every = asked.val_every or asked.steps
    return str(step) in state.vals or (step % every != 0 and step < asked.steps)


def _state(saved: dict[str, Any] | None, run: str) -> State:
    if saved is None:
        return State()
    try:
        if saved.get("backend") != "verl":
            raise UsageError(f"run `{run}`: its state is not backend `verl`'s")
        return msgspec.convert(saved, State)
    except msgspec.ValidationError as error:
        raise UsageError(f"run `{run}`: its state is not backend `verl`'s: {error}") from error


def _environ(plan: Plan, python: Path, metrics: Path) -> dict[str, str]:
    defaults = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    env = environment.environ()
    # vLLM and Triton call programs of their environment by name.
    ours = {
        "PATH": f"{python.parent}{os.pathsep}{env.get('PATH', os.defpath)}",
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }
    if own_ray(plan):
        # Else Ray takes 127.0.0.1 for the address by which others reach this machine, and vLLM listens there.
        ours["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if plan.platform is Platform.CPU:
        defaults |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
        # verl registers its FSDP engine for two kinds of devices, of which a processor is none.
        ours |= {"VERL_PLATFORM": CPU_PLATFORM, "VERL_ENGINE_DEVICE": "cuda"}
    return {**defaults, **env, **ours}


async def _withdraw(access: Access, run: str) -> None:
    """Let the server forget the run's policy, whose replicas have ended."""
    with contextlib.suppress(LightningError, TimeoutError):
        async with asyncio.timeout(_WITHDRAW_SECONDS), Client(access.url, access.token) as client:
            await client.drop_policy(run)
