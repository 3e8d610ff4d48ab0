"""A sampler for verl that writes down each batch as the trainer gets it, and the advantages that it learns from."""

import json
import os

import transfer_queue as tq

from lightning_verl.trainer.sampler import Sampler

FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "input_ids"]


class DumpingBuffer(Sampler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._put, tq.kv_batch_put = tq.kv_batch_put, self._put_and_write

    def _put_and_write(self, *args, **kwargs):
        fields = kwargs.get("fields")
        if fields is not None and "advantages" in fields:
            with open(os.path.join(self.sampler_kwargs["folder"], "advantages.jsonl"), "a") as file:
                for key, values in zip(kwargs["keys"], fields["advantages"], strict=True):
                    file.write(json.dumps({"key": key, "advantages": values.tolist()}) + "\n")
        return self._put(*args, **kwargs)

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
