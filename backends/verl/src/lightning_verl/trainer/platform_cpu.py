"""The platform `lightning_cpu`: verl's own trainer on processors, for tests and proofs. Registered with verl by name.

verl loads this module in each of its processes, so it does nothing but register a class, until `VERL_PLATFORM` asks for
it; and let verl's critic do without flash-attn where there is none, on any platform.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from lightning_verl.job import CPU_PLATFORM
from lightning_verl.trainer import attention


class _Device(types.ModuleType):
    """`torch.cpu`, and what verl asks of `torch.cuda` to report: no memory of a device is ever in use."""

    @staticmethod
    def _none(*_: object, **__: object) -> None:
        return None

    @staticmethod
    def _zero(*_: object, **__: object) -> int:
        return 0

    @staticmethod
    def get_device_name(*_: object) -> str:
        """What is computed on."""
        return "CPU"

    @staticmethod
    def mem_get_info(*_: object) -> tuple[int, int]:
        """Free and all memory of this machine, bytes."""
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page

    @staticmethod
    def get_rng_state(*_: object) -> torch.Tensor:
        """The state of torch's generator."""
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_: object) -> None:
        """Set the state of torch's generator."""
        torch.set_rng_state(state)

    max_memory_allocated = max_memory_reserved = memory_allocated = memory_reserved = _zero
    empty_cache = ipc_collect = reset_peak_memory_stats = _none
    manual_seed = manual_seed_all = set_device = _none

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


_device = _Device("lightning_verl_cpu_device")


class _Number(str):
    """The device. It reads as its number where verl makes `cpu:NUMBER` of it."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return "0"


@PlatformRegistry.register(platform=CPU_PLATFORM)
class CPUPlatform(PlatformBase):  # type: ignore[misc]  # verl has no types
    """Processors. Each worker sees one device, and Ray is told of accelerators that stand for them."""

    device_name = "cpu"
    vendor_name = "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        """What verl uses in place of `torch.cuda`."""
        return _device

    def is_available(self) -> bool:
        """Always: there is a processor."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never by itself: it has to be asked for."""
        return False

    def current_device(self) -> Any:
        """The device."""
        return _Number("cpu")

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Nothing: there is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing: work is done when it is asked for."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Nothing: there is no allocator to set."""

    def empty_cache(self) -> None:
        """Nothing: there is no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """None."""
        return (None, None)

    def communication_backend_name(self) -> str:
        """Gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """As for CUDA: Ray sets it for what it takes for a GPU."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Nothing is profiled."""
        yield

    def profiler_start(self) -> None:
        """Nothing is profiled."""

    def profiler_stop(self) -> None:
        """Nothing is profiled."""

    def ray_resource_name(self) -> str:
        """verl counts `GPU` and `NPU` alone; Ray takes a number of GPUs on trust."""
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        """As for a GPU."""
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        """None."""
        return []

    def is_ipc_supported(self) -> bool:
        """Weights go through shared memory."""
        return False

    def cudart(self) -> None:
        """There is none."""
        return None


def _accept_gloo_twice() -> None:
    """verl asks for the backends `cpu:gloo` and `DEVICE:BACKEND`; here both are the same, which torch refuses."""
    import torch.distributed

    inner = torch.distributed.init_process_group

    @functools.wraps(inner)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return inner("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def _share_out_from_main_memory() -> None:
    """FSDP1 refuses to share out weights that lie in main memory, since NCCL could not. Gloo can."""
    from torch.distributed.fsdp import _init_utils

    name = "_check_module_states_for_sync_module_states"
    if not hasattr(_init_utils, name):
        raise RuntimeError(
            f"platform `cpu`: `torch.distributed.fsdp._init_utils.{name}` is not there in torch {torch.__version__}; install"
            " the release of torch that docs/verl.md names"
        )
    setattr(_init_utils, name, lambda states: None)


def _pin_nothing() -> None:
    """FSDP pins the memory of what it offloads, as it does a reference policy. Without an accelerator torch refuses to."""

    def pin_memory(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return tensor

    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]  # torch has no other way to ask


if os.environ.get("VERL_PLATFORM") == CPU_PLATFORM:
    _accept_gloo_twice()
    _share_out_from_main_memory()
    _pin_nothing()
    attention.take_configured()
elif importlib.util.find_spec("flash_attn") is None:
    attention.take_configured()
