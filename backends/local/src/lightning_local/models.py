"""Loading a causal language model, and new weights for it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lightning_core.errors import EngineError, UsageError
from lightning_local import smollm2

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


def accepts(model: str) -> bool:
    """Whether `model` names something that can be loaded: `smollm2`, a folder with a model, or a hub id."""
    if model == smollm2.NAME:
        return True
    path = Path(model).expanduser()
    if path.is_dir():
        return (path / "config.json").is_file()
    return HUB_ID.fullmatch(model) is not None


def served_name(model: str) -> str:
    """The name that clients ask for: a folder's own name, else what the user wrote."""
    path = Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model


def locate(model: str) -> str:
    """What transformers loads: a folder or a hub id. Converts `smollm2` on first use.

    Raises:
        UsageError: there is no such model.
    """
    if model == smollm2.NAME:
        return str(smollm2.prepare())
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(
                f"folder {str(path)!r} holds no model: `config.json` is missing; give a Hugging Face folder"
            )
        return str(path)
    if HUB_ID.fullmatch(model) is None or model.startswith((".", "/", "~")):
        raise UsageError(
            f"model {model!r} is neither `{smollm2.NAME}`, an existing folder nor a hub id `org/name`"
        )
    return model


def load(model: str, *, device: str = "auto", dtype: str = "auto") -> Loaded:
    """Load a model and its tokenizer.

    Args:
        model: what the user named.
        device: `auto` takes CUDA, then MPS, then the CPU.
        dtype: `auto` is float32 on a CPU, else the model's own.

    Raises:
        UsageError: there is no such model or device, or the batch cannot hold its kind of layers.
    """
    import torch
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM  # typed only in part
    messages: Any = transformers.utils.logging
    messages.disable_progress_bar()
    source = locate(model)
    where = _device(device)
    kind: Any = "auto" if dtype == "auto" else getattr(torch, dtype)
    if dtype == "auto" and where == "cpu":
        kind = torch.float32
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
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
    ends = network.generation_config.eos_token_id
    eos = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
    context = int(getattr(text, "max_position_embeddings", 0) or 4096)
    return Loaded(network, tokenizer, frozenset(eos), context)


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
    """Read weights that fit `model` and check them; the returned function puts them in place.

    Args:
        folder: a Hugging Face folder with `config.json` and the weights.
        model: the served model; not changed yet.

    Raises:
        EngineError: the weights are of another model, incomplete, or not finite.
    """
    import torch
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    where = f"weights in {os.fspath(folder)!r}"
    if not (folder / "config.json").is_file():
        raise EngineError(
            f"{where} cannot be read: `config.json` is missing; save with `save_pretrained`"
        )
    try:
        new, report = auto_model.from_pretrained(
            folder, dtype=model.dtype, output_loading_info=True
        )
    except Exception as error:  # each file format has errors of its own
        raise EngineError(f"{where} cannot be read: {type(error).__name__}: {error}") from error
    if type(new) is not type(model):
        raise EngineError(
            f"{where} are of a `{type(new).__name__}`, but a `{type(model).__name__}` is served"
        )
    faults = {
        kind: sorted(map(str, report.get(kind) or ()))
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
    }
    state, served = new.state_dict(), model.state_dict()
    faults["other_shapes"] = sorted(
        key for key in served.keys() | state.keys()
        if key not in state or key not in served or state[key].shape != served[key].shape
    )  # fmt: skip
    for kind, keys in faults.items():
        if keys:
            raise EngineError(
                f"{where} do not fit the served model: {len(keys)} {kind.replace('_', ' ')}, first {keys[0]}"
            )
    if new.config.tie_word_embeddings != model.config.tie_word_embeddings:
        raise EngineError(
            f"{where} have `tie_word_embeddings={new.config.tie_word_embeddings}`, the served model has"
            f" {model.config.tie_word_embeddings}"
        )
    bad = next((key for key, value in state.items() if not bool(torch.isfinite(value).all())), None)
    if bad is not None:
        raise EngineError(f"{where} are not finite: `{bad}` holds NaN or infinity")

    def put() -> None:
        with torch.no_grad():
            for key, value in served.items():
                value.copy_(state[key])

    return put
