"""The recipe of the verl environment, for `lightning-core setup verl`: the only one that there is."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from lightning_core.errors import UsageError
from lightning_core.recipe import Recipe, Step
from lightning_verl.environment import OURS, environ, look
from lightning_verl.machine import driver
from lightning_verl.stack import (
    CPU_TORCH,
    CPU_VLLM,
    CUDA_VLLM,
    MEND,
    OVERRIDES,
    PYTHON,
    PYTHONS,
    TORCH_INDEX,
    VERL,
    VLLM_NAME,
    constraints,
)

CPU: Final = "cpu"
"""The variant without CUDA."""
VARIANTS: Final = ("12.9", "13.0", CPU)
"""What `--cuda` may be."""
_SECONDS: Final = 60.0
_NOT_TRIED: Final = {
    "12.9": "the releases for CUDA are those of verl's own extra `vllm`; with CUDA 12.9 this has not been tried by us",
    "13.0": "the releases for CUDA are those of verl's own extra `vllm`; by us they were installed, but not yet tried on a GPU",
}


def recipe(venv: Path, *, python: Path, variant: str | None) -> Recipe:
    """How the environment is made, or completed where it is there in part.

    Args:
        venv: its folder.
        python: the Python to make it with.
        variant: one of `VARIANTS`; None for the newest that the machine's driver runs, or `cpu` without one.

    Raises:
        UsageError: it cannot be made here, or not with that Python or for that variant.
    """
    if platform.system() != "Linux":
        raise UsageError(
            f"setup verl: verl, vLLM and Ray run together on Linux only, and this is {platform.system()};"
            " the backend `local` runs everywhere"
        )
    chosen, notes = _choose(variant)
    venv = venv.expanduser().absolute()
    there = venv / "bin" / "python"
    started = there.exists()
    release = _release_of(there if started else python)
    if release not in PYTHONS:
        known = " or ".join(".".join(map(str, each)) for each in PYTHONS)
        which = f"{str(venv)!r} has" if started else f"`--python` {str(python)!r} is"
        raise UsageError(
            f"setup verl: verl needs Python {known}, but {which} Python {'.'.join(map(str, release))};"
            f" give {'another folder and ' if started else ''}`--python python{'.'.join(map(str, PYTHON))}`"
        )
    if started:
        _refuse_a_mixture(there, chosen)
    if release != PYTHON:
        notes += (f"the tests run in Python {'.'.join(map(str, PYTHON))} only",)
    making = Step("an environment of its own", (str(python), "-m", "venv", str(venv)))
    mending = Step("what was installed by halves is forgotten", (str(there), "-I", str(MEND)))
    steps = (
        *(() if started and _has_pip(there) else (making,)),
        *((mending,) if started else ()),
        *_installing(there, chosen),
        Step(
            "lightning-core and lightning-verl, as they are here",
            (*_uv(there), *(part for name in OURS for part in _source(name))),
        ),
    )
    cpu = " --set platform=cpu" if chosen == CPU else ""
    return Recipe(
        python=there,
        variant=chosen,
        notes=notes,
        steps=steps,
        next=f"lightning-core doctor --backend verl --python {shlex.quote(str(there))}, then"
        f" lightning-core optimize … --backend verl --set python={shlex.quote(str(there))}{cpu}",
    )


def _refuse_a_mixture(python: Path, variant: str) -> None:
    """Both builds of vLLM have the same files, and each its own torch."""
    there = look(python)
    if there.versions.get("vllm") is None and not there.cpu:
        return
    if there.cpu != (variant == CPU):
        raise UsageError(
            f"setup verl: the environment of {str(python)!r} is for {'processors' if there.cpu else 'CUDA'}, and this is for"
            f" {'processors' if variant == CPU else f'CUDA {variant}'}; give another folder with `--venv`, or the fitting `--cuda`"
        )


def _choose(variant: str | None) -> tuple[str, tuple[str, ...]]:
    """The variant, and what is to be said about it."""
    if variant is not None and variant not in VARIANTS:
        raise UsageError(
            f"`--cuda` {variant!r}: expected one of {', '.join(f'`{each}`' for each in VARIANTS)}"
        )
    if variant == CPU:
        return CPU, ("takes about 4 GB",)
    size = "takes about 10 GB"
    if variant is not None:
        return variant, (_NOT_TRIED[variant], size)
    found = driver()
    if found is None:
        return CPU, (
            "`nvidia-smi` shows no driver, so this is for processors: for tests and proofs; give `--cuda 13.0` to install"
            " for GPUs all the same",
            "takes about 4 GB",
        )
    runs = tuple(int(part) for part in found.cuda.split(".")[:2])
    said = f"the driver {found.release} runs CUDA up to {found.cuda}"
    if runs >= (13, 0):
        return "13.0", (f"{said}, so this is for CUDA 13.0", _NOT_TRIED["13.0"], size)
    if runs >= (12, 0):
        older = (
            "" if runs >= (12, 9) else "; an older driver of 12 may run it, a newer one is better"
        )
        return "12.9", (f"{said}, so this is for CUDA 12.9{older}", _NOT_TRIED["12.9"], size)
    raise UsageError(
        f"setup verl: {said}, and vLLM {CUDA_VLLM} is built for CUDA 12.9 and 13.0; update the driver, or give `--cuda cpu`"
    )


def _installing(python: Path, variant: str) -> tuple[Step, ...]:
    pip = (str(python), "-m", "pip", "install")
    uv = Step("uv, which installs the rest", (*pip, "uv>=0.9"))
    held = ("--constraint", str(constraints(cpu=variant == CPU)))
    if variant == CPU:
        return (
            uv,
            # pip, which heeds a folder of wheels where one is configured; torch alone, so that PyTorch's index is asked once.
            Step(
                "torch",
                (*pip, "--no-deps", CPU_TORCH, "--extra-index-url", f"{TORCH_INDEX}/cpu"),
            ),
            Step(
                "vLLM for processors, verl and Ray",
                (
                    *_uv(python), *held, "--override", str(OVERRIDES), CPU_VLLM, f"verl[verl-core]=={VERL[-1]}",
                ),
            ),
            Step("the name `vllm` for it", (*_uv(python), "--no-deps", str(VLLM_NAME))),
        )  # fmt: skip
    # The index's own builds of this torch and vLLM are for CUDA 13.0.
    built = (
        (
            "--torch-backend",
            "cu129",
            "--extra-index-url",
            f"https://wheels.vllm.ai/{CUDA_VLLM}/cu129",
        )
        if variant == "12.9"
        else ()
    )
    # cupy takes weights to devices that are vLLM's alone; verl's extra is for CUDA 13 only.
    verl = ("verl[vllm]", "cupy-cuda12x") if built else ("verl[vllm,cupy-cu130]",)
    everything = (*_uv(python), *held, *built, f"{verl[0]}=={VERL[-1]}", *verl[1:])
    return (uv, Step(f"torch, vLLM, verl and Ray for CUDA {variant}", everything))


def _uv(python: Path) -> tuple[str, ...]:
    return (str(python.parent / "uv"), "pip", "install", "--python", str(python))


def _release_of(python: Path) -> tuple[int, int]:
    found = shutil.which(str(python))
    try:
        if found is None:
            raise FileNotFoundError("there is no such program")
        done = subprocess.run(
            [found, "-I", "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True, text=True, timeout=_SECONDS, check=True, env=environ(),
        )  # fmt: skip
        major, minor = done.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"setup verl: {str(python)!r} does not run as a Python: {error}; give another with `--python`, or with `--venv`"
            " where it is an environment's"
        ) from error


def _has_pip(python: Path) -> bool:
    done = subprocess.run(
        [str(python), "-I", "-m", "pip", "--version"], capture_output=True, timeout=_SECONDS
    )
    return done.returncode == 0


class _Directory(msgspec.Struct, frozen=True):
    editable: bool = False


class _Version(msgspec.Struct, frozen=True):
    vcs: str
    commit_id: str


class _Origin(msgspec.Struct, frozen=True):
    """`direct_url.json`: where a distribution came from that came from no index."""

    url: str
    dir_info: _Directory | None = None
    vcs_info: _Version | None = None
    subdirectory: str = ""


def _source(name: str) -> tuple[str, ...]:
    """What to install so that a distribution is there as it is here."""
    here = importlib.metadata.distribution(name)
    text = here.read_text("direct_url.json")
    if text is None:
        return (f"{name}=={here.version}",)
    origin = msgspec.json.decode(text, type=_Origin)
    inside = f"#subdirectory={origin.subdirectory}" if origin.subdirectory else ""
    if origin.vcs_info is not None:
        version = origin.vcs_info
        return (f"{name} @ {version.vcs}+{origin.url}@{version.commit_id}{inside}",)
    if origin.dir_info is None:
        return (f"{name} @ {origin.url}{inside}",)
    folder = Path(unquote(urlsplit(origin.url).path))
    if not folder.is_dir():
        raise UsageError(
            f"setup verl: {name} was installed here from {str(folder)!r}, which is gone; install it here again first"
        )
    return ("-e", str(folder)) if origin.dir_info.editable else (str(folder),)
