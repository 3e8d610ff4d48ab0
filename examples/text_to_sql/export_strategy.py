"""Write the strategy that a run ended in, and say what it gained.

`python export_strategy.py [RUN] [--output optimized_strategy.json]`; RUN is by name or path, the last one by default. The
same as `lightning-core export --run RUN --output FILE`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_core import Strategy
from lightning_core.cli import main as lightning_core


def main() -> None:
    """Export as the command line says."""
    parser = argparse.ArgumentParser(description="Write the strategy that a run ended in.")
    parser.add_argument("run", nargs="?", default="last", help="the run, by name or path")
    parser.add_argument("--output", type=Path, default=Path("optimized_strategy.json"))
    options = parser.parse_args()
    status = lightning_core(["export", "--run", options.run, "--output", str(options.output)])
    if status:
        sys.exit(status)
    strategy = Strategy.load(options.output)
    scores = strategy.provenance.scores
    print("prompts that it replaces:", ", ".join(strategy.prompt_templates) or "none")
    for name in ("before", "after", "interval"):
        if name in scores:
            print(f"{name}: {scores[name]}")


if __name__ == "__main__":
    main()
