"""Run each plugin's tests on the oldest and the newest framework releases that it supports; `make compat`.

Each has an environment of its own under `.compat/`, kept for the next time, and a log beside it. The oldest are the lowest
releases within the ranges of the plugin's extra `instruments`; the newest are what pip takes without `constraints.txt`. What
only the tests need of a framework's family is the plugin's extra `test`, where it has one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
import venv
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".compat"
RUNNER = ("pytest", "pytest-asyncio", "pytest-timeout")
"""What the settings of pytest in `pyproject.toml` need."""

Which = Literal["oldest", "newest"]


@dataclass(frozen=True)
class Outcome:
    """What one plugin's tests did on one set of releases."""

    plugin: str
    which: Which
    versions: Mapping[str, str]
    """The framework's packages and their versions; empty where the environment could not be made."""
    counts: Mapping[str, int]
    """How many tests `passed`, `failed` and were `skipped`."""
    status: int
    """The exit status of what ended it; 0 where all is well."""
    log: Path


def plugins() -> dict[str, Path]:
    """The folders of the plugins by name."""
    return {path.parent.name: path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))}


def framework(plugin: Path) -> list[Requirement]:
    """The framework's packages and the releases of them that a plugin says it supports."""
    project = tomllib.loads((plugin / "pyproject.toml").read_text("utf-8"))["project"]
    return [Requirement(line) for line in project["optional-dependencies"]["instruments"]]


def lowest(requirement: Requirement) -> Version:
    """The lowest release within a requirement's range that pip finds for this Python.

    Raises:
        RuntimeError: there is none.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "--json", requirement.name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = requirement.specifier.filter(map(Version, json.loads(done.stdout)["versions"]))
    try:
        return min(found)
    except ValueError:
        raise RuntimeError(
            f"no release of `{requirement.name}` lies within `{requirement}`"
        ) from None


def check(plugin: Path, which: Which) -> Outcome:
    """Make the environment and run the plugin's tests in it."""
    folder = ENVIRONMENTS / f"{plugin.name}-{which}"
    python, log, report = folder / "bin/python", folder.with_suffix(".log"), folder / "report.xml"
    wanted = framework(plugin)
    if not python.exists():
        venv.create(folder, with_pip=True)
    report.unlink(missing_ok=True)
    if which == "oldest":
        pins, options = [f"{each.name}=={lowest(each)}" for each in wanted], []
    else:
        pins, options = [], ["--upgrade", "--upgrade-strategy", "eager"]
    ours = ["-e", str(ROOT / "core"), "-e", f"{plugin}[instruments,test]"]
    steps = (
        ["pip", "--disable-pip-version-check", "install", "-q", *options, *RUNNER, *ours, *pins],
        # What an old release does that a newer Python warns of is no fault of the plugin's.
        ["pytest", "-q", "-W", "default", f"--junitxml={report}", str(plugin / "tests")],
    )
    with log.open("w") as out:
        for step in steps:
            done = subprocess.run([python, "-m", *step], cwd=ROOT, stdout=out, stderr=out)
            if done.returncode:
                break
    return Outcome(
        plugin=plugin.name,
        which=which,
        versions=_versions(folder, wanted) if step == steps[-1] else {},
        counts=_counts(report),
        status=done.returncode,
        log=log,
    )


def _versions(folder: Path, wanted: Sequence[Requirement]) -> dict[str, str]:
    names = {canonicalize_name(each.name) for each in wanted}
    places = [str(path) for path in folder.glob("lib/python*/site-packages")]
    found = {canonicalize_name(d.name): d.version for d in distributions(path=places)}
    return {name: found[name] for name in sorted(names)}


def _counts(report: Path) -> dict[str, int]:
    if not report.exists():
        return {}
    suite = ET.parse(report).find("testsuite")
    assert suite is not None
    total, failed, errors, skipped = (
        int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")
    )
    bad = failed + errors
    return {"passed": total - bad - skipped, "failed": bad, "skipped": skipped}


def table(outcomes: Sequence[Outcome]) -> Table:
    """The outcomes, one a line."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("plugin", "releases", "versions"):
        shown.add_column(heading, no_wrap=heading != "versions")
    for heading in ("passed", "failed", "skipped"):
        shown.add_column(heading, justify="right")
    for each in outcomes:
        versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
        counts = [str(each.counts.get(name, "-")) for name in ("passed", "failed", "skipped")]
        style = "red" if each.status else None
        shown.add_row(each.plugin, each.which, versions or "not installed", *counts, style=style)
    return shown


def main() -> int:
    """Check what was asked for; 0 where all tests passed."""
    known = plugins()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plugin", nargs="*", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--only", choices=("oldest", "newest"), help="one end of the range")
    options = parser.parse_args()
    if unknown := set(options.plugin) - set(known):
        parser.error(f"no plugin {min(unknown)!r}; there are {', '.join(known)}")
    console = Console()
    outcomes = []
    for name in options.plugin or known:
        for which in ("oldest", "newest"):
            if options.only in (None, which):
                console.print(f"{name}, {which} …", style="dim")
                outcomes.append(check(known[name], which))
    console.print(table(outcomes))
    bad = [each for each in outcomes if each.status]
    for each in bad:
        end = "\n".join(each.log.read_text("utf-8", "replace").splitlines()[-20:])
        console.print(f"\n{each.log.relative_to(ROOT)}:\n{end}", highlight=False, markup=False)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
