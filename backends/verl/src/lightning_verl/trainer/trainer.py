"""Our trainer: verl's own, joined to the run's gateway and to our advantages. No step of verl's loop is copied."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls, register_trainer
from verl.workers.utils.padding import response_to_nested

from lightning_verl.job import SEPARATE, TRAINER, Job
from lightning_verl.learning import CRITIC, WHITENED
from lightning_verl.ray_errors import why_died
from lightning_verl.trainer import private
from lightning_verl.trainer.advantages import advantages, scales, token_rewards
from lightning_verl.trainer.gateway import Gateway
from lightning_verl.trainer.notes import notes_of, tell_consumed
from lightning_verl.trainer.replicas import check_alive, endpoints, policy_of, tools
from lightning_verl.trainer.sampler import AsyncSampler, Sampler
from lightning_verl.trainer.samples import Note
from lightning_verl.trainer.updates import mini_batch_size, mini_batches
from lightning_verl.trainer.watchdog import Watchdog

log = logging.getLogger("lightning_verl.trainer")


def register(job: Job, gateway: Gateway, watchdog: Watchdog) -> None:
    """Register our trainer with verl, under `TRAINER`."""
    base: Any = get_trainer_cls(job.mode)
    learning = job.learning
    values = learning.algorithm in CRITIC
    separate = job.mode == SEPARATE
    if separate:
        private.let_separate_trainer_log()

    class Trainer(base):  # type: ignore[misc]  # verl has no types
        """verl's trainer of the job's mode.

        The gateway is held from the last sample of a step until the new weights serve; where vLLM has devices of its own,
        only while the weights change. Advantages come with the rows,
        since verl's estimators are told neither of rollouts nor of replies. A step is one update, or as many as were
        asked for, however many rows it has.
        """

        def __init__(self, config: Any) -> None:
            # verl asks for the mode by name.
            config.trainer.v1.trainer_mode = job.mode
            asked = config.actor_rollout_ref.actor.ppo_mini_batch_size
            self._updates = max(1, config.data.train_batch_size // asked)
            if (
                separate
            ):  # It asks that they are the same; how many updates a step has is set for each batch.
                with open_dict(config):
                    config.actor_rollout_ref.actor.ppo_mini_batch_size = (
                        config.data.train_batch_size
                    )
            super().__init__(config)

        # The gateway ----------------------------------------------------------------------------------------------

        def on_init_end(self) -> None:
            super().on_init_end()
            managers = self._rollout_server_managers()
            self._endpoints = endpoints([at for each in managers for at in each.get_addresses()])
            servers = [handle for each in managers for handle in each.server_handles]
            watchdog.watch(self._endpoints, partial(why_died, ray, servers))
            if isinstance(self.replay_buffer, Sampler | AsyncSampler):
                self.replay_buffer.check_engine = partial(check_alive, self._endpoints)
            self._serve()

        def on_sample_end(self) -> None:
            # In the synchronous mode no rollout of the step is under way. What an agent left behind may still be calling.
            if not separate:
                gateway.hold()
            super().on_sample_end()

        def on_step_end(self) -> None:
            if separate:
                gateway.hold()
            super().on_step_end()
            self._serve()

        def _serve(self) -> None:
            found = tools(self.config)
            gateway.serve(policy_of(job, self._endpoints, self.global_steps, tools=found))

        # Learning -------------------------------------------------------------------------------------------------

        def _balance_batch(self, batch: Any, metrics: Any, *rest: Any, **more: Any) -> Any:
            rollout, actor = (
                self.config.actor_rollout_ref.rollout,
                self.config.actor_rollout_ref.actor,
            )
            self._workers = self.resource_pool_manager.get_n_gpus() // max(
                actor.ulysses_sequence_parallel_size,
                actor.fsdp_config.get("ulysses_sequence_parallel_size", 1),
            )
            size = mini_batch_size(
                len(batch.keys), group=rollout.n, workers=self._workers, updates=self._updates
            )
            self._mini_batch = size * rollout.n
            with open_dict(self.config):
                actor.ppo_mini_batch_size = self.config.critic.ppo_mini_batch_size = size
            tell_consumed(job.consumed, self.global_steps, notes_of(batch.keys, batch.partition_id))
            return super()._balance_batch(batch, metrics, *rest, **more)

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
                select_fields=["advantages", "response_mask", "loss_mask"],
            )  # fmt: skip
            nested = data["response_mask"]
            data = data.to_padded_tensor()
            mask, counted = data["response_mask"], data["loss_mask"].sum(dim=1)
            found = (
                data["advantages"]
                if values
                else advantages(notes, tuple(mask.shape), whitened=learning.algorithm in WHITENED)
            )
            found = found * mask * self._scales(notes, mask, counted)[:, None]
            fields = TensorDict(
                {"advantages": response_to_nested(found, nested)}, batch_size=len(batch)
            )
            return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

        def _scales(
            self, notes: list[Note], mask: torch.Tensor, counted: torch.Tensor
        ) -> torch.Tensor:
            """Each update's mean is over its own tokens: those that rollout correction rejects are counted by verl too."""
            places = torch.tensor(
                mini_batches(len(notes), size=self._mini_batch, workers=self._workers)
            )
            found = torch.zeros(len(notes), dtype=torch.float32)
            for place in range(int(places.max()) + 1):
                chosen = (places == place).nonzero().flatten()
                found[chosen] = scales(
                    [notes[row].rollout for row in chosen.tolist()],
                    mask[chosen],
                    learning.aggregation,
                    total=int(counted[chosen].sum()),
                )
            return found

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
