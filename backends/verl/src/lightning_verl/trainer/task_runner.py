"""verl's task runner, which makes our trainer; and what must be so in Ray before it starts."""

from __future__ import annotations

import os
from typing import Any, Final

from lightning_core.errors import LightningError
from lightning_verl.addresses import only_here
from lightning_verl.job import Job

_QUEUE: Final = ("TransferQueueController", "transfer_queue")
"""Name and namespace of the actor that every trainer of a Ray would share."""


class Runner:
    """What `run_ppo` takes for the class of its task runner.

    The class itself knows nothing of the job: Ray keeps classes where others can read them.
    """

    def __init__(self, job: Job, options: dict[str, Any] | None = None) -> None:
        self._job = job
        self._options = options or {}
        self._held: Any = None

    def fault(self) -> str:
        """Why the trainer ended itself; empty where it did not, or where it cannot be told any more."""
        import ray

        from lightning_verl.trainer import holder

        try:
            return holder.fault_of(ray, self._held) if self._held is not None else ""
        except ray.exceptions.RayError:
            return ""

    def options(self, **options: Any) -> Runner:
        """The same, with options of Ray's."""
        return Runner(self._job, {**self._options, **options})

    def remote(self) -> Any:
        """Start the actor, once Ray runs.

        Raises:
            LightningError: another training runs in this Ray, or its nodes do not reach the run's server.
        """
        import ray

        from lightning_verl.trainer import holder

        check_alone(ray)
        check_reachable(
            self._job.url, [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        )
        self._held = holder.hold(ray, self._job)
        runner = ray.remote(num_cpus=1)(_task_runner())
        return (runner.options(**self._options) if self._options else runner).remote()


def check_alone(ray: Any) -> None:
    """Refuse a Ray in which another training runs: verl's queue of rows has one name for all.

    Raises:
        LightningError: there is one.
    """
    name, namespace = _QUEUE
    try:
        ray.get_actor(name, namespace=namespace)
    except ValueError:
        return
    raise LightningError(
        "another training of verl's runs in this Ray, and the two would take each other's rows; wait for it, or take a Ray of"
        " its own (without `ray_kwargs.ray_init.address`)"
    )


def check_reachable(url: str, addresses: list[str]) -> None:
    """Refuse a server on loopback where Ray has several nodes, whose agent loops have to reach it.

    Raises:
        LightningError: it cannot be reached.
    """
    if only_here(url) and len(set(addresses)) > 1:
        raise LightningError(
            f"the run's server is at {url}, which the other {len(set(addresses)) - 1} nodes of this Ray do not reach; start"
            " one with `lightning-core serve --host ADDRESS`, and name it with `--server`"
        )


def _task_runner() -> Any:
    from lightning_verl.trainer import private

    plain = private.task_runner()

    class TaskRunner(plain):  # type: ignore[misc, valid-type]  # verl has no types
        """verl's own, with our trainer, and the run's gateway at hand."""

        def run(self, config: Any) -> None:
            import ray

            from lightning_verl.trainer import holder, trainer
            from lightning_verl.trainer.gateway import Gateway
            from lightning_verl.trainer.watchdog import Watchdog

            def died(fault: str) -> None:
                holder.fail(ray, fault)
                os._exit(1)  # Nothing else ends a wait of Ray's.

            job = holder.held(ray)
            with Gateway(job) as gateway, Watchdog(died) as watchdog:
                trainer.register(job, gateway, watchdog)
                super().run(config)
                gateway.end()

    return TaskRunner
