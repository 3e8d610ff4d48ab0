"""verl's replicas of vLLM, as the gateway is told of them."""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Final

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint
from lightning_core.errors import EngineError
from lightning_core.wire import ServedPolicy
from lightning_verl.job import Job

_SECONDS: Final = 60
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy that the environment names is not for replicas."""


def policy_of(
    job: Job, replicas: tuple[Endpoint, ...], version: int, *, tools: bool
) -> ServedPolicy:
    """What the gateway is told."""
    gives = {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.STREAM_TOKEN_IDS}
    return ServedPolicy(
        version=version,
        endpoints=replicas,
        capabilities=frozenset(gives | ({Capability.TOOLS} if tools else set())),
        train=job.train,
        val=job.val,
    )


def endpoints(addresses: list[str]) -> tuple[Endpoint, ...]:
    """The replicas' endpoints, with the name by which vLLM serves the model.

    Raises:
        EngineError: a replica does not answer.
    """
    found = []
    for address in addresses:
        base = f"http://{address}/v1"
        found.append(Endpoint(base_url=base, model=_asked(f"{base}/models")["data"][0]["id"]))
    return tuple(found)


def check_alive(replicas: tuple[Endpoint, ...]) -> None:
    """Refuse to go on without vLLM.

    Raises:
        EngineError: a replica has died, or does not answer.
    """
    for replica in replicas:
        _asked(replica.base_url.removesuffix("/v1") + "/health")


def _asked(url: str) -> Any:
    try:
        with _direct.open(url, timeout=_SECONDS) as response:
            body = response.read()
        return json.loads(body) if body else None
    except (OSError, ValueError, LookupError) as error:
        raise EngineError(
            f"vLLM at {url}: {type(error).__name__}: {error}; it has died, or hangs: the log says of what, such as too little"
            " memory (`actor_rollout_ref.rollout.gpu_memory_utilization`). Once it is mended, go on with `--resume`"
        ) from error


def tools(config: Any) -> bool:
    """Whether vLLM parses tool calls."""
    wanted = config.actor_rollout_ref.rollout.get("engine_kwargs", {}).get("vllm", {}) or {}
    return bool(wanted.get("enable_auto_tool_choice") and wanted.get("tool_call_parser"))
