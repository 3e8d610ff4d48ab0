"""The backend `verl`: reinforcement learning by verl's own trainer, which runs in an environment of its own."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from lightning_core.backend import Backend
from lightning_core.capability import Capability
from lightning_core.client import Client
from lightning_core.errors import LightningError, UsageError
from lightning_core.findings import Finding
from lightning_core.folder import RunFolder
from lightning_core.learn.samplers import create_sampler
from lightning_core.plugins import installed
from lightning_core.recipe import Recipe
from lightning_core.records import Json
from lightning_core.rollout import Mode
from lightning_core.running.patience import Patience
from lightning_core.runs import Access, Artifact, Run, RunConfig
from lightning_core.trace import Trace
from lightning_verl import environment
from lightning_verl.config import CONSUMED, METRICS, overrides, own_ray
from lightning_verl.cpu_keys import CPU_ENVIRONMENT
from lightning_verl.dataset import drawn, write_rows
from lightning_verl.examine import examine
from lightning_verl.export import FORMATS, export
from lightning_verl.job import AGENT_LOOP, Job, Platform
from lightning_verl.options import hydra_value
from lightning_verl.plan import Plan, plan_of
from lightning_verl.process import TrainerProcess
from lightning_verl.recipe import recipe
from lightning_verl.state import gone_back, newest_checkpoint, of_later, passed_validation, state_of
from lightning_verl.steps import Steps
from lightning_verl.stragglers import Stragglers
from lightning_verl.unended import cancel_unended
from lightning_verl.watch import Watch

log = logging.getLogger("lightning_verl")

_WITHDRAW_SECONDS: Final = 10.0


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
        found = await asyncio.to_thread(environment.check, python)
        folder = (run.folder / "verl").resolve()
        folder.mkdir(mode=0o700, exist_ok=True)
        train, val = await run.tasks("train"), await run.tasks("val")
        if not train:
            raise UsageError(
                "tasks: there are none to train on; expected some of the split `train`"
            )
        sampler = create_sampler(plan.asked.sampler, train, plan.asked.seed, installed().samplers())
        write_rows(folder / "train.jsonl", drawn(plan.asked, sampler), Mode.TRAIN)
        write_rows(folder / "val.jsonl", val or train, Mode.VAL, kind=plan.asked.val_by)
        loop = [{"name": AGENT_LOOP, "_target_": "lightning_verl.trainer.agent_loop.RolloutLoop"}]
        # JSON is YAML too.
        (folder / "agent_loop.yaml").write_bytes(msgspec.json.encode(loop) + b"\n")
        state = gone_back(state_of(run.load(), run.config.name), run.folder)
        state.python = str(python)
        steps = Steps(plan.learning, installed().credit())
        stragglers = Stragglers(plan.asked)

        def settled(trace: Trace) -> None:
            steps.add(trace)
            stragglers.add(trace)

        # A step that was cut off is learnt from anew, with what of it had ended.
        access = run.delegate(settled, again=partial(of_later, state, plan.asked.max_staleness))
        job = Job(
            run=run.config.name,
            url=access.url,
            token=access.token,
            overrides=overrides(
                plan, run.config, folder,
                train=folder / "train.jsonl", val=folder / "val.jsonl", validates=bool(val),
                resumes=passed_validation(run.folder, state, plan.asked),
                flash=environment.has_flash_attention(found),
            ),
            # vLLM samples each request that has a seed by itself, a seventh slower where it was measured. Its own seed
            # stands; which requests meet in a batch, and so what they draw, is chance all the same.
            train=msgspec.structs.replace(run.config.sampling, seed=None),
            val=run.config.validation,
            timeout=run.config.timeout,
            max_attempts=run.config.max_attempts,
            budget=run.config.budget,
            learning=plan.learning,
            mode=plan.mode,
            consumed=str(folder / CONSUMED),
            grading_timeout=plan.grading_timeout,
            platform=plan.platform,
        )  # fmt: skip
        watch = Watch(run, steps, state, folder)
        env = _environ(plan, python, folder / METRICS)
        run.say("starting verl")
        done = False
        try:
            async with (
                TrainerProcess(
                    python, job, folder=folder, log=RunFolder(run.folder).logs / "verl.log", env=env
                ) as process,
                Client(access.url, access.token) as client,
            ):
                await watch.until_done(process, stragglers.cancel(client, run.config.name))
                done = True
        finally:
            await _withdraw(access, run.config.name, done=done)
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
        python = environment.find_python(state_of(run.load_state(), folder.name).python or None)
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
        ours |= CPU_ENVIRONMENT
    return {**defaults, **env, **ours}


async def _withdraw(access: Access, run: str, *, done: bool) -> None:
    """Let the server forget the run's policy, whose replicas have ended; and, where all steps are done, what was still to
    be run under it: else it is gone on with."""
    patience = Patience.logged(log, _WITHDRAW_SECONDS)
    try:
        async with asyncio.timeout(_WITHDRAW_SECONDS), Client(access.url, access.token) as client:
            if done:
                # Most are cancelled by the trainer; an agent loop may have enqueued others since.
                await cancel_unended(client, run, patience)
            await client.drop_policy(run)
    except (LightningError, TimeoutError) as error:
        log.warning("the run's policy could not be withdrawn: %s", error or "the server is slow")
