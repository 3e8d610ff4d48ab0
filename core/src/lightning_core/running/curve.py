"""The curve of an optimisation as a picture: the reward of each step, and of each validation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from lightning_core.folder import RunFolder


def draw_curve(folder: str | Path) -> Path | None:
    """Draw `curve.png` in a run's folder from its `metrics.jsonl`.

    Returns:
        The picture; None where no step was logged, or matplotlib is not installed
        (`pip install "lightning-core[plot]"`).
    """
    run = RunFolder(Path(folder))
    lines = [line for line in run.lines() if isinstance(line.get("step"), int)]
    steps = [line for line in lines if line.get("reward") is not None]
    vals = [line for line in lines if line.get("val/reward") is not None]
    if not (steps or vals) or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, steps, vals)
    axes.set_title(run.path.name)
    path = run.path / "curve.png"
    figure.savefig(path, dpi=120)
    return path


def _draw(axes: Any, steps: list[dict[str, Any]], vals: list[dict[str, Any]]) -> None:
    if steps:
        numbers = [line["step"] for line in steps]
        axes.plot(numbers, [line["reward"] for line in steps], color="#1f77b4", label="rollouts")
        bounded = [line for line in steps if line.get("reward/low") is not None]
        axes.fill_between(
            [line["step"] for line in bounded],
            [line["reward/low"] for line in bounded],
            [line["reward/high"] for line in bounded],
            color="#1f77b4", alpha=0.15, linewidth=0, label="95 % interval",
        )  # fmt: skip
    if vals:
        axes.plot(
            [line["step"] for line in vals], [line["val/reward"] for line in vals],
            color="#d62728", marker="o", linestyle="--", label="validation",
        )  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
