"""New weights for a model that is being served: a whole model, or a LoRA adapter on the kept base weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.errors import EngineError
from lightning_local import smollm2
from lightning_local.serve.adapter import Adapter, LowRank, is_adapter, read_adapter

if TYPE_CHECKING:
    import torch


def same_base(one: str, other: str) -> bool:
    """Whether two names mean one model: folders by their path, `smollm2` also by its converted folder."""
    return _identity(one) == _identity(other)


def _identity(name: str) -> str:
    if smollm2.is_name(name):
        return smollm2.NAME
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else name


class Weights:
    """The weights of one served model, and where they came from.

    With an adapter, a layer's weight is always computed anew from its base weight, so that nothing adds up however
    many adapters come one after the other. Of the layers that the adapter names, the base weights are kept beside.
    """

    def __init__(self, model: Any, *, base: str | None) -> None:
        """The weights as they are.

        Args:
            model: the served model.
            base: its name, for comparison with the name in an adapter; None where it is not known.
        """
        self._model = model
        self._base = base
        self._kept: dict[str, torch.Tensor] = {}

    @property
    def kept_bytes(self) -> int:
        """Memory that the base weights of adapted layers take."""
        return sum(tensor.nbytes for tensor in self._kept.values())

    def read(self, folder: Path) -> Callable[[], None]:
        """Read weights and check them; the returned function puts them in place.

        Args:
            folder: a Hugging Face folder with `config.json` and the weights, or one with a LoRA adapter.

        Raises:
            EngineError: the weights are of another model, incomplete, or not finite. The model is as it was.
        """
        if is_adapter(folder):
            return self.prepare(read_adapter(folder), f"adapter in {os.fspath(folder)!r}")
        state = _read_state(folder, self._model)
        served = self._model.state_dict()

        def put() -> None:
            import torch

            with torch.no_grad():
                for key, value in served.items():
                    value.copy_(state[key])
            self._kept.clear()
            self._base = str(folder)

        return put

    def prepare(self, adapter: Adapter, where: str) -> Callable[[], None]:
        """Check that an adapter fits; the returned function puts it in place of any other.

        Raises:
            EngineError: it was made for another model, or names a layer that this one has not.
        """
        if adapter.base and self._base and not same_base(adapter.base, self._base):
            raise EngineError(
                f"{where} was made for base model {adapter.base!r}, but {self._base!r} is served; load that one"
                " first, or correct `base_model_name_or_path` if they are the same"
            )
        layers = [(update, self._layer(update, where)) for update in adapter.updates]

        def put() -> None:
            import torch

            with torch.no_grad():
                # Copies first: where memory runs out, nothing has changed yet.
                fresh = {
                    update.module: layer.weight.detach().clone()
                    for update, layer in layers
                    if update.module not in self._kept
                }
                named = {update.module for update in adapter.updates}
                for module in self._kept.keys() - named:
                    self._model.get_submodule(module).weight.copy_(self._kept.pop(module))
                self._kept.update(fresh)
                for update, layer in layers:
                    _merge(layer, self._kept[update.module], update)

        return put

    def _layer(self, update: LowRank, where: str) -> Any:
        """The layer that an update names."""
        import torch
        from transformers.pytorch_utils import Conv1D

        try:
            layer = self._model.get_submodule(update.module)
        except AttributeError as error:
            raise EngineError(
                f"{where} does not fit the served model: it has no `{update.module}`"
            ) from error
        if not isinstance(layer, (torch.nn.Linear, Conv1D)):
            raise EngineError(
                f"{where} changes `{update.module}`, a `{type(layer).__name__}`; only linear layers can be adapted"
            )
        if layer.weight is self._model.get_input_embeddings().weight:
            raise EngineError(
                f"{where} changes `{update.module}`, whose weight is also the embedding's;"
                " merge it and load the whole model's folder"
            )
        expected = tuple(layer.weight.shape)
        if isinstance(layer, Conv1D):
            expected = expected[::-1]  # it holds its weight transposed
        shape = (update.b.shape[0], update.a.shape[1])
        if shape != expected:
            raise EngineError(
                f"{where} does not fit the served model: `{update.module}` is {expected}, and it is made for {shape}"
            )
        return layer


def replace(model: Any, state: Mapping[str, Any], where: str) -> None:
    """Put some or all weights in place of a model's.

    Args:
        model: the model.
        state: tensors by their names in it.
        where: what error messages call them.

    Raises:
        EngineError: they do not fit, or are not finite.
    """
    import torch

    there = model.state_dict()
    for key, value in state.items():
        if key not in there:
            raise EngineError(f"{where} does not fit the base model: it has no `{key}`")
        if value.shape != there[key].shape:
            raise EngineError(
                f"{where} does not fit the base model: `{key}` is {tuple(there[key].shape)} there and"
                f" {tuple(value.shape)} here"
            )
        if not bool(torch.isfinite(value).all()):
            raise EngineError(f"{where} is not finite: `{key}` holds NaN or infinity")
    with torch.no_grad():
        for key, value in state.items():
            there[key].copy_(value)


def _merge(layer: Any, base: torch.Tensor, update: LowRank) -> None:
    """Make the layer's weight `base + scale * b @ a`, summed in float32 or finer."""
    import torch

    weight = layer.weight
    kind = torch.promote_types(weight.dtype, torch.float32)
    a, b = update.a.to(weight.device, kind), update.b.to(weight.device, kind)
    left, right = (b, a) if isinstance(layer, torch.nn.Linear) else (a.T, b.T)
    weight.copy_(torch.addmm(base.to(kind), left, right, alpha=update.scale))


def _read_state(folder: Path, model: Any) -> dict[str, Any]:
    """A whole model's weights, which fit `model`.

    Raises:
        EngineError: they do not, or cannot be read.
    """
    import torch
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    where = f"weights in {os.fspath(folder)!r}"
    if not (folder / "config.json").is_file():
        raise EngineError(
            f"{where} cannot be read: neither `config.json` nor `adapter_config.json` is there;"
            " save with `save_pretrained`"
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
    state: dict[str, Any] = new.state_dict()
    served = model.state_dict()
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
    return state
