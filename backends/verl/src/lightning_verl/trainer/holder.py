"""The job within Ray: held by a named actor, since it has a token. verl prints its configuration, and Ray keeps environments,
what a class closes over and what an actor is made with; it keeps nothing of what a method is called with."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lightning_verl.job import Job

_NAME: Final = "lightning_core_job"
_SECONDS: Final = 30


class _Holder:
    def __init__(self) -> None:
        self._data = b""
        self._fault = ""

    def fail(self, fault: str) -> None:
        self._fault = fault

    def fault(self) -> str:
        return self._fault

    def put(self, data: bytes) -> None:
        self._data = data

    def get(self) -> bytes:
        return self._data


def hold(ray: Any, job: Job) -> Any:
    """Start the actor; it lives as long as what this returns."""
    actor = ray.remote(_Holder).options(name=_NAME, num_cpus=0).remote()
    ray.get(actor.put.remote(msgspec.json.encode(job)))
    return actor


def fail(ray: Any, fault: str) -> None:
    """Leave word of what ends the trainer."""
    ray.get(ray.get_actor(_NAME).fail.remote(fault), timeout=_SECONDS)


def fault_of(ray: Any, actor: Any) -> str:
    """The word that was left; empty where there is none."""
    return str(ray.get(actor.fault.remote(), timeout=_SECONDS))


def held(ray: Any) -> Job:
    """The job, in a process of the trainer's that may block."""
    return msgspec.json.decode(ray.get(ray.get_actor(_NAME).get.remote()), type=Job)


async def job_of(ray: Any) -> Job:
    """The job, in a process of the trainer's that may not."""
    return msgspec.json.decode(await ray.get_actor(_NAME).get.remote(), type=Job)
