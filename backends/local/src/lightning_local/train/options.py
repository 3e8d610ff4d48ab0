"""LocalOptions: how `lightning-local` trains, as `--set KEY=VALUE` says it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from lightning_core.errors import UsageError

Algorithm = Literal[
    "grpo", "gspo", "cispo", "ppo", "rloo", "reinforce_pp", "dr_grpo", "sft"
]  # fmt: skip
LossKind = Literal["auto", "clip", "gspo", "cispo", "reinforce"]
KlKind = Literal["k1", "k2", "k3"]
OldLogprobs = Literal["recompute", "recorded"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
NotNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Beta = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class LocalOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every option of the trainer. The defaults suit LoRA on a small model."""

    algorithm: Algorithm = "grpo"
    """What is learnt by: it chooses the loss, and whether there is a value network (`ppo`) or no reward (`sft`)."""
    loss: LossKind = "auto"
    """The policy loss; `auto` takes the algorithm's own: `reinforce` for `rloo`, `gspo` and `cispo` for themselves, else
    `clip`."""
    learning_rate: Positive = 3e-4
    """AdamW's; full weights want about 1e-5."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """AdamW's decay rates."""
    eps: Positive = 1e-8
    """AdamW's, added to the denominator."""
    weight_decay: NotNegative = 0.0
    """AdamW's."""
    grad_clip: NotNegative = 1.0
    """Greatest norm of the gradient; 0 does not clip."""
    warmup: NotNegativeInt = 0
    """Optimiser steps over which the learning rate rises linearly from nothing."""
    epochs: AtLeastOne = 1
    """How often a step goes over its samples."""
    minibatches: AtLeastOne = 1
    """Optimiser steps in an epoch: the samples are shuffled and split into that many parts."""
    micro_batch_tokens: AtLeastOne = 2048
    """Most tokens in one pass, padding included; a longer sample goes alone. Changes memory and speed, not the result."""
    share_prefixes: bool = True
    """Compute tokens that samples of a pass begin with in common only once. Changes speed, not the result."""
    gradient_checkpointing: bool = False
    """Keep less in memory for the backward pass, and compute it again."""
    lora_rank: NotNegativeInt = 16
    """Rank of the LoRA adapter; 0 trains the full weights."""
    lora_alpha: Positive = 32.0
    """LoRA's scale: the adapter's output is multiplied with `lora_alpha / lora_rank`."""
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """Names of the linear modules that get an adapter, or `all-linear`; comma-separated."""
    clip_low: Share | None = None
    """A ratio below 1 less this is clipped; by default 0.2, for `gspo` 3e-4, for `cispo` 1."""
    clip_high: NotNegative | None = None
    """A ratio above 1 plus this is clipped; by default 0.28, for `gspo` 4e-4, for `cispo` 5."""
    dual_clip: NotNegative = 0.0
    """Bound of the loss, in advantages, where the advantage is negative, such as 3; 0 does not bound."""
    kl_coef: NotNegative = 0.0
    """Weight of the divergence from the model before training; 0 leaves it out, and its cost."""
    kl_kind: KlKind = "k3"
    """How the divergence is estimated."""
    entropy_coef: float = 0.0
    """Weight of the entropy that is added to what is maximised."""
    tis_cap: NotNegative = 2.0
    """Cap of the importance weight between the trainer's log-probabilities and the recorded ones; 0 leaves it out."""
    old_logprobs: OldLogprobs = "recompute"
    """What ratios are taken against: the log-probabilities of the policy before the step, computed here, or the
    recorded ones as they are."""
    sft_reward: float | None = None
    """Least reward of a trace that is learnt from (`sft`); by default the best of each group whose rewards differ are."""
    conversations: str = ""
    """A file of conversations to learn from in place of rollouts (`sft`): `{"messages": [...]}` on each line."""
    value_learning_rate: Positive = 3e-4
    """AdamW's, for the value network (`ppo`); full weights want about 1e-5."""
    value_clip: NotNegative = 0.2
    """How far a value may move in a step before its loss is clipped; 0 does not clip."""
    gamma: Share = 1.0
    """Discount for each token (`ppo`)."""
    lam: Share = 0.95
    """The λ of GAE (`ppo`)."""
    whiten: bool = True
    """Shift and scale the advantages of a step to mean 0 and deviation 1 (`ppo`)."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes CUDA, then MPS, then the CPU."""
    dtype: Dtype = "auto"
    """Of the model's weights; `auto` is float32 on a CPU and wherever the full weights are trained, else the model's own.
    An adapter's are float32."""
    threads: NotNegativeInt = 0
    """Threads on a CPU; 0 leaves it to torch."""
    seed: int = 0
    """Of the adapter's first weights and of the shuffling."""

    @classmethod
    def parse(cls, pairs: Mapping[str, str]) -> LocalOptions:
        """Read `--set` pairs.

        Raises:
            UsageError: an unknown key, or a value that the option cannot have; the message lists what there is.
        """
        fields = {field.name: field for field in msgspec.structs.fields(cls)}
        values: dict[str, Any] = {}
        for key, text in pairs.items():
            if key not in fields:
                raise UsageError(
                    f"backend `local` has no option {key!r}; `--set KEY=VALUE` knows {_listed()}"
                )
            is_list = isinstance(fields[key].default, tuple)
            parts = [part.strip() for part in text.split(",") if part.strip()]
            value: Any = parts if is_list else text.strip()
            try:
                values[key] = msgspec.convert(value, fields[key].type, strict=False)
            except msgspec.ValidationError as error:
                raise _mistyped(key, text, str(error)) from error
            numbers = values[key] if is_list else (values[key],)
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise _mistyped(key, text, "Expected a finite number")
        if not values.get("lora_targets", True):
            raise _mistyped("lora_targets", pairs["lora_targets"], "Expected at least one name")
        return cls(**values)

    @property
    def policy_loss(self) -> str:
        """The policy loss's name: `clip`, `gspo`, `cispo` or `reinforce`."""
        if self.loss != "auto":
            return self.loss
        own = {"gspo": "gspo", "cispo": "cispo", "rloo": "reinforce"}
        return own.get(self.algorithm, "clip")

    @property
    def clip_bounds(self) -> tuple[float, float]:
        """How far a ratio may be below and above 1."""
        low, high = {"gspo": (3e-4, 4e-4), "cispo": (1.0, 5.0)}.get(self.policy_loss, (0.2, 0.28))
        return (
            low if self.clip_low is None else self.clip_low,
            high if self.clip_high is None else self.clip_high,
        )


def _mistyped(key: str, text: str, fault: str) -> UsageError:
    expected = fault.partition(" - at ")[0].replace("`", "")
    choices = _choices(key)
    if choices:
        expected = f"Expected one of {choices}"
    return UsageError(
        f"option `{key}` of backend `local` is {text!r}: {expected}; `--set KEY=VALUE` knows {_listed()}"
    )


def _choices(key: str) -> str:
    kinds = {f.name: f.type for f in msgspec.structs.fields(LocalOptions)}
    kind = kinds[key]
    return ", ".join(f"`{v}`" for v in get_args(kind) if isinstance(v, str))


def _listed() -> str:
    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if value is None:
            return "(the loss's own)"
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

    return ", ".join(
        f"`{field.name}={shown(field.default)}`" for field in msgspec.structs.fields(LocalOptions)
    )
