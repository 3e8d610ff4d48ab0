"""Names of verl's and Ray's that are not part of their documented interfaces. Each is here, and only here, with a check.

`check` fails by name where a release has changed one, before anything is started.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import MutableMapping
from typing import Any, Final

from lightning_core.errors import LightningError

_NAMES: Final = {
    "verl.trainer.main_ppo": ("run_ppo", "TaskRunnerV1"),
    "verl.trainer.ppo.v1.trainer_base": ("register_trainer", "get_trainer_cls"),
    "verl.experimental.agent_loop.agent_loop": (
        "AgentLoopBase",
        "AgentLoopMetrics",
        "AgentLoopOutput",
    ),
    "verl.utils.config": ("validate_config",),
    "verl.trainer.ppo.utils": ("need_critic", "need_reference_policy"),
    "verl.plugin.platform.platform_manager": ("PlatformRegistry",),
    "verl.workers.utils.padding": ("response_to_nested",),
    "transfer_queue": ("kv_batch_get", "kv_batch_put", "kv_clear"),
}
"""Modules, and what is taken from them."""
_METHODS: Final = {
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer"): (
        "on_init_end", "on_sample_end", "on_step_end", "_rollout_server_managers",
        # An advantage for each reply, and updates that do not depend on the number of rows, cannot be had from verl's
        # registries: an estimator is given neither rollouts nor replies.
        "_balance_batch", "_compute_advantage",
    ),
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer"): (
        "sample", "_sync_metadata_from_transfer_queue", "_wait_for_next_poll",
    ),
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBufferAsync"): ("sample",),
    ("verl.workers.rollout.llm_server", "LLMServerManager"): ("get_addresses",),
    ("verl.single_controller.ray.base", "ResourcePoolManager"): ("get_n_gpus",),
}  # fmt: skip
"""Classes, and the methods of theirs that are called or overridden."""
_SET: Final = {("verl.workers.rollout.llm_server", "LLMServerManager"): ("server_handles",)}
"""Classes, and the attributes that their methods set."""


class ChangedError(LightningError):
    """verl or Ray is no longer what we joined it at."""


def check() -> None:
    """Refuse a verl in which something is missing that we use.

    Raises:
        ChangedError: with the name.
    """
    for module, names in _NAMES.items():
        for name in names:
            _find(module, name)
    for (module, name), methods in _METHODS.items():
        found = _find(module, name)
        for method in methods:
            if not callable(getattr(found, method, None)):
                raise _changed(f"{module}.{name}.{method}", "it is not there")
    for (module, name), attributes in _SET.items():
        source = inspect.getsource(_find(module, name))
        for attribute in attributes:
            if f"self.{attribute} = " not in source:
                raise _changed(f"{module}.{name}.{attribute}", "no method sets it")
    task_runner()


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _changed(f"{module}.{name}", str(error)) from error


def task_runner() -> type[Any]:
    """verl's `TaskRunnerV1` as a class that can be inherited from: Ray makes an actor of it, which cannot."""
    from verl.trainer.main_ppo import TaskRunnerV1

    metadata = getattr(TaskRunnerV1, "__ray_metadata__", None)
    plain = getattr(metadata, "modified_class", None)
    if not inspect.isclass(plain) or not callable(getattr(plain, "run", None)):
        raise _changed("TaskRunnerV1.__ray_metadata__.modified_class", "it is no class with `run`")
    return plain


def let_separate_trainer_log() -> None:
    """verl 0.9.1's trainer with devices for vLLM alone hands its logger a `flush`, which ends it with a TypeError."""
    module = importlib.import_module("verl.trainer.ppo.v1.trainer_separate_async")
    module.logger = _Logger(module.logger, {})  # type: ignore[attr-defined]  # verl has no types


class _Logger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, Any]:
        kwargs.pop("flush", None)
        return msg, kwargs


def config_folder() -> str:
    """The folder of verl's own configuration files."""
    import verl.trainer

    file = inspect.getfile(verl.trainer)
    return str(importlib.import_module("pathlib").Path(file).parent / "config")


def _changed(name: str, how: str) -> ChangedError:
    return ChangedError(
        f"`{name}` is not what lightning-verl joins verl at: {how}; install the release of verl that docs/verl.md names"
    )
