"""The samplers of a step: they wait for its groups, and for others in place of those that tell nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import transfer_queue as tq
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


class _Learnable:
    """What our samplers have in common: they look often, and a step has something to learn from. Goes before verl's class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"poll_interval": _POLL_SECONDS, **kwargs})
        self.check_engine: Callable[[], None] = _nothing

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """A step's rows, and verl's own numbers of it; begun anew with other tasks as long as none has a token to learn
        from, which verl does not take.

        Raises:
            LightningError: nothing could be learnt from, for several batches of tasks.
        """
        ours: Any = self
        theirs: Any = super()
        if partition_id == "val":
            return theirs.sample(global_steps, partition_id, batch_size)
        for number in range(_TRIES):
            try:
                batch, metrics = theirs.sample(
                    global_steps, partition_id, self._wanted(partition_id, batch_size)
                )
            except RuntimeError as error:
                if _NO_ROWS not in str(error):
                    raise
                raise LightningError(
                    f"step {global_steps}: the agent loop failed for every task; the log says why at `Error in _run_prompt`,"
                    " such as a server that stayed away. Once it is mended, go on with `--resume`"
                ) from error
            notes = notes_of(batch.keys, batch.partition_id)
            if any(note.pieces for note in notes):
                return batch, metrics
            log.warning(
                "step %d: nothing to learn from in %d groups; other tasks are drawn",
                global_steps, batch_size,
            )  # fmt: skip
            self.check_engine()
            tell_consumed(ours.sampler_kwargs["consumed"], global_steps, notes)
            tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
            if number + 1 < _TRIES:
                ours.refill_fn(batch_size)
        raise LightningError(
            f"step {global_steps}: nothing to learn from in {_TRIES} batches of {batch_size} tasks: no rollout has both a reward"
            " and a reply with token ids. `lightning-core show RUN` says how the rollouts ended; once that is mended, go on"
            " with `--resume`"
        )

    def _wanted(self, partition_id: str, groups: int) -> int:
        """How many groups the step is to have."""
        return groups


class Sampler(_Learnable, ReplayBuffer):  # type: ignore[misc]  # verl has no types
    """verl's synchronous sampler. Groups of equal rewards are replaced, at most `refill` times, by groups of other tasks;
    they stay in the step, whose size so does not depend on its luck."""

    def _wanted(self, partition_id: str, groups: int) -> int:
        replaced = 0
        for _ in range(int(self.sampler_kwargs.get("refill", 0))):
            self._wait(partition_id, groups)
            notes = notes_of(list(self.partitions[partition_id]), partition_id)
            signals = {note.group: note.signal for note in notes}
            missing = groups - sum(signals.values()) - replaced
            if missing <= 0:
                break
            self.refill_fn(missing)
            replaced += missing
            groups += missing
        return groups

    def _wait(self, partition_id: str, wanted: int) -> None:
        last = 0.0
        while True:
            self._sync_metadata_from_transfer_queue()
            if len(self.finished_keys[partition_id] | self.failure_keys[partition_id]) >= wanted:
                return
            last = self._wait_for_next_poll(partition_id, last)


class AsyncSampler(_Learnable, ReplayBufferAsync):  # type: ignore[misc]  # verl has no types
    """verl's asynchronous sampler."""
