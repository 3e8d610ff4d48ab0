"""What start-up costs: `import lightning_core`, and whether listing plugins loads a framework."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.results import Row, in_turns, row

NAMES = ("import-core", "plugins-imports-no-framework")
ROUNDS = 9
FRAMEWORKS = frozenset(
    {
        "agents", "anthropic", "autogen_agentchat", "autogen_core", "autogen_ext", "httpx", "httpx2",
        "langchain", "langchain_core", "langchain_openai", "langgraph", "litellm", "numpy", "openai",
        "opentelemetry", "pandas", "pyarrow", "pydantic", "ray", "tokenizers", "torch", "transformers",
        "verl", "vllm",
    }
)  # fmt: skip
"""What only a plugin, an extra or an agent may import."""


def rows(names: Sequence[str] = NAMES) -> Iterator[Row]:
    """Run the benches in `names`."""
    if "import-core" in names:
        yield _import_core()
    if "plugins-imports-no-framework" in names:
        yield _plugins()


def _import_core() -> Row:
    """Milliseconds of CPU that an import adds to a bare interpreter, against `import aiohttp`."""
    series: dict[str, list[float]] = {"pass": [], "import lightning_core": [], "import aiohttp": []}
    for statement in series:  # byte code and page cache
        _cpu(statement)
    for _ in range(ROUNDS):
        for statement, values in series.items():
            values.append(_cpu(statement))
    bare = series.pop("pass")
    ours, reference = (
        [max(value - floor, 0.0) for value, floor in zip(values, bare, strict=True)]
        for values in series.values()
    )
    return in_turns("import-core", ours, reference, goal=2.0)


def _cpu(statement: str) -> float:
    """User and system time of a fresh interpreter, in milliseconds."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", statement], dict(os.environ))
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"`python -c {statement!r}` ended with status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1000


def _plugins() -> Row:
    """How many frameworks `lightning-core plugins` loads."""
    command = Path(sys.executable).parent / "lightning-core"
    if not command.exists():
        raise RuntimeError(
            f"`{command}` does not exist: install the packages into this environment (`make install`)"
        )
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(command), "plugins"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    modules = [
        line.rsplit("|", 1)[1].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:") and "|" in line
    ]
    if done.returncode or not any(m.startswith("lightning_core") for m in modules):
        words = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        raise RuntimeError(f"`lightning-core plugins` ended with {done.returncode}: {words[-3:]}")
    found = {module.partition(".")[0] for module in modules} & FRAMEWORKS
    if found:
        print(f"`lightning-core plugins` imports {', '.join(sorted(found))}", file=sys.stderr)
    return row("plugins-imports-no-framework", len(found), 0, ratio=float(len(found)), goal=0)
