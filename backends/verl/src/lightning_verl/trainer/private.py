"""Names of verl's and Ray's that are not part of their documented interfaces. Each is here, and only here, with a check.

`check` fails by name where a release has changed one, before anything is started.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Final

from lightning_core.errors import LightningError

_ATTRIBUTES: Final = {
    "verl.trainer.main_ppo": ("run_ppo", "TaskRunnerV1"),
    "verl.trainer.ppo.v1.trainer_base": ("register_trainer",),
    "verl.trainer.ppo.v1.trainer_sync": ("PPOTrainerSync",),
    "verl.experimental.agent_loop.agent_loop": (
        "AgentLoopBase",
        "AgentLoopMetrics",
        "AgentLoopOutput",
    ),
    "verl.utils.config": ("validate_config",),
    "verl.trainer.ppo.utils": ("need_critic", "need_reference_policy"),
    "verl.plugin.platform.platform_manager": ("PlatformRegistry",),
    "verl.workers.rollout.llm_server": ("LLMServerManager",),
}
_HOOKS: Final = ("on_init_end", "on_sample_end", "on_step_end")


class ChangedError(LightningError):
    """verl or Ray is no longer what we joined it at."""


def check() -> None:
    """Refuse a verl in which something is missing that we use.

    Raises:
        ChangedError: with the name.
    """
    for module, names in _ATTRIBUTES.items():
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            raise _changed(module, str(error)) from error
        for name in names:
            if not hasattr(found, name):
                raise _changed(f"{module}.{name}", "it is not there")
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.workers.rollout.llm_server import LLMServerManager

    for hook in _HOOKS:
        if not callable(getattr(PPOTrainerSync, hook, None)):
            raise _changed(f"PPOTrainerSync.{hook}", "it is not there")
    if not callable(getattr(LLMServerManager, "get_addresses", None)):
        raise _changed("LLMServerManager.get_addresses", "it is not there")
    task_runner()


def task_runner() -> type[Any]:
    """verl's `TaskRunnerV1` as a class that can be inherited from: Ray makes an actor of it, which cannot."""
    from verl.trainer.main_ppo import TaskRunnerV1

    metadata = getattr(TaskRunnerV1, "__ray_metadata__", None)
    plain = getattr(metadata, "modified_class", None)
    if not inspect.isclass(plain) or not callable(getattr(plain, "run", None)):
        raise _changed("TaskRunnerV1.__ray_metadata__.modified_class", "it is no class with `run`")
    return plain


def config_folder() -> str:
    """The folder of verl's own configuration files."""
    import verl.trainer

    file = inspect.getfile(verl.trainer)
    return str(importlib.import_module("pathlib").Path(file).parent / "config")


def _changed(name: str, how: str) -> ChangedError:
    return ChangedError(
        f"`{name}` is not what lightning-verl joins verl at: {how}; install the release of verl that docs/verl.md names"
    )
