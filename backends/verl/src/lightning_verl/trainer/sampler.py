"""The samplers of a step: they wait for its groups, and for others in place of those that tell nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from lightning_core.errors import LightningError
from lightning_verl.trainer.notes import notes_of, tell_consumed

log = logging.getLogger("lightning_verl.trainer")

_POLL_SECONDS: Final = 0.2
_NO_ROWS: Final = "no materializable trajectories"
_TRIES: Final = 3
"""How often a step is begun anew with other tasks where nothing of it can be learnt from."""


def _nothing() -> None:
    """No engine is known to be asked whether it lives."""


class Sampler(ReplayBuffer):  # type: ignore[misc]  # verl has no types
    """verl's synchronous sampler. Groups of equal rewards are replaced, at most `refill` times, by groups of other tasks;
    they stay in the step, whose size so does not depend on its luck."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"poll_interval": _POLL_SECONDS, **kwargs})
        self.check_engine: Callable[[], None] = _nothing

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """A step's rows, and verl's own numbers of it.

        Raises:
            LightningError: nothing could be learnt from, for several batches of tasks.
        """
        if partition_id == "val":
            return super().sample(global_steps, partition_id, batch_size)
        inner = super().sample

        def sample() -> Any:
            return inner(global_steps, partition_id, self._refilled(partition_id, batch_size))

        return _learnable(self, sample, global_steps, batch_size)

    def _refilled(self, partition_id: str, wanted: int) -> int:
        """Replace groups that tell nothing; how many groups the step has then."""
        replaced = 0
        for _ in range(int(self.sampler_kwargs.get("refill", 0))):
            self._wait(partition_id, wanted)
            notes = notes_of(list(self.partitions[partition_id]), partition_id)
            signals = {note.group: note.signal for note in notes}
            missing = wanted - sum(signals.values()) - replaced
            if missing <= 0:
                break
            self.refill_fn(missing)
            replaced += missing
            wanted += missing
        return wanted

    def _wait(self, partition_id: str, wanted: int) -> None:
        last = 0.0
        while True:
            self._sync_metadata_from_transfer_queue()
            if len(self.finished_keys[partition_id] | self.failure_keys[partition_id]) >= wanted:
                return
            last = self._wait_for_next_poll(partition_id, last)


class AsyncSampler(ReplayBufferAsync):  # type: ignore[misc]  # verl has no types
    """verl's asynchronous sampler, which looks more often."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"poll_interval": _POLL_SECONDS, **kwargs})
        self.check_engine: Callable[[], None] = _nothing

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """A step's rows, and verl's own numbers of it.

        Raises:
            LightningError: nothing could be learnt from, for several batches of tasks.
        """
        inner = super().sample
        if partition_id == "val":
            return inner(global_steps, partition_id, batch_size)
        return _learnable(
            self, lambda: inner(global_steps, partition_id, batch_size), global_steps, batch_size
        )


def _learnable(
    sampler: Any, sample: Callable[[], Any], step: int, groups: int
) -> tuple[KVBatchMeta, dict[str, Any]]:
    """A step's rows, begun anew with other tasks as long as none has a token to learn from: verl takes no such step."""
    for number in range(_TRIES):
        try:
            batch, metrics = sample()
        except RuntimeError as error:
            if _NO_ROWS not in str(error):
                raise
            raise LightningError(
                f"step {step}: the agent loop failed for every task; the log says why at `Error in _run_prompt`, such as a"
                " server that stayed away. Once it is mended, go on with `--resume`"
            ) from error
        notes = notes_of(batch.keys, batch.partition_id)
        if any(note.pieces for note in notes):
            return batch, metrics
        log.warning(
            "step %d: nothing to learn from in %d groups; other tasks are drawn", step, groups
        )
        sampler.check_engine()
        tell_consumed(sampler.sampler_kwargs["consumed"], step, notes)
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        if number + 1 < _TRIES:
            sampler.refill_fn(groups)
    raise LightningError(
        f"step {step}: nothing to learn from in {_TRIES} batches of {groups} tasks: no rollout has both a reward and a reply"
        " with token ids. `lightning-core show RUN` says how the rollouts ended; once that is mended, go on with `--resume`"
    )
