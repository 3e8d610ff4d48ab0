"""Export of a verl run: what the light half checks and asks for, and the files that the other half writes.

verl's merger is not here: its place takes a program that puts a folder there as the merger leaves one. The rest is what
it is, and what was written is loaded by the backend `local`.
"""

import shutil
import stat
import sys
from pathlib import Path

import pytest

from lightning_core.errors import EngineError, UsageError
from lightning_core.folder import RunFolder
from lightning_core.optimization import OptimizeConfig
from lightning_core.runs import RunConfig
from lightning_core.sampling import SamplingPolicy
from lightning_verl.backend import VerlBackend

torch = pytest.importorskip("torch", reason="weights are compared")
transformers = pytest.importorskip("transformers", reason="weights are compared")
local = pytest.importorskip("lightning_local.train", reason="it loads what is exported")

pytestmark = pytest.mark.slow  # each export starts programs that import torch
# PEFT asks the model under a name that transformers has since changed.
quiet = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
MERGER = """#!/bin/sh
if [ "$3" = verl.model_merger ]; then
    shift 3
    while [ "$1" != --target_dir ]; do
        if [ "$1" = --local_dir ]; then from="$2"; fi
        shift
    done
    if [ ! -d "$from" ]; then echo "no checkpoint at $from" >&2; exit 3; fi
    exec cp -r {merged}/. "$2"
fi
exec {python} "$@"
"""


def make(folder, seed, dtype=None):
    """A tiny model with a tokenizer."""
    from tokenizers import Tokenizer, models

    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True, eos_token_id=1,
        initializer_range=0.5,
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config)
    (model if dtype is None else model.to(dtype)).save_pretrained(folder)
    inner = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="w1").save_pretrained(
        folder
    )
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a run of three steps, with the base model, what verl's merger makes of its checkpoint, and a
    Python that has such a merger."""
    monkeypatch.chdir(tmp_path)
    base, merged = make(tmp_path / "base", 0), make(tmp_path / "merged", 1, torch.bfloat16)
    python = tmp_path / "python"
    python.write_text(MERGER.format(merged=merged, python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    folder = tmp_path / "runs/run"
    (folder / "verl/checkpoints/global_step_3/actor").mkdir(parents=True)
    (folder / "verl/checkpoints/latest_checkpointed_iteration.txt").write_text("3")
    config = RunConfig(
        name="run", agent="a.py:a", created_at=0.0, model="base", sampling=SamplingPolicy(temperature=0.7),
        optimize=OptimizeConfig(
            backend="verl", seed=5, options={"actor_rollout_ref.actor.optim.lr": "1e-5", "platform": "cpu"}
        ),
    )  # fmt: skip
    run = RunFolder(folder)
    run.write_config(config)
    run.save_state({"backend": "verl", "python": str(python), "step": 3})
    assert base.is_dir()
    return folder


def export(run, format, output="out"):
    return VerlBackend().export(run, format=format, output=Path(output))


def greedy(model):
    with torch.no_grad():
        made = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=12, do_sample=False)
    return made[0].tolist()


def adapt(tmp_path, *, alpha=16):
    """Lets the merger leave base weights and an adapter, as verl's does of a LoRA run; gives the adapted model."""
    peft = pytest.importorskip("peft", reason="it makes the adapter")
    shutil.rmtree(tmp_path / "merged")
    shutil.copytree(tmp_path / "base", tmp_path / "merged")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    torch.manual_seed(2)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=4, lora_alpha=alpha, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )  # fmt: skip
    adapted.save_pretrained(tmp_path / "merged/lora_adapter")
    return adapted.merge_and_unload() if alpha else None


def test_a_policy_file_is_what_the_merger_made(run, tmp_path):
    file = export(run, "policy.pt")
    assert file == Path("out/policy.pt")
    loaded = local.load_policy(file, device="cpu")
    merged = transformers.AutoModelForCausalLM.from_pretrained("merged").float()
    assert greedy(loaded.model) == greedy(merged)
    assert greedy(merged) != greedy(transformers.AutoModelForCausalLM.from_pretrained("base"))
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []


def test_a_policy_file_says_what_it_was_trained_from_and_how(run, tmp_path):
    content = torch.load(export(run, "policy.pt"), weights_only=True)
    assert set(content) == {"model_state_dict", "adapter_state_dict", "training_config"}
    assert content["adapter_state_dict"] == {}
    config = content["training_config"]
    assert config["base_model"] == str(tmp_path / "base")
    assert (config["updates"], config["temperature"], config["learning_rate"]) == (3, 0.7, 1e-5)
    assert (config["backend"], config["algorithm"], config["seed"]) == ("verl", "grpo", 5)
    assert config["actor_rollout_ref.actor.optim.lr"] == "1e-5"
    assert "platform" not in config


def test_another_base_model_is_refused_by_its_fingerprint(run, tmp_path):
    file = export(run, "policy.pt")
    make(tmp_path / "other", 7)
    with pytest.raises(UsageError, match="was trained on another base model"):
        local.load_policy(file, base=str(tmp_path / "other"), device="cpu")


@quiet
@pytest.mark.parametrize("format", ["policy.pt", "hf"])
def test_an_adapter_is_exported_with_its_effect(run, tmp_path, format):
    expected = greedy(adapt(tmp_path))
    written = export(run, format)
    if format == "hf":
        model = transformers.AutoModelForCausalLM.from_pretrained(written)
        assert transformers.AutoTokenizer.from_pretrained(written).eos_token == "w1"
    else:
        content = torch.load(written, weights_only=True)
        assert content["model_state_dict"] == {}
        model = local.load_policy(written, device="cpu").model
    assert greedy(model) == expected
    assert expected != greedy(transformers.AutoModelForCausalLM.from_pretrained("base"))


@quiet
@pytest.mark.parametrize("format", ["policy.pt", "hf"])
def test_an_adapter_of_unknown_scale_is_refused(run, tmp_path, format):
    adapt(tmp_path, alpha=0)
    with pytest.raises(EngineError, match=r"`lora_alpha` is 0"):
        export(run, format)
    assert not Path("out").exists()


def test_modules_of_the_current_folder_do_not_stand_before_those_of_the_environment(run, tmp_path):
    (tmp_path / "msgspec.py").write_text("raise SystemExit('of the current folder')")
    (tmp_path / "transformers.py").write_text("raise SystemExit('of the current folder')")
    assert export(run, "policy.pt").is_file()


def test_a_hugging_face_folder_is_what_the_merger_made(run, tmp_path):
    Path("out").mkdir()
    assert export(run, "hf") == Path("out")
    names = sorted(each.name for each in Path("out").iterdir())
    assert names == sorted(each.name for each in (tmp_path / "merged").iterdir())


def test_what_cannot_be_exported_is_said_before_anything_is_written(run, tmp_path):
    with pytest.raises(UsageError, match=r"writes `hf`, `policy\.pt`"):
        export(run, "peft")
    Path("full").mkdir()
    Path("full/file").touch()
    with pytest.raises(UsageError, match="not an empty folder"):
        export(run, "hf", "full")
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="there is no such folder"):
        export(run, "policy.pt")
    shutil.rmtree(run / "verl/checkpoints/global_step_3")
    with pytest.raises(EngineError, match=r"verl's merger failed with status 3:\nno checkpoint"):
        export(run, "hf")
    assert not Path("out").exists()


def test_values_of_a_run_file_are_written_in_hydras_grammar():
    text = VerlBackend().option_text
    assert text(True) == "true"
    assert text(1e-6) == "1e-06"
    assert text(["a b", 1]) == "['a b',1]"
    assert text("null") == "null"
