"""The verl environment: which Python has verl, and whether what it has fits."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from lightning_core.errors import UsageError

VARIABLE: Final = "LIGHTNING_CORE_VERL_PYTHON"
"""Names the Python of the verl environment."""
DEFAULT: Final = ".venv-verl/bin/python"
"""Where it is looked for otherwise, from the current folder."""
VERL: Final = ("0.9.1",)
"""Releases of verl that the trainer was tested with."""
NEEDED: Final = ("verl", "torch", "vllm", "ray", "transformers", "lightning-core", "lightning-verl")
"""Distributions that must be there."""
_HOW: Final = (
    "`make verl-env` makes it in this repository; docs/verl.md has the commands by themselves"
)
_SCRIPT: Final = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


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


def check(python: Path) -> dict[str, str]:
    """The versions of what the environment has.

    Raises:
        UsageError: something is missing, or of another release than this one works with.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _SCRIPT, *NEEDED],
            capture_output=True, text=True, timeout=60, check=True, env=environ(),
        )  # fmt: skip
        found = msgspec.json.decode(done.stdout, type=dict[str, str])
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"backend `verl`: {str(python)!r} does not run as a Python: {error}. {_HOW}"
        ) from error
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise UsageError(
            f"backend `verl`: the environment of {str(python)!r} lacks {', '.join(f'`{name}`' for name in missing)}. {_HOW}"
        )
    if found["verl"] not in VERL:
        raise UsageError(
            f"backend `verl`: the environment of {str(python)!r} has verl {found['verl']}, but this release works with"
            f" {' or '.join(VERL)}: it joins the trainer where that may change. {_HOW}"
        )
    for name in ("lightning-core", "lightning-verl"):
        ours = importlib.metadata.version(name)
        if found[name] != ours:
            raise UsageError(
                f"backend `verl`: the environment of {str(python)!r} has {name} {found[name]} and this one {ours};"
                " install the same release on both sides"
            )
    return found


def environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment for a process of the other one: without what would make it look for packages in ours, or join a
    Ray that nobody named."""
    ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP", "RAY_ADDRESS"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and (not name.startswith("LIGHTNING_CORE_"))
    }
    return {**kept, **(extra or {})}
