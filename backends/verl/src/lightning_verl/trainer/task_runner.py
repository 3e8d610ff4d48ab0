"""verl's task runner, which makes our trainer."""

from __future__ import annotations

from typing import Any

from lightning_verl.job import Job


def make(job: Job) -> Any:
    """A task runner for `run_ppo`: verl's own, once our trainer is registered."""
    import ray

    from lightning_verl.trainer import private

    plain = private.task_runner()

    class TaskRunner(plain):  # type: ignore[misc, valid-type]  # verl has no types
        """verl's own, with our trainer, and the run's gateway at hand."""

        def run(self, config: Any) -> None:
            from lightning_verl.trainer import holder, trainer
            from lightning_verl.trainer.gateway import Gateway

            held = holder.hold(ray, job)
            try:
                with Gateway(job) as gateway:
                    trainer.register(job, gateway)
                    super().run(config)
            finally:
                del held

    return ray.remote(num_cpus=1)(TaskRunner)
