"""verl's task runner and trainer, joined to the run's gateway at the trainer's own hooks."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from lightning_core.capability import Capability
from lightning_core.client import Client
from lightning_core.engine import Endpoint
from lightning_core.errors import EngineError
from lightning_core.wire import ServedPolicy
from lightning_verl.job import TRAINER, Job

log = logging.getLogger("lightning_verl.trainer")

DRAIN_SECONDS: Final = 120.0
"""Seconds that calls under way have to end before vLLM sleeps or takes weights."""


def make(job: Job) -> Any:
    """A task runner for `run_ppo`: verl's own, which makes our trainer."""
    import ray

    from lightning_verl.trainer import private

    plain = private.task_runner()

    class TaskRunner(plain):  # type: ignore[misc, valid-type]  # verl has no types
        """verl's own, once our trainer is registered."""

        def run(self, config: Any) -> None:
            from lightning_verl.trainer import holder, task_runner

            held = holder.hold(ray, job)
            task_runner.register(job)
            try:
                super().run(config)
            finally:
                del held

    return ray.remote(num_cpus=1)(TaskRunner)


def register(job: Job) -> None:
    """Register our trainer with verl, under `TRAINER`."""
    from verl.trainer.ppo.v1.trainer_base import register_trainer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    class Trainer(PPOTrainerSync):  # type: ignore[misc]  # verl has no types
        """verl's synchronous trainer. Its gateway is held from the last sample of a step until the new weights serve."""

        def __init__(self, config: Any) -> None:
            # verl asks for the mode by name to choose what else is synchronous.
            config.trainer.v1.trainer_mode = "sync"
            super().__init__(config)

        def on_init_end(self) -> None:
            super().on_init_end()
            self._endpoints = endpoints(self.llm_server_manager.get_addresses())
            _wait_for(_serve(job, self._endpoints, self.global_steps, tools(self.config)))

        def on_sample_end(self) -> None:
            # No rollout of the step is under way. What an agent left behind may still be calling.
            _wait_for(_hold(job))
            super().on_sample_end()

        def on_step_end(self) -> None:
            super().on_step_end()
            _wait_for(_serve(job, self._endpoints, self.global_steps, tools(self.config)))

    register_trainer(TRAINER)(Trainer)


def endpoints(addresses: list[str]) -> tuple[Endpoint, ...]:
    """The replicas' endpoints, with the name by which vLLM serves the model.

    Raises:
        EngineError: a replica does not answer.
    """
    found = []
    for address in addresses:
        base = f"http://{address}/v1"
        try:
            with urllib.request.urlopen(f"{base}/models", timeout=60) as response:
                model = json.load(response)["data"][0]["id"]
        except (OSError, ValueError, LookupError) as error:
            raise EngineError(
                f"vLLM at {base}: does not say what it serves: {type(error).__name__}: {error}"
            ) from error
        found.append(Endpoint(base_url=base, model=model))
    return tuple(found)


def tools(config: Any) -> bool:
    """Whether vLLM parses tool calls."""
    wanted = config.actor_rollout_ref.rollout.get("engine_kwargs", {}).get("vllm", {}) or {}
    return bool(wanted.get("enable_auto_tool_choice") and wanted.get("tool_call_parser"))


def _wait_for(work: Coroutine[Any, Any, None]) -> None:
    """Run to its end in a thread of its own: `asyncio.run` here would take verl's event loop away."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def _serve(job: Job, replicas: tuple[Endpoint, ...], version: int, tools: bool) -> None:
    gives = {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.STREAM_TOKEN_IDS}
    policy = ServedPolicy(
        version=version,
        endpoints=replicas,
        capabilities=frozenset(gives | ({Capability.TOOLS} if tools else set())),
        train=job.train,
        val=job.val,
    )
    async with Client(job.url, job.token) as client:
        await client.set_policy(policy, run=job.run)
        await client.resume(run=job.run)


async def _hold(job: Job) -> None:
    async with Client(job.url, job.token) as client:
        drain = await client.pause(DRAIN_SECONDS, run=job.run)
    if not drain.drained:
        log.warning(
            "%d model calls run still after %g s; vLLM ends them as it sleeps",
            drain.in_flight, DRAIN_SECONDS,
        )  # fmt: skip
