"""LoRA adapters on a served model: exactly the base plus what the adapter adds, however often and in whatever order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightning_core.errors import EngineError, UsageError
from lightning_local import models
from lightning_local.engine import LocalEngineFactory
from lightning_local.serve.weights import Weights, same_base

# PEFT still reads a property that transformers renames.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
PROMPT = [5, 6, 7, 8]

Adapt = Callable[..., Path]


@pytest.fixture
def adapt(tmp_path, folders) -> Adapt:
    """`adapt(name, seed=0, base=..., **settings)`: an adapter with random weights, made and saved by PEFT."""
    import peft

    def made(name: str, *, seed: int = 0, base: str = "llama", **settings: Any) -> Path:
        model = models.load(str(folders[base])).model
        model.config._name_or_path = model.name_or_path = str(folders[base])
        config = peft.LoraConfig(
            **{"r": 4, "lora_alpha": 8, "target_modules": ATTENTION, **settings}
        )
        adapted = peft.get_peft_model(model, config)
        generator = torch.Generator().manual_seed(seed)
        for key, value in adapted.named_parameters():
            if "lora_" in key:
                value.data.normal_(std=0.3, generator=generator)
        adapted.save_pretrained(tmp_path / name, save_embedding_layers=False)
        return tmp_path / name

    return made


def merged(base: Path, *adapters: Path) -> dict[str, torch.Tensor]:
    """What PEFT's own merge gives."""
    import peft

    model = models.load(str(base)).model
    for adapter in adapters:
        model = peft.PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    return {key: value.clone() for key, value in model.state_dict().items()}


def assert_state(model: Any, expected: dict[str, torch.Tensor], **tolerance: float) -> None:
    state = model.state_dict()
    assert state.keys() == expected.keys()
    for key, value in state.items():
        torch.testing.assert_close(value, expected[key], **tolerance)


def rewrite(folder: Path, **settings: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


async def load(client: Any, folder: Path) -> None:
    await client.ok("/admin/weights", folder=str(folder))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"layers.0.self_attn.q_proj": 2}, "alpha_pattern": {"v_proj": 1}},
        {"rank_pattern": {r"layers\.1\..*": 7}, "use_rslora": True, "lora_alpha": 3},
        {"target_modules": ["down_proj", "lm_head"]},
        {"layers_to_transform": [1]},
        {"init_lora_weights": "gaussian"},
    ],
)
def test_the_weights_are_those_that_peft_merges(adapt, folders, settings):
    folder = adapt("one", **settings)
    loaded = models.load(str(folders["llama"]))
    models.read_weights(folder, loaded.model)()
    expected = merged(folders["llama"], folder)
    assert_state(loaded.model, expected, rtol=0, atol=1e-6)
    before = models.load(str(folders["llama"])).model.state_dict()
    assert any(not torch.equal(value, before[key]) for key, value in expected.items())


def test_a_layer_that_holds_its_weight_transposed_is_adapted_too():
    from transformers import GPT2Config, GPT2LMHeadModel

    from lightning_local.serve.adapter import make_adapter

    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    layer = model.transformer.h[0].attn.c_proj  # as many inputs as outputs: its shape does not tell
    a, b = torch.randn(2, 8), torch.randn(8, 2)
    state = {f"transformer.h.0.attn.c_proj.lora_{n}.weight": t for n, t in (("A", a), ("B", b))}
    inputs, before = torch.randn(3, 8), layer.weight.detach().clone()
    plain = layer(inputs).detach()
    weights = Weights(model, base=None)
    weights.prepare(make_adapter({"r": 2, "lora_alpha": 6}, state, "adapter"), "adapter")()
    torch.testing.assert_close(layer(inputs).detach(), plain + 3 * (inputs @ a.T) @ b.T)
    assert not torch.equal(layer.weight, before)


def test_nothing_adds_up_and_what_an_adapter_does_not_name_is_the_base_again(adapt, folders):
    loaded = models.load(str(folders["llama"]))
    weights = Weights(loaded.model, base=loaded.name)
    base = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    queries = adapt("queries", target_modules=["q_proj"])
    all_four = adapt("all", seed=1)
    weights.read(queries)()
    first = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    kept = weights.kept_bytes
    for folder in (queries, all_four, queries, all_four, all_four, queries):
        weights.read(folder)()
    # Bit by bit, not nearly.
    assert_state(loaded.model, first, rtol=0, atol=0)
    assert [key for key in base if not torch.equal(first[key], base[key])] == [
        f"model.layers.{i}.self_attn.q_proj.weight" for i in range(2)
    ]
    # Only what is adapted is kept beside, and once.
    assert weights.kept_bytes == kept
    assert kept == sum(base[f"model.layers.{i}.self_attn.q_proj.weight"].nbytes for i in range(2))


async def test_a_server_takes_adapters_and_whole_models_in_turn(serve, adapt, folders, reference):
    one, two = adapt("one"), adapt("two", seed=1)
    rewrite(on_other := adapt("three", seed=2, base="other"))
    answers = {
        name: reference(model, PROMPT, 24)
        for name, model in {
            "base": models.load(str(folders["llama"])).model,
            "one": _from_state(folders["llama"], merged(folders["llama"], one)),
            "two": _from_state(folders["llama"], merged(folders["llama"], two)),
            "other": models.load(str(folders["other"])).model,
            "on other": _from_state(folders["other"], merged(folders["other"], on_other)),
        }.items()
    }
    assert len({tuple(answer) for answer in answers.values()}) == 5
    async with serve() as client:
        for folder, name in [
            (None, "base"), (one, "one"), (two, "two"), (one, "one"), (folders["other"], "other"),
            (on_other, "on other"), (folders["llama"], "base"), (two, "two"),
        ]:  # fmt: skip
            if folder is not None:
                await load(client, folder)
            assert (await client.complete(PROMPT))["token_ids"] == answers[name], name


def _from_state(folder: Path, state: dict[str, torch.Tensor]) -> Any:
    model = models.load(str(folder)).model
    model.load_state_dict(state)
    return model


def _spoil(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = folder / "adapter_model.safetensors"
    state = load_file(file)
    change(state)
    save_file(state, file)


def _first(state: dict[str, torch.Tensor], part: str) -> str:
    return next(key for key in state if f"lora_{part}" in key)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: rewrite(f, base_model_name_or_path="org/other"), "made for base model 'org/other'"),
        (lambda f: rewrite(f, use_dora=True), "use_dora"),
        (lambda f: rewrite(f, bias="all"), "bias=all"),
        (lambda f: rewrite(f, peft_type="IA3"), "peft_type=IA3"),
        (lambda f: rewrite(f, init_lora_weights="pissa"), "pissa"),
        (lambda f: rewrite(f, modules_to_save=["lm_head"]), "modules_to_save"),
        (lambda f: rewrite(f, r=3), "rank 4"),
        (lambda f: rewrite(f, lora_alpha=None), "settings that cannot be used"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), r"adapter_model\.safetensors"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"no"), "cannot be read"),
        (lambda f: _spoil(f, lambda s: s[_first(s, "A")].fill_(float("nan"))), "not finite"),
        (lambda f: _spoil(f, lambda s: s.pop(_first(s, "B"))), "only one of A and B"),
        (lambda f: _spoil(f, lambda s: s.update(x=torch.ones(1))), "`x`"),
        (lambda f: _spoil(f, lambda s: s.clear()), "no weights"),
    ],
)  # fmt: skip
async def test_what_does_not_fit_is_refused_and_the_old_weights_stay(serve, adapt, spoil, words):
    good, bad = adapt("good"), adapt("bad", seed=1)
    spoil(bad)
    async with serve() as client:
        await load(client, good)
        before = (await client.complete(PROMPT))["token_ids"]
        status, reply = await client.post("/admin/weights", {"folder": str(bad)})
        assert status == 409
        assert words.replace("\\", "") in reply["error"]["message"]
        assert (await client.complete(PROMPT))["token_ids"] == before
        assert (await client.stats())["weights_version"] == 1


@pytest.mark.parametrize(
    ("served", "made_for", "settings", "words"),
    [
        ("llama", "other", {}, "was made for base model"),
        ("llama", "wide", {"target_modules": ["down_proj"]}, "it is made for"),
        pytest.param(
            "tied",
            "tied",
            {"target_modules": ["lm_head"]},
            "also the embedding's",
            # PEFT makes it, but warns.
            marks=pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings"),
        ),
        ("llama", "llama", {"target_modules": ["embed_tokens"]}, "linear layer"),
    ],
)
async def test_an_adapter_of_another_kind_of_model_is_refused(
    serve, adapt, served, made_for, settings, words
):
    folder = adapt("one", base=made_for, **settings)
    if made_for == "wide":
        rewrite(folder, base_model_name_or_path=None)
    async with serve(served) as client:
        status, reply = await client.post("/admin/weights", {"folder": str(folder)})
        assert (status, words in reply["error"]["message"]) == (409, True), reply


def test_names_of_one_base_model_are_seen_as_one(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    assert same_base("m", str(tmp_path / "m"))
    assert same_base("smollm2", "/home/someone/.cache/lightning-core/smollm2-0.1.2-1")
    assert same_base("org/name", "org/name")
    assert not same_base("smollm2", "org/smollm2")
    assert not same_base("m", "smollm2")


# What `--model DIR` takes.


def save_policy(folder: Path, **parts: Any) -> Path:
    folder.mkdir()
    torch.save(parts, folder / "policy.pt")
    return folder


def adapter_parts(folder: Path) -> dict[str, Any]:
    return {
        "adapter_state_dict": load_file(folder / "adapter_model.safetensors"),
        "config": json.loads((folder / "adapter_config.json").read_text()),
    }


def test_an_adapters_folder_is_a_model(adapt, folders):
    folder = adapt("one")
    assert LocalEngineFactory().accepts(str(folder))
    assert models.served_name(str(folder)) == "one"
    loaded = models.load(str(folder))
    assert_state(loaded.model, merged(folders["llama"], folder), rtol=0, atol=1e-6)


def test_an_adapter_may_rest_on_another(adapt, folders):
    one, two = adapt("one"), adapt("two", seed=1)
    rewrite(two, base_model_name_or_path=str(one))
    expected = merged(folders["llama"], one, two)
    loaded = models.load(str(two))
    assert_state(loaded.model, expected, rtol=0, atol=1e-6)
    # The same in place, where the first is what is served; but not one that was made for what that rests on.
    served = models.load(str(one))
    weights = Weights(served.model, base=served.name)
    weights.read(two)()
    assert_state(served.model, expected, rtol=0, atol=1e-6)
    with pytest.raises(EngineError, match="made for base model"):
        weights.read(adapt("three"))
    rewrite(one, base_model_name_or_path=str(two))
    with pytest.raises(UsageError, match="its own base"):
        models.load(str(two))


@pytest.mark.parametrize("flat", [True, False])
def test_a_policy_with_an_adapter_is_a_model(adapt, folders, tmp_path, flat):
    one = adapt("one", lora_alpha=5)
    parts = adapter_parts(one)
    settings = {"r": 4, "lora_alpha": 5} if flat else {"adapter_config": parts["config"]}
    folder = save_policy(
        tmp_path / "policy",
        model_state_dict={},
        adapter_state_dict=parts["adapter_state_dict"],
        training_config={"base_model": str(folders["llama"]), "learning_rate": 1e-3, **settings},
    )
    assert LocalEngineFactory().accepts(str(folder))
    loaded = models.load(str(folder))
    assert_state(loaded.model, merged(folders["llama"], one), rtol=0, atol=1e-6)
    assert loaded.tokenizer("the user")["input_ids"]


def test_a_policy_with_whole_weights_is_a_model(folders, tmp_path):
    other = models.load(str(folders["other"])).model.state_dict()
    folder = save_policy(
        tmp_path / "policy",
        model_state_dict=dict(other),
        adapter_state_dict={},
        training_config={"base_model": str(folders["llama"])},
    )
    assert_state(models.load(str(folder)).model, dict(other), rtol=0, atol=0)


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("evil"),))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"training_config": {}}, "base_model"),
        ({"training_config": {"base_model": "no such/thing"}}, "base model of"),
        ({"training_config": {"base_model": "LLAMA"}}, "no weights"),
        ({"training_config": {"base_model": "LLAMA"}, "model_state_dict": {"x": torch.ones(1)}}, "`x`"),
        (
            {"training_config": {"base_model": "LLAMA"}, "model_state_dict": {"lm_head.weight": torch.ones(1)}},
            "`lm_head.weight` is",
        ),
        (
            {"training_config": {"base_model": "LLAMA"}, "adapter_state_dict": {"lm_head.lora_A.weight": torch.ones(1)}},
            "settings that cannot be used",
        ),
        ({"training_config": []}, "not of the form"),
        ({"training_config": {"base_model": "LLAMA", "x": Evil()}}, "cannot be read"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_used_is_refused(folders, tmp_path, monkeypatch, parts, words):
    monkeypatch.chdir(tmp_path)
    config = parts["training_config"]
    if isinstance(config, dict) and config.get("base_model") == "LLAMA":
        parts = {**parts, "training_config": {**config, "base_model": str(folders["llama"])}}
    folder = save_policy(tmp_path / "policy", **parts)
    with pytest.raises(UsageError, match=words.replace("`", ".")):
        models.load(str(folder))
    assert not (tmp_path / "evil").exists()


def test_an_adapter_that_names_no_base_is_refused_with_the_next_step(adapt):
    folder = adapt("one")
    rewrite(folder, base_model_name_or_path=None)
    with pytest.raises(UsageError, match="base_model_name_or_path"):
        models.load(str(folder))


def test_a_smollm2_adapter_finds_its_base_by_name(adapt, folders, monkeypatch):
    folder = adapt("one")
    monkeypatch.setattr("lightning_local.smollm2.prepare", lambda: folders["llama"])
    for name in ("smollm2", "/home/someone/.cache/lightning-core/smollm2-0.1.2-1"):
        rewrite(folder, base_model_name_or_path=name)
        loaded = models.load(str(folder))
        assert_state(loaded.model, merged(folders["llama"], folder), rtol=0, atol=1e-6)
