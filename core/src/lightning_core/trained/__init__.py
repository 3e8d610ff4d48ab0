"""Running a flow from a strategy file alone: `TrainedAgent`, and what executes its solutions safely."""

from __future__ import annotations

from lightning_core.trained.agent import TrainedAgent
from lightning_core.trained.expression import evaluate_expression
from lightning_core.trained.fences import last_fenced, unfenced
from lightning_core.trained.record import Asked, Attempted, Tried
from lightning_core.trained.sqlite import Rows, SqliteReader

__all__ = [
    "Asked",
    "Attempted",
    "Rows",
    "SqliteReader",
    "TrainedAgent",
    "Tried",
    "evaluate_expression",
    "last_fenced",
    "unfenced",
]
