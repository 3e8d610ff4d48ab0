"""A replay buffer for verl that writes down each batch as the trainer gets it: verl's own hook, used by a test."""

import json
import os

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "input_ids"]


class DumpingBuffer(ReplayBuffer):
    def sample(self, global_steps, partition_id, batch_size):
        batch, metrics = super().sample(
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        if partition_id == "train":
            data = tq.kv_batch_get(
                keys=batch.keys, partition_id=partition_id, select_fields=[*FIELDS, "extra_info", "session_id"]
            )  # fmt: skip
            with open(os.path.join(self.sampler_kwargs["folder"], "batches.jsonl"), "a") as file:
                for row in range(len(batch.keys)):
                    line = {name: data[name][row].tolist() for name in FIELDS}
                    line |= {"step": global_steps, "key": batch.keys[row]}
                    line["info"] = dict(_plain(data["extra_info"][row]))
                    line["session"] = int(_plain(data["session_id"][row]))
                    file.write(json.dumps(line) + "\n")
        return batch, metrics


def _plain(value):
    return getattr(value, "data", value) if not hasattr(value, "tolist") else value.tolist()
