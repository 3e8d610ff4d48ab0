"""verl's replicas of vLLM, as the gateway is told of them."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint
from lightning_core.errors import EngineError
from lightning_core.wire import ServedPolicy
from lightning_verl.job import Job

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
        try:
            with _direct.open(f"{base}/models", timeout=60) as response:
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
