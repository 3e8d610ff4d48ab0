"""The vLLM worker's extension on processors: takes verl's weights by vLLM's own reload.

verl loads weights into the model as it is. On a processor vLLM has packed them by then, and dropped the loaders.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


class CPUWorkerExtension(vLLMColocateWorkerExtension):  # type: ignore[misc]  # verl has no types
    """Mixed into vLLM's worker, whose `model_runner` and `reload_weights` it uses."""

    def update_weights_from_ipc(
        self,
        peft_config: dict[str, Any] | None = None,
        base_sync_done: bool = False,
        use_shm: bool = False,
    ) -> None:
        """Receive all weights, then load them; or a LoRA adapter, which replaces the one before it.

        Raises:
            NotImplementedError: the base model of an adapter is to be loaded.
        """
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import (
            BucketedWeightReceiver,
        )

        if peft_config and base_sync_done:
            # An adapter lies beside vLLM's packed weights, so verl's own way of loading one works here too.
            super().update_weights_from_ipc(
                peft_config=peft_config, base_sync_done=base_sync_done, use_shm=use_shm
            )
            return
        if peft_config:
            raise NotImplementedError(
                "platform `cpu`: with LoRA adapters vLLM has to load the base model itself; set"
                " `actor_rollout_ref.rollout.load_format=auto`"
            )
        received: list[tuple[str, torch.Tensor]] = []

        def keep(weights: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            # The buffer is used again for the next ones.
            received.extend((name, tensor.clone()) for name, tensor in weights)

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=keep)
        self.reload_weights(weights_iterator=iter(received), is_checkpoint_format=True)
        self._repack_tied_head()

    def _repack_tied_head(self) -> None:
        """Pack the output layer anew where it is tied to the embeddings: vLLM's reload leaves its packed copy as it was,
        without an error."""
        model = self.model_runner.model
        head = getattr(model, "lm_head", None)
        embeddings = getattr(getattr(model, "model", None), "embed_tokens", None)
        tied = getattr(model.config, "tie_word_embeddings", False)
        if tied and head is not None and embeddings is not None and head is not embeddings:
            head.weight = embeddings.weight
            head.quant_method.process_weights_after_loading(head)
