"""Findings about accelerators: torch's build, the driver, the GPUs, and attention."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.version import Version

from lightning_core.findings import Finding, Verdict
from lightning_verl.environment import Report, TorchReport, mend
from lightning_verl.machine import Driver

_GIB: Final = 1024**3
_FLASH: Final = "2.8.3"
"""The release of flash-attn that verl's own extras name."""
_NEEDED_CAPABILITY: Final = (7, 5)
"""The least that vLLM's builds have kernels for."""
_BF16_CAPABILITY: Final = (8, 0)


def examine(report: Report, python: Path, driver: Driver | None) -> Iterator[Finding]:
    """The findings.

    Args:
        report: what the environment has, torch included.
        python: its Python.
        driver: the machine's driver.
    """
    torch = report.torch
    if torch is None:
        return
    if torch.error:
        if report.versions.get("torch"):
            yield Finding(
                "import of torch there", Verdict.BAD, torch.error, mend(python, report, "torch")
            )
        return
    yield _driver(report, driver)
    yield from _cuda(report, torch, python, driver)
    for number, device in enumerate(torch.devices):
        bf16 = device.capability >= _BF16_CAPABILITY
        found = (
            f"{device.name}, {device.memory / _GIB:.0f} GiB, compute capability {_dotted(device.capability)},"
            f" {'bf16' if bf16 else 'no bf16'}"
        )
        if device.capability < _NEEDED_CAPABILITY:
            yield Finding(
                f"GPU {number}",
                Verdict.BAD,
                f"{found}; vLLM needs {_dotted(_NEEDED_CAPABILITY)}",
                "leave it out with CUDA_VISIBLE_DEVICES, or train on another machine",
            )
        elif not bf16:
            yield Finding(
                f"GPU {number}",
                Verdict.OPTIONAL,
                f"{found}, which verl computes in unless told otherwise",
                "--set actor_rollout_ref.rollout.dtype=float32"
                " --set actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
            )
        else:
            yield Finding(f"GPU {number}", Verdict.GOOD, found)
    yield _attention(report, torch, python)


def wheel(report: Report, torch: TorchReport) -> str:
    """The name that flash-attn's release for this environment has, where its project has made one."""
    release = Version(report.versions["torch"] or "0")
    python = "cp" + "".join(report.python.split(".")[:2])
    cuda = (torch.cuda or "12").split(".")[0]
    abi = "TRUE" if torch.abi else "FALSE"
    return (
        f"flash_attn-{_FLASH}+cu{cuda}torch{release.major}.{release.minor}cxx11abi{abi}-{python}-{python}"
        f"-linux_{report.machine}.whl"
    )


def _driver(report: Report, driver: Driver | None) -> Finding:
    if driver is None:
        return Finding(
            "NVIDIA driver",
            Verdict.OPTIONAL,
            "none that `nvidia-smi` shows",
            "on this machine train with --set platform=cpu, which is for tests and proofs"
            if report.cpu
            else "train on a machine that has one; for tests and proofs on processors:"
            " lightning-core setup verl --venv .venv-verl-cpu --cuda cpu",
        )
    return Finding(
        "NVIDIA driver", Verdict.GOOD, f"{driver.release}, runs CUDA up to {driver.cuda}"
    )


def _cuda(
    report: Report, torch: TorchReport, python: Path, driver: Driver | None
) -> Iterator[Finding]:
    abi = f"C++ ABI {'new' if torch.abi else 'old'}"
    venv = python.parent.parent
    if torch.cuda is None:
        if driver is None:
            yield Finding("torch's build", Verdict.GOOD, f"without CUDA, {abi}")
            return
        yield Finding(
            "torch's build",
            Verdict.OPTIONAL,
            f"without CUDA, {abi}, and this machine has a GPU",
            "lightning-core setup verl --venv .venv-verl-cuda; then --set python=.venv-verl-cuda/bin/python",
        )
        return
    tried = "installed and imported" if torch.cuda.startswith("13.") else "not installed"
    yield Finding(
        "releases for CUDA",
        Verdict.OPTIONAL,
        f"those of verl's own extra `vllm`; by us {tried}, and not yet tried on a GPU",
    )
    found = f"for CUDA {torch.cuda}, {abi}"
    if torch.available:
        yield Finding("torch's build", Verdict.GOOD, f"{found}; {len(torch.devices)} GPUs")
    elif driver is None:
        yield Finding("torch's build", Verdict.OPTIONAL, f"{found}, and there is no driver here")
    elif Version(driver.cuda).major < Version(torch.cuda).major:
        yield Finding(
            "torch's build",
            Verdict.BAD,
            f"{found}, and the driver {driver.release} runs CUDA up to {driver.cuda}",
            f"update the driver, or lightning-core setup verl --venv {shlex.quote(str(venv) + '-12.9')} --cuda 12.9",
        )
    else:
        yield Finding(
            "torch's build",
            Verdict.BAD,
            f"{found}, and it can use no GPU: {torch.why or 'it does not say why'}",
            "see whether CUDA_VISIBLE_DEVICES hides them, and start a container with --gpus all",
        )


def _attention(report: Report, torch: TorchReport, python: Path) -> Finding:
    if report.flash_attn:
        return Finding("flash-attn", Verdict.GOOD, f"{report.flash_attn}, used")
    remove = shlex.join([str(python), "-m", "pip", "uninstall", "-y", "flash-attn"])
    if report.flash_attn_error:
        return Finding(
            "flash-attn",
            Verdict.BAD,
            f"cannot be imported: {report.flash_attn_error}",
            f"{remove}; the wheel for this environment would be {wheel(report, torch)}",
        )
    if torch.cuda is None:
        return Finding(
            "flash-attn", Verdict.GOOD, "not installed; attention is torch's own, `sdpa`"
        )
    name = wheel(report, torch)
    return Finding(
        "flash-attn",
        Verdict.OPTIONAL,
        f"not installed; attention is torch's own, `sdpa`. The wheel would be {name}",
        f"{shlex.join([str(python), '-m', 'pip', 'install', _address(name)])}, where flash-attention's project has released"
        f" that one: it does so for some releases of torch only; else it is built from source, which needs nvcc:"
        f" {shlex.join([str(python), '-m', 'pip', 'install', '--no-build-isolation', f'flash-attn=={_FLASH}'])}",
    )


def _address(name: str) -> str:
    return f"https://github.com/Dao-AILab/flash-attention/releases/download/v{_FLASH}/{name.replace('+', '%2B')}"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
