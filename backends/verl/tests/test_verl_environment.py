"""The verl environment: found, checked, and refused with the next step."""

import json
import sys

import pytest

from lightning_core.errors import UsageError
from lightning_verl import environment


@pytest.fixture
def python(tmp_path):
    """A program that answers as a Python with these distributions would."""

    def make(versions, *, status=0):
        path = tmp_path / "python"
        answer = json.dumps(versions)
        path.write_text(f"#!{sys.executable}\nprint({answer!r})\nraise SystemExit({status})\n")
        path.chmod(0o755)
        return path

    return make


WHOLE = {
    "verl": "0.9.1", "torch": "2.13.0", "vllm": "0.28.0", "ray": "2.60.0", "transformers": "5.10.4",
    "lightning-core": "1.0.0", "lightning-verl": "1.0.0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_versions(monkeypatch):
    monkeypatch.setattr(environment.importlib.metadata, "version", lambda name: "1.0.0")


def test_a_whole_environment_is_taken(python):
    assert environment.check(python(WHOLE)) == WHOLE


@pytest.mark.parametrize("missing", environment.NEEDED)
def test_what_is_missing_is_named_with_the_next_step(python, missing):
    there = {name: version for name, version in WHOLE.items() if name != missing}
    with pytest.raises(UsageError, match=f"lacks `{missing}`.*make verl-env"):
        environment.check(python(there))


def test_another_release_of_verl_is_refused(python):
    with pytest.raises(UsageError, match=r"has verl 0\.10\.0.*works with 0\.9\.1"):
        environment.check(python(WHOLE | {"verl": "0.10.0"}))


def test_another_release_of_ours_is_refused(python):
    with pytest.raises(UsageError, match="the same release on both sides"):
        environment.check(python(WHOLE | {"lightning-core": "1.1.0"}))


def test_what_is_no_python_is_said_to_be_none(python, tmp_path):
    with pytest.raises(UsageError, match="does not run as a Python"):
        environment.check(python(WHOLE, status=3))
    (tmp_path / "text").write_text("no program")
    with pytest.raises(UsageError, match="does not run as a Python"):
        environment.check(tmp_path / "text")


def test_the_option_goes_before_the_variable_and_that_before_the_folder(
    python, tmp_path, monkeypatch
):
    named = python(WHOLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    with pytest.raises(
        UsageError, match=r"no Python at '\.venv-verl/bin/python'.*--set python=PATH"
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
