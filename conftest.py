"""What all tests share."""

import contextlib
import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

VERL = "backends/verl/"
NPM = {"openai": "6.49.0", "@anthropic-ai/sdk": "1.14.0"}
"""The official clients of npm; of `openai` the last release that is for Node 20."""


def pytest_configure() -> None:
    """Have programs that tests start heed signals where this process was started to ignore them, as `nohup` and `&` do.

    A program inherits what is ignored, but not what is handled.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    with contextlib.suppress(ImportError):  # Not where a plugin is tested alone.
        import hypothesis  # noqa: PLC0415

        # How long an example takes says more of the machine than of the code.
        hypothesis.settings.register_profile("unhurried", hypothesis.settings(), deadline=None)
        hypothesis.settings.load_profile("unhurried")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, verl's begin first: they take longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(VERL))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep a file's tests in one process, since its fixtures are dear to make, and all of verl's: two of its runs at
    once need more memory than there is."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - not where a plugin is tested alone

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return VERL if nodeid.startswith(VERL) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(scope="session")
def npm_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `node_modules` with the official clients."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("npm")
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": NPM}))
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--silent"],
        cwd=folder, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"npm cannot install {', '.join(NPM)}: {done.stderr.strip()[-300:]}")
    return folder / "node_modules"
