"""The list of models: answered from the policy in train and val mode, and never recorded as a Call."""

from __future__ import annotations

from typing import Any

import msgspec

from lightning_core.gateway.refusal import Refusal
from lightning_core.wire import ServedPolicy

SUFFIX = "/models"


def is_models_path(path: str) -> bool:
    """Whether `path` lists models or names one."""
    return path.endswith(SUFFIX) or f"{SUFFIX}/" in path


def models_reply(path: str, policy: ServedPolicy | None) -> bytes:
    """The policy's models, or the one that `path` names, as JSON.

    Raises:
        Refusal: there is no policy, or it has no such model.
    """
    names = dict.fromkeys(endpoint.model for endpoint in policy.endpoints) if policy else {}
    _, found, name = path.partition(f"{SUFFIX}/")
    if not found:
        data = [_model(model) for model in names]
        return msgspec.json.encode({"object": "list", "data": data})
    if name not in names:
        known = ", ".join(f"`{model}`" for model in names) or "none"
        raise Refusal(404, "unknown_model", f"model `{name}` is not served; served: {known}")
    return msgspec.json.encode(_model(name))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "lightning-core"}
