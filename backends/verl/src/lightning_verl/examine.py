"""Findings about the verl environment, for `lightning-core doctor --backend verl`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from lightning_core.errors import UsageError
from lightning_core.findings import Finding, Verdict
from lightning_verl import gpu, machine
from lightning_verl.environment import (
    NEEDED,
    OURS,
    Report,
    complete_with,
    find_python,
    install_with,
    look,
    mend,
    misfits,
)
from lightning_verl.stack import PYTHON, PYTHONS, VERL, tested

_PLUGIN: Final = "lightning_verl.trainer.platform_cpu"
_SHOWN: Final = (
    "verl",
    "torch",
    "vllm",
    "ray",
    "transformers",
    "tensordict",
    "transferqueue",
    "peft",
)
_REQUIRED: Final = {*NEEDED, "tensordict", "transferqueue", "peft"}


def examine(options: Mapping[str, str]) -> Iterator[Finding]:
    """Every finding about the environment, and about the machine as far as verl needs it.

    Args:
        options: `python` names the environment's Python; without it, it is looked for as a run does.
    """
    try:
        python = find_python(options.get("python"))
        report = look(python, torch=True)
    except UsageError as error:
        yield Finding(
            "verl environment",
            Verdict.BAD,
            str(error),
            "lightning-core setup verl --venv .venv-verl",
        )
        yield from machine.examine()
        return
    yield Finding("verl environment", Verdict.GOOD, str(python))
    yield from findings(report, python, machine.driver())
    yield from machine.examine()


def findings(report: Report, python: Path, driver: machine.Driver | None) -> Iterator[Finding]:
    """What is to be said about an environment."""
    yield _python(report, python)
    yield from _versions(report, python)
    yield from _ours(report, python)
    yield from gpu.examine(report, python, driver)


def _python(report: Report, python: Path) -> Finding:
    release = tuple(int(part) for part in report.python.split(".")[:2])
    meant = ".".join(map(str, PYTHON))
    if release == PYTHON:
        return Finding("its Python", Verdict.GOOD, report.python)
    again = f"lightning-core setup verl --venv .venv-verl --python python{meant}"
    if release in PYTHONS:
        return Finding(
            "its Python",
            Verdict.OPTIONAL,
            f"{report.python}; the tests run in {meant}",
            f"to be on the tested side: {again}",
        )
    known = " or ".join(".".join(map(str, each)) for each in PYTHONS)
    return Finding("its Python", Verdict.BAD, f"{report.python}; verl needs {known}", again)


def _versions(report: Report, python: Path) -> Iterator[Finding]:
    wrong = {misfit.name: misfit for misfit in reversed(misfits(report))}
    meant = tested(cpu=report.cpu)
    for name in (*_SHOWN, *(name for name in wrong if name not in _SHOWN)):
        got = report.versions.get(name)
        what = f"{name} there"
        if not got:
            if name in _REQUIRED or name in wrong:
                yield Finding(what, Verdict.BAD, "missing", complete_with(python, report))
        elif name == "verl" and got not in VERL:
            yield Finding(
                what,
                Verdict.BAD,
                f"{got}; expected {' or '.join(VERL)}: the trainer is joined where others may differ",
                install_with(python, f"verl=={VERL[-1]}"),
            )
        elif name in wrong:
            misfit = wrong[name]
            yield Finding(
                what,
                Verdict.BAD,
                f"{got}; expected {misfit.expected}, which {misfit.by} needs",
                mend(python, report, name),
            )
        elif _same(got, meant.get(name)):
            yield Finding(what, Verdict.GOOD, got)
        else:
            yield Finding(
                what,
                Verdict.OPTIONAL,
                f"{got}, which may work; the recipe has {meant.get(name)}",
                mend(python, report, name),
            )


def _same(got: str, meant: str | None) -> bool:
    """Whether it is that release, of whatever build."""
    return meant is not None and got.split("+")[0] == meant.split("+")[0]


def _ours(report: Report, python: Path) -> Iterator[Finding]:
    for name in OURS:
        here, there = importlib.metadata.version(name), report.versions.get(name)
        if there == here:
            yield Finding(f"{name} there", Verdict.GOOD, f"{there}, as here")
        else:
            yield Finding(
                f"{name} there",
                Verdict.BAD,
                f"{there or 'missing'}; expected {here}, as here",
                complete_with(python, report),
            )
    if not report.versions.get("lightning-verl"):
        return
    if _PLUGIN in report.plugins:
        yield Finding("entry point verl.plugins", Verdict.GOOD, _PLUGIN)
    else:
        yield Finding(
            "entry point verl.plugins",
            Verdict.BAD,
            f"expected `{_PLUGIN}` but got {', '.join(report.plugins) or 'none'}; it is of another state of lightning-verl",
            complete_with(python, report),
        )
