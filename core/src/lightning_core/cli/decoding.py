"""The text of token ids, where a tokenizer can be had without a framework being imported for nothing."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from lightning_core.errors import UsageError
from lightning_core.folder import RunFolder

Decode = Callable[[Sequence[int]], str]
"""The text of token ids, special ones included."""

_FILE: Final = "tokenizer.json"


def load_decoder(name: str) -> Decode:
    """The tokenizer of a folder, of a `tokenizer.json`, or of a name that `transformers` knows.

    Raises:
        UsageError: there is none, or the library that reads it is not installed.
    """
    path = Path(name)
    file = path / _FILE if path.is_dir() else path
    if file.is_file():
        return _from_file(file)
    transformers = _library("transformers", name)
    try:
        made: Any = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"tokenizer {name!r}: cannot be loaded: {first}; give a folder with `{_FILE}`"
        ) from error

    def decode(ids: Sequence[int]) -> str:
        return str(made.decode(list(ids), skip_special_tokens=False))

    return decode


def decoder_of(folder: RunFolder | None) -> Decode | None:
    """The tokenizer that lies in a run's folder, or in that of its model; None where none does or none can be read."""
    if folder is None:
        return None
    files = sorted(folder.path.rglob(_FILE))
    if not files and (folder.path / "run.json").is_file():
        model = folder.read_config().model
        if model and (Path(model) / _FILE).is_file():
            files = [Path(model) / _FILE]
    if not files or importlib.util.find_spec("tokenizers") is None:
        return None
    return _from_file(files[0])


def _from_file(file: Path) -> Decode:
    tokenizers = _library("tokenizers", str(file))
    try:
        made: Any = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"tokenizer {str(file)!r}: cannot be read: {error}") from error

    def decode(ids: Sequence[int]) -> str:
        return str(made.decode(list(ids), skip_special_tokens=False))

    return decode


def _library(name: str, tokenizer: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"tokenizer {tokenizer!r}: needs `{name}`, which is not installed; `pip install {name}`"
        ) from error
