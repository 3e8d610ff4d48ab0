"""The job within Ray: held by a named actor, since verl prints its configuration and Ray shows environments."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lightning_verl.job import Job

_NAME: Final = "lightning_core_job"


class _Holder:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self) -> bytes:
        return self._data


def hold(ray: Any, job: Job) -> Any:
    """Start the actor; it lives as long as what this returns."""
    actor = ray.remote(_Holder).options(name=_NAME, num_cpus=0)
    return actor.remote(msgspec.json.encode(job))


async def job_of(ray: Any) -> Job:
    """The job, in any of the trainer's processes."""
    data = await ray.get_actor(_NAME).get.remote()
    return msgspec.json.decode(data, type=Job)
