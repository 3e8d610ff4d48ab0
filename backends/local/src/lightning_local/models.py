"""Loading a causal language model: a whole one, or a trained policy on top of its base model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lightning_core.errors import EngineError, UsageError
from lightning_local import smollm2
from lightning_local.serve import policy
from lightning_local.serve.adapter import CONFIG as ADAPTER_CONFIG
from lightning_local.serve.adapter import is_adapter, read_settings
from lightning_local.serve.weights import Weights

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
"""`org/name` on the Hugging Face hub."""
LAYER_TYPES = {"full_attention", "sliding_attention"}
"""Kinds of layers that the running batch can hold."""
DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16")


class Loaded(msgspec.Struct, frozen=True):
    """A model that is ready to run."""

    model: Any
    """The transformers model, in evaluation mode, on its device."""
    tokenizer: Any
    """Its tokenizer."""
    eos: frozenset[int]
    """The tokens that end a completion."""
    context: int
    """Most tokens that the model was made for."""
    name: str | None = None
    """What the user called it; what an adapter for it calls its base model."""


def accepts(model: str) -> bool:
    """Whether `model` names something that can be loaded.

    That is `smollm2`, a hub id, or a folder: with a whole model, a LoRA adapter or a `policy.pt`.
    """
    if model == smollm2.NAME:
        return True
    path = Path(model).expanduser()
    if path.is_dir():
        return (path / "config.json").is_file() or is_adapter(path) or policy.is_policy(path)
    return HUB_ID.fullmatch(model) is not None


def served_name(model: str) -> str:
    """The name that clients ask for: a folder's own name, else what the user wrote."""
    path = Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model


def locate(model: str) -> str:
    """What can be loaded wherever this process runs: a folder or a hub id. Converts `smollm2` on first use.

    Raises:
        UsageError: there is no such model.
    """
    if smollm2.is_name(model):
        return str(smollm2.prepare())
    path = Path(model).expanduser()
    if path.is_dir():
        if not accepts(str(path)):
            raise UsageError(
                f"folder {str(path)!r} holds no model: there is no `config.json`, `{ADAPTER_CONFIG}` or"
                f" `{policy.FILE}`; give a Hugging Face folder"
            )
        return str(path.resolve())
    if HUB_ID.fullmatch(model) is None or model.startswith((".", "/", "~")):
        raise UsageError(
            f"model {model!r} is neither `{smollm2.NAME}`, an existing folder nor a hub id `org/name`"
        )
    return model


def _layers(model: str) -> tuple[str, list[Path]]:
    """The whole model that it all rests on, and the folders of what goes on top, the lowest first."""
    source, layers = locate(model), list[Path]()
    while True:
        folder = Path(source)
        if policy.is_policy(folder):
            base = policy.base_model(folder)
        elif is_adapter(folder):
            base = _adapter_base(folder)
        else:
            return source, layers
        if folder in layers:
            raise UsageError(f"model {model!r} is its own base model; see {str(folder)!r}")
        layers.insert(0, folder)
        try:
            source = locate(base)
        except UsageError as error:
            raise UsageError(f"base model of {str(folder)!r}: {error}") from error


def _adapter_base(folder: Path) -> str:
    try:
        base = read_settings(folder).get("base_model_name_or_path")
    except EngineError as error:
        raise UsageError(str(error)) from error
    if not isinstance(base, str) or not base:
        raise UsageError(
            f"adapter in {str(folder)!r} does not name its base model: set `base_model_name_or_path` in"
            f" `{ADAPTER_CONFIG}` to `{smollm2.NAME}`, a folder or a hub id"
        )
    return base


def load(model: str, *, device: str = "auto", dtype: str = "auto") -> Loaded:
    """Load a model and its tokenizer; an adapter or policy is put on its base model.

    Args:
        model: what the user named.
        device: `auto` takes CUDA, then MPS, then the CPU.
        dtype: `auto` is float32 on a CPU, else the model's own.

    Raises:
        UsageError: there is no such model or device, the policy does not fit its base model or was trained on another, or
            the batch cannot hold its kind of layers.
    """
    import torch
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM  # typed only in part
    messages: Any = transformers.utils.logging
    messages.disable_progress_bar()
    source, layers = _layers(model)
    where = _device(device)
    kind: Any = "auto" if dtype == "auto" else getattr(torch, dtype)
    # What lies on a base model goes on in full precision: in half the base would not be known again.
    halved = dtype == "float16" and bool(layers)
    if halved or (dtype == "auto" and where == "cpu"):
        kind = torch.float32
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(_tokenizer(source, layers))
        network = auto_model.from_pretrained(source, dtype=kind)
    except Exception as error:  # each file format has errors of its own
        raise UsageError(
            f"model {model!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    text = network.config.get_text_config()
    odd = sorted(set(getattr(text, "layer_types", None) or ()) - LAYER_TYPES)
    if odd or network.config.is_encoder_decoder:
        raise UsageError(
            f"model {model!r} has layers that engine `local` cannot batch"
            f" ({', '.join(odd) or 'an encoder'}); serve it with `--engine vllm`"
        )
    tokenizer.clean_up_tokenization_spaces = False
    network.to(where).eval()
    # Of what lies further up the base has been merged, and its last digits are those of a precision and a device.
    if layers and policy.is_policy(layers[0]):
        policy.check_base(network, layers[0], name=policy.base_model(layers[0]))
    try:
        for folder in layers:
            if policy.is_policy(folder):
                policy.put_on(network, folder)
            else:
                read_weights(folder, network)()
    except EngineError as error:
        raise UsageError(f"model {model!r} cannot be loaded: {error}") from error
    if halved:
        network.half()
    ends = network.generation_config.eos_token_id
    eos = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
    context = int(getattr(text, "max_position_embeddings", 0) or 4096)
    return Loaded(network, tokenizer, frozenset(eos), context, model)


def _tokenizer(source: str, layers: list[Path]) -> str:
    """Where the tokenizer lies: with the topmost part that has one."""
    own = (folder for folder in reversed(layers) if (folder / "tokenizer_config.json").is_file())
    return str(next(own, source))


def _device(name: str) -> str:
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(name.partition(":")[0], False):
        raise UsageError(f"device `{name}` is not there on this machine; use `device=auto`")
    return name


def read_weights(folder: Path, model: Any) -> Callable[[], None]:
    """Read weights for a model and check them; the returned function puts them in place, for good.

    Args:
        folder: a Hugging Face folder, or one with a LoRA adapter, whatever base model that names.
        model: the model; not changed yet.

    Raises:
        EngineError: the weights are of another model, incomplete, or not finite.
    """
    return Weights(model, base=None).read(folder)
