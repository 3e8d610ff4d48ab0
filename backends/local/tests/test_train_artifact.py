"""Artifacts: what is exported is the policy that was trained, for whoever loads it."""

import shutil

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightning_core.errors import UsageError
from lightning_local import models
from lightning_local.train import LocalOptions, Trainer, export, load_policy

IDS = torch.tensor([[5, 6, 7, 30, 40]])


@pytest.fixture
def trained(folders, tmp_path, make_sample):
    """`trained(…)`: a checkpoint after some steps, and the trainer."""

    def made(model="llama", **options):
        settings = {"learning_rate": 1e-2, "lora_rank": 4, **options}
        trainer = Trainer(str(folders[model]), LocalOptions(**settings), temperature=1.0)
        samples = [
            make_sample([5, 6, 7], [30 + n], advantage=1.0 - 2 * (n % 2), credit=float(n % 2), name=f"{n}")
            for n in range(4)
        ]  # fmt: skip
        for version in range(3):
            trainer.update(samples, version=version)
        trainer.save(tmp_path / "checkpoint")
        return trainer, tmp_path / "checkpoint"

    return made


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("model", ["llama", "tied"])
def test_a_hugging_face_folder_gives_the_trained_logits(
    trained, folders, tmp_path, model, lora_rank
):
    trainer, checkpoint = trained(model, lora_rank=lora_rank)
    folder = export(checkpoint, "hf", tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    want = logits(trainer.policy.network)
    torch.testing.assert_close(logits(loaded), want, atol=1e-4, rtol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(folders[model])
    assert not torch.allclose(logits(base), want, atol=1e-2)
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert not any("lora" in key for key in loaded.state_dict())


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("model", ["llama", "tied"])
def test_policy_pt_goes_round(trained, tmp_path, model, lora_rank):
    trainer, checkpoint = trained(model, lora_rank=lora_rank)
    file = export(checkpoint, "policy.pt", tmp_path / "out")
    assert file == tmp_path / "out" / "policy.pt"
    want = logits(trainer.policy.network)
    for loaded in (
        load_policy(file),
        load_policy(tmp_path / "out"),
        models.load(str(tmp_path / "out")),
    ):
        torch.testing.assert_close(logits(loaded.model), want, atol=1e-4, rtol=1e-4)


def test_policy_pt_holds_what_it_says(trained, folders, tmp_path):
    _, checkpoint = trained(learning_rate=1e-2)
    content = torch.load(export(checkpoint, "policy.pt", tmp_path / "out"), weights_only=True)
    assert set(content) == {"model_state_dict", "adapter_state_dict", "training_config"}
    assert content["model_state_dict"] == {}
    parts = {key.rsplit(".", 2)[1] for key in content["adapter_state_dict"]}
    assert parts == {"lora_A", "lora_B"}
    config = content["training_config"]
    assert config["base_model"] == str(folders["llama"])
    assert config["learning_rate"] == 1e-2
    assert config["lora_rank"] == 4
    assert config["optimizer_steps"] == 3
    assert {field.name for field in msgspec.structs.fields(LocalOptions)} <= set(config)


def test_full_weights_are_all_in_policy_pt(trained, tmp_path):
    trainer, checkpoint = trained(lora_rank=0)
    content = torch.load(export(checkpoint, "policy.pt", tmp_path / "out"), weights_only=True)
    assert content["adapter_state_dict"] == {}
    state = trainer.policy.network.state_dict()
    assert set(content["model_state_dict"]) == set(state)
    assert all(torch.equal(content["model_state_dict"][key], state[key]) for key in state)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_peft_folder_loads_on_the_base_model(trained, folders, tmp_path):
    import peft

    trainer, checkpoint = trained()
    folder = export(checkpoint, "peft", tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(folders["llama"])
    loaded = peft.PeftModel.from_pretrained(base, folder)
    torch.testing.assert_close(logits(loaded), logits(trainer.policy.network))


def test_an_adapter_trained_on_a_policy_goes_on_top_of_it(trained, tmp_path, make_sample):
    first, checkpoint = trained()
    lower = export(checkpoint, "policy.pt", tmp_path / "lower").parent
    second = Trainer(str(lower), LocalOptions(lora_rank=2, learning_rate=1e-2), temperature=1.0)
    torch.testing.assert_close(
        logits(second.policy.network), logits(first.policy.network), atol=1e-4, rtol=1e-4
    )
    second.update([make_sample([5, 6, 7], [44])], version=0)
    second.save(tmp_path / "second")
    want = logits(second.policy.network)
    assert not torch.allclose(want, logits(first.policy.network), atol=1e-3)
    for kind in ("policy.pt", "peft", "hf"):
        export(tmp_path / "second", kind, tmp_path / kind)
        loaded = models.load(str(tmp_path / kind))
        torch.testing.assert_close(logits(loaded.model), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["policy.pt", "peft", "hf"])
def test_the_value_network_comes_separately(trained, tmp_path, kind):
    trainer, checkpoint = trained(algorithm="ppo")
    export(checkpoint, kind, tmp_path / "out")
    content = torch.load(tmp_path / "out" / "value.pt", weights_only=True)
    assert set(content) == {"value_state_dict", "training_config"}
    state = trainer.value.trained_state()
    assert all(torch.equal(content["value_state_dict"][key], state[key]) for key in state)


def test_an_export_replaces_what_was_there(trained, tmp_path):
    _, checkpoint = trained()
    export(checkpoint, "hf", tmp_path / "out")
    export(checkpoint, "peft", tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


def test_what_cannot_be_exported_is_said(trained, tmp_path):
    _, checkpoint = trained(lora_rank=0)
    with pytest.raises(UsageError, match=r"'onnx'.*`policy\.pt`, `peft`, `hf`"):
        export(checkpoint, "onnx", tmp_path / "out")
    with pytest.raises(UsageError, match="no adapter"):
        export(checkpoint, "peft", tmp_path / "out")
    with pytest.raises(UsageError, match="holds no checkpoint"):
        export(tmp_path / "nothing", "hf", tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        export(checkpoint, "hf", tmp_path / "file")
    with pytest.raises(UsageError, match="no export"):
        export(checkpoint, "hf", tmp_path)
    assert (tmp_path / "file").exists()


def test_another_base_model_is_not_taken_for_the_trained_one(trained, folders, tmp_path):
    _, checkpoint = trained()
    file = export(checkpoint, "policy.pt", tmp_path / "out")
    with pytest.raises(UsageError, match=r"another base model than .* fingerprint"):
        load_policy(file, base=str(folders["other"]))


def test_a_base_model_that_was_replaced_since_is_not_served_with_the_policy(
    trained, folders, tmp_path
):
    trainer, checkpoint = trained()
    out = export(checkpoint, "policy.pt", tmp_path / "out").parent
    content = torch.load(out / "policy.pt", weights_only=True)
    base = tmp_path / "base"
    content["training_config"]["base_model"] = str(base)
    torch.save(content, out / "policy.pt")
    shutil.copytree(folders["llama"], base)
    want = logits(trainer.policy.network)
    # As parts of the whole: by how much single logits are off in half precision depends on the processor's arithmetic.
    assert (logits(models.load(str(base)).model) - want).norm() > 0.3 * want.norm()
    for dtype, part in (("float32", 1e-5), ("bfloat16", 0.05), ("float16", 0.01)):
        loaded = models.load(str(out), dtype=dtype).model
        assert loaded.dtype is getattr(torch, dtype)
        assert (logits(loaded.float()) - want).norm() < part * want.norm()
    shutil.rmtree(base)
    shutil.copytree(folders["other"], base)
    with pytest.raises(UsageError) as refused:
        models.load(str(out))
    said = str(refused.value)
    assert f"policy {str(out / 'policy.pt')!r} was trained on another base model than" in said
    assert f"expected the fingerprint {trainer.policy.fingerprint!r} but got" in said
    assert "put that model there again" in said


def test_code_in_a_policy_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"training_config": {"base_model": Evil()}}, tmp_path / "policy.pt")
    with pytest.raises(UsageError, match="cannot be read"):
        load_policy(tmp_path / "policy.pt")
    assert not (tmp_path / "ran").exists()
