"""Policy: a causal language model that is trained, its log-probabilities, and the reference it began as."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lightning_core.errors import UsageError
from lightning_local import models
from lightning_local.serve.policy import fingerprint
from lightning_local.serve.weights import Weights
from lightning_local.train import losses
from lightning_local.train.lora import add_lora, read_adapter, write_adapter
from lightning_local.train.options import LocalOptions
from lightning_local.train.rows import Pass

VOCABULARY_CHUNK = 512
"""Positions whose logits are in memory at once, if there are more than these."""


class Scored(NamedTuple):
    """What the policy says of a pass's targets, each of shape [S, N]."""

    logprobs: Tensor
    """Log-probability of the target under the temperature (nats)."""
    entropy: Tensor
    """Entropy of the distribution that it was drawn from (nats)."""


class Policy:
    """A model with an adapter, or with all its weights, to train.

    Log-probabilities are those of the distribution that is sampled from: of the logits divided by the temperature.
    """

    def __init__(self, model: str, options: LocalOptions, *, temperature: float) -> None:
        """Load the model.

        Raises:
            UsageError: there is no such model, device or LoRA target, or the temperature is not above 0.
        """
        if not temperature > 0:
            raise UsageError(
                f"temperature {temperature!r}: a policy that is trained must be sampled from with one above 0"
            )
        self.base_model = model
        self.base_location = models.locate(model)
        self.temperature = temperature
        self.lora = options.lora_rank > 0
        loaded = models.load(model, device=options.device, dtype=_dtype(options))
        self.tokenizer = loaded.tokenizer
        self.context = loaded.context
        base = loaded.model
        self.device = str(base.device)
        self.vocabulary = int(base.get_input_embeddings().num_embeddings)
        self.hidden = int(base.config.get_text_config().hidden_size)
        kinds = set(getattr(base.config.get_text_config(), "layer_types", None) or ())
        # A mask of our own replaces the model's, so it must be one of plain attention that takes masks.
        self.can_share = (
            kinds <= {"full_attention"}
            and getattr(base.config, "sliding_window", None) is None
            and base.config._attn_implementation == "sdpa"
        )
        self.fingerprint = fingerprint(base)
        self.twin = (
            twin(base.get_decoder(), shared=self.lora) if options.algorithm == "ppo" else None
        )
        self.network: Any = base
        self._reference: Any = None
        if self.lora:
            self.network = add_lora(base, options, seed=options.seed)
        else:
            base.requires_grad_(True)
            if options.kl_coef:
                self._reference = copy.deepcopy(base).requires_grad_(False)
        self.base = base
        self._plain_head = has_plain_head(base)
        if options.gradient_checkpointing:
            checkpoint_layers(base)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that are trained."""
        return [each for each in self.network.parameters() if each.requires_grad]

    def score(
        self, micro: Pass, *, entropy: bool = True, temperature: float | None = None
    ) -> Scored:
        """Log-probabilities of a pass's targets, with gradient where that is on.

        Args:
            micro: the pass.
            entropy: let the entropy have a gradient too; it is computed in any case.
            temperature: instead of the policy's own.
        """
        if temperature is None:
            temperature = self.temperature
        return score(self.base, micro, temperature, entropy=entropy, plain=self._plain_head)

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[Any]:
        """The model before training, to `score` with: the adapter off, or the frozen copy."""
        if self.lora:
            with self.network.disable_adapter():
                yield self.base
        else:
            yield self._reference

    def reference(self, micro: Pass) -> Tensor:
        """Log-probabilities under the model before training, without gradient, shape [S, N]."""
        with torch.no_grad(), self.as_reference() as base:
            scored = score(base, micro, self.temperature, entropy=False, plain=self._plain_head)
            return scored.logprobs

    def write(self, folder: Path) -> None:
        """Write what an engine loads: a PEFT adapter folder, or a Hugging Face folder."""
        if self.lora:
            write_adapter(self.network, folder, self.base_location)
        else:
            self.network.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def read(self, folder: Path) -> None:
        """Put weights in place that `write` wrote.

        Raises:
            UsageError: they are of another model, another shape of LoRA, or cannot be read.
        """
        if self.lora:
            read_adapter(self.network, folder)
            return
        try:
            Weights(self.network, base=None).read(folder)()
        except Exception as error:
            raise UsageError(f"weights in {str(folder)!r} cannot be taken up: {error}") from error


def score(base: Any, micro: Pass, temperature: float, *, entropy: bool, plain: bool) -> Scored:
    """Log-probabilities and entropies of a pass's targets under a causal language model.

    Args:
        base: the model.
        micro: the pass.
        temperature: what logits are divided by.
        entropy: whether the entropy has a gradient.
        plain: whether logits are the head's output, so that it need only run where they are wanted.
    """
    if plain:
        states = hidden_states(base.get_decoder(), micro)
        head = base.get_output_embeddings()
    else:
        states = base(**_inputs(micro)).logits.flatten(0, 1)[micro.queries]
        head = torch.nn.Identity()

    def chunk(some: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(some).float() / temperature
        logprobs = logits[rows, tokens] - logits.logsumexp(-1)[rows]
        with torch.set_grad_enabled(entropy and torch.is_grad_enabled()):
            return logprobs, losses.entropy(logits)

    count = len(states)
    rows, tokens = micro.slots.flatten(), micro.targets.flatten()
    if count <= VOCABULARY_CHUNK:
        logprobs, spread = chunk(states, rows, tokens)
    else:
        logprobs = torch.zeros(len(rows), device=states.device)
        spreads = []
        for start in range(0, count, VOCABULARY_CHUNK):
            stop = min(start + VOCABULARY_CHUNK, count)
            inside = ((rows >= start) & (rows < stop)).nonzero()[:, 0]
            parts = (states[start:stop], rows[inside] - start, tokens[inside])
            if torch.is_grad_enabled():  # logits are computed again in the backward pass
                some, part = checkpoint(chunk, *parts, use_reentrant=False)
            else:
                some, part = chunk(*parts)
            logprobs = logprobs.index_put((inside,), some)
            spreads.append(part)
        spread = torch.cat(spreads)
    shape = micro.slots.shape
    return Scored(logprobs.view(shape), spread[rows].view(shape))


def hidden_states(decoder: Any, micro: Pass) -> Tensor:
    """The last layer's states at a pass's queries, shape [Q, hidden]."""
    states: Tensor = decoder(**_inputs(micro)).last_hidden_state.flatten(0, 1)[micro.queries]
    return states


def _inputs(micro: Pass) -> dict[str, Any]:
    # Padding is on the right, where no causal row sees it: such rows need no mask, and take the fast path.
    return {
        "input_ids": micro.token_ids,
        "attention_mask": micro.seen,
        "position_ids": micro.positions,
        "use_cache": False,
    }


def has_plain_head(base: Any) -> bool:
    """Whether logits are what the head makes of the decoder's states; some models scale or bound them after."""
    ids = torch.arange(4, device=base.device)[None]
    with torch.no_grad():
        states = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        return torch.allclose(
            base.get_output_embeddings()(states), base(input_ids=ids, use_cache=False).logits
        )


def twin(decoder: Any, *, shared: bool) -> Any:
    """A second decoder. With `shared`, the weights, which nobody trains, are the same tensors."""
    memo = {id(each): each for each in decoder.parameters()} if shared else {}
    return copy.deepcopy(decoder, memo)


def checkpoint_layers(network: Any) -> None:
    """Compute a layer's activations again in the backward pass. It works in training mode only, so dropout goes."""
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    with warnings.catch_warnings():
        # Renamed in transformers; the new name is not in all releases that we take.
        warnings.filterwarnings(
            "ignore", message=".*gradient_checkpointing_enable", category=FutureWarning
        )
        network.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    network.train()


def _dtype(options: LocalOptions) -> str:
    return "float32" if options.dtype == "auto" and not options.lora_rank else options.dtype
