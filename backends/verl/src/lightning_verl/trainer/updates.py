"""Updates: how verl cuts the rows of a step into mini-batches. Imports neither verl nor torch."""

from __future__ import annotations

import math


def mini_batch_size(rows: int, *, group: int, workers: int, updates: int) -> int:
    """verl's `ppo_mini_batch_size`, in tasks of `group` rows, that makes these rows as many updates as were asked for.

    verl fills the rows up with some of mask 0, to a multiple of the mini-batch.

    Args:
        rows: rows of the step, at least 1.
        group: rows that verl counts for each task.
        workers: workers that share a mini-batch evenly.
        updates: updates a step, at least 1.
    """
    every = workers // math.gcd(group, workers)
    size = math.ceil(rows / (group * updates))
    return math.ceil(size / every) * every


def mini_batches(rows: int, *, size: int, workers: int) -> list[int]:
    """The mini-batch in which each row is, shape [rows]: each worker has a block of the rows, and cuts it in order.

    Args:
        rows: rows of the step, a multiple of `size`.
        size: rows of a mini-batch, a multiple of `workers`.
        workers: workers that share a mini-batch.
    """
    block, share = rows // workers, size // workers
    return [row % block // share for row in range(rows)]
