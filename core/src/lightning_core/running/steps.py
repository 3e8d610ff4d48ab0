"""One line of text for a step of an optimisation, and for a validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def step_line(step: int, steps: int | None, metrics: Mapping[str, Any]) -> str:
    """Step, reward with its interval, what of the update matters, failures, time."""
    parts = [f"step {_of(step, steps)}"]
    low, high = metrics.get("reward/low"), metrics.get("reward/high")
    if metrics.get("reward") is not None:
        parts.append(f"reward {_number(metrics, 'reward')}")
        if low is not None and high is not None:
            parts[-1] += f" [{low:.2f}, {high:.2f}]"
    for key, name in (
        ("update/loss", "loss"),
        ("update/approx_kl", "kl"),
        ("update/entropy", "entropy"),
        ("update/clip_share", "clipped"),
    ):
        if metrics.get(key) is not None:
            parts.append(f"{name} {_number(metrics, key)}")
    equal, groups = metrics.get("groups/equal"), metrics.get("groups/all")
    if equal:
        parts.append(f"{equal} of {groups} groups equal")
    unscored = (metrics.get("rollouts/unscored") or 0) + (metrics.get("rollouts/infra_error") or 0)
    if unscored:
        why = ", ".join(
            f"{count} {name.partition('/')[2]}"
            for name, count in sorted(metrics.items())
            if name.startswith("failures/")
        )
        parts.append(f"{unscored} not scored" + (f" ({why})" if why else ""))
    if metrics.get("time/step") is not None:
        parts.append(f"{metrics['time/step']:.1f} s")
    return "  ".join(parts)


def val_line(step: int, steps: int | None, metrics: Mapping[str, Any]) -> str:
    """Step and the reward of validation."""
    scored, asked = metrics.get("val/scored"), metrics.get("val/rollouts")
    return f"validation after step {_of(step, steps)}: reward {_number(metrics, 'val/reward')} ({scored} of {asked} scored)"


def _of(step: int, steps: int | None) -> str:
    return str(step) if steps is None else f"{step}/{steps}"


def _number(metrics: Mapping[str, Any], key: str) -> str:
    return f"{metrics[key]:.3f}"
