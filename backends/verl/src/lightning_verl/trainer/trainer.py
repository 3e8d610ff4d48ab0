"""Our trainer: verl's own, joined to the run's gateway and to our advantages. No step of verl's loop is copied."""

from __future__ import annotations

import logging
import math
from typing import Any

import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls, register_trainer
from verl.workers.utils.padding import response_to_nested

from lightning_verl.job import TRAINER, Job
from lightning_verl.learning import CRITIC, WHITENED
from lightning_verl.trainer.advantages import advantages, scales, token_rewards
from lightning_verl.trainer.gateway import Gateway
from lightning_verl.trainer.notes import notes_of, tell_consumed
from lightning_verl.trainer.replicas import endpoints, policy_of, tools
from lightning_verl.trainer.samples import Note

log = logging.getLogger("lightning_verl.trainer")


def register(job: Job, gateway: Gateway) -> None:
    """Register our trainer with verl, under `TRAINER`."""
    base: Any = get_trainer_cls(job.mode)
    learning = job.learning
    values = learning.algorithm in CRITIC

    class Trainer(base):  # type: ignore[misc]  # verl has no types
        """verl's trainer of the job's mode.

        The gateway is held from the last sample of a step until the new weights serve. Advantages come with the rows,
        since verl's estimators are told neither of rollouts nor of replies. A step is one update, or as many as were
        asked for, however many rows it has.
        """

        def __init__(self, config: Any) -> None:
            # verl asks for the mode by name.
            config.trainer.v1.trainer_mode = job.mode
            actor, critic = config.actor_rollout_ref.actor, config.critic
            self._updates = {
                name: max(1, config.data.train_batch_size // part.ppo_mini_batch_size)
                for name, part in (("actor", actor), ("critic", critic))
            }
            super().__init__(config)

        # The gateway ----------------------------------------------------------------------------------------------

        def on_init_end(self) -> None:
            super().on_init_end()
            self._endpoints = endpoints(self.llm_server_manager.get_addresses())
            self._serve()

        def on_sample_end(self) -> None:
            # In the synchronous mode no rollout of the step is under way. What an agent left behind may still be calling.
            gateway.hold()
            super().on_sample_end()

        def on_step_end(self) -> None:
            super().on_step_end()
            self._serve()

        def _serve(self) -> None:
            found = tools(self.config)
            gateway.serve(policy_of(job, self._endpoints, self.global_steps, tools=found))

        # Learning -------------------------------------------------------------------------------------------------

        def _balance_batch(self, batch: Any, metrics: Any, *rest: Any, **more: Any) -> Any:
            self._fit_updates(len(batch.keys))
            tell_consumed(job.consumed, self.global_steps, notes_of(batch.keys, batch.partition_id))
            return super()._balance_batch(batch, metrics, *rest, **more)

        def _fit_updates(self, rows: int) -> None:
            """Make verl's mini-batches so large that these rows are as many updates as were asked for."""
            n, workers = (
                self.config.actor_rollout_ref.rollout.n,
                self.resource_pool_manager.get_n_gpus(),
            )
            every = workers // math.gcd(n, workers)
            with open_dict(self.config):
                for name, part in (
                    ("actor", self.config.actor_rollout_ref.actor),
                    ("critic", self.config.critic),
                ):
                    size = math.ceil(rows / (n * self._updates[name]))
                    part.ppo_mini_batch_size = math.ceil(size / every) * every

        def _compute_advantage(self, batch: Any, metrics: Any) -> Any:
            padding = [bool(tag.get("is_padding")) for tag in batch.tags]
            # A row of padding is a copy of another one, but for its tokens.
            notes = [
                Note(rollout=note.rollout, group=note.group, signal=False) if pads else note
                for note, pads in zip(
                    notes_of(batch.keys, batch.partition_id), padding, strict=True
                )
            ]
            if values:
                self._put_rewards(batch, notes)
            batch = super()._compute_advantage(batch, metrics)
            data = tq.kv_batch_get(
                keys=batch.keys, partition_id=batch.partition_id,
                select_fields=["advantages", "response_mask"],
            )  # fmt: skip
            nested = data["response_mask"]
            data = data.to_padded_tensor()
            mask = data["response_mask"]
            found = (
                data["advantages"]
                if values
                else advantages(notes, tuple(mask.shape), whitened=learning.algorithm in WHITENED)
            )
            found = (
                found
                * mask
                * scales([note.rollout for note in notes], mask, learning.aggregation)[:, None]
            )
            fields = TensorDict(
                {"advantages": response_to_nested(found, nested)}, batch_size=len(batch)
            )
            return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

        @staticmethod
        def _put_rewards(batch: Any, notes: list[Note]) -> None:
            data = tq.kv_batch_get(
                keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"]
            )
            nested = data["response_mask"]
            shape = tuple(data.to_padded_tensor()["response_mask"].shape)
            rewards = response_to_nested(token_rewards(notes, shape), nested)
            tq.kv_batch_put(
                keys=batch.keys, partition_id=batch.partition_id,
                fields=TensorDict({"rm_scores": rewards}, batch_size=len(batch)),
            )  # fmt: skip

    register_trainer(TRAINER)(Trainer)
