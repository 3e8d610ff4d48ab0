"""Samples laid into passes: nothing is lost, and what is computed does not depend on how they are laid."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_local.train import LocalOptions
from lightning_local.train.policy import Policy
from lightning_local.train.rows import Source, plan

WIDE = 10_000
"""A model so wide that sharing always pays."""


@st.composite
def forests(draw):
    """Samples that share beginnings in every way: forks, copies, one the start of another."""
    made = []
    for _ in range(draw(st.integers(1, 8))):
        base = list(draw(st.sampled_from(made)).token_ids) if made and draw(st.booleans()) else []
        kept = base[: draw(st.integers(0, len(base)))]
        more = draw(st.lists(st.integers(0, 5), min_size=0 if len(kept) > 1 else 2, max_size=6))
        tokens = kept + more
        targets = draw(st.sets(st.integers(1, len(tokens) - 1), min_size=1))
        made.append(Source(tokens, sorted(targets)))
    return made


@settings(max_examples=200, deadline=None)
@given(forests(), st.integers(1, 40), st.booleans())
def test_every_sample_is_in_one_pass_and_every_target_sees_its_own_past(sources, budget, share):
    passes = plan(sources, budget=budget, share=share, hidden=WIDE)
    assert sorted(n for p in passes for n in p.samples) == list(range(len(sources)))
    for micro in passes:
        rows, width = micro.token_ids.shape
        longest = max(len(sources[n].token_ids) for n in micro.samples)
        assert rows * width <= max(budget, longest)
        seen = micro.seen
        if seen is None:
            seen = torch.ones(width, width).tril().bool().expand(rows, 1, width, width)
        for index, number in enumerate(micro.samples):
            source = sources[number]
            assert int(micro.mask[index].sum()) == len(source.targets)
            for slot, target in enumerate(source.targets):
                assert int(micro.targets[index, slot]) == source.token_ids[target]
                place = int(micro.queries[micro.slots[index, slot]])
                row, column = divmod(place, width)
                visible = seen[row, 0, column].nonzero()[:, 0]
                past = sorted(zip(micro.positions[row, visible].tolist(), micro.token_ids[row, visible].tolist(), strict=True))  # fmt: skip
                assert past == list(enumerate(source.token_ids[:target]))


def test_a_common_beginning_is_computed_once():
    prompt = list(range(50))
    sources = [Source([*prompt, 60 + n, 70], [50, 51]) for n in range(8)]
    (micro,) = plan(sources, budget=1000, share=True, hidden=64)
    assert micro.token_ids.numel() == 50 + 8 * 2
    assert len(micro.queries) == 1 + 8  # the first reply token of all eight is asked at one place


def test_identical_samples_are_computed_once():
    sources = [Source([1, 2, 3, 4], [2, 3])] * 5
    (micro,) = plan(sources, budget=1000, share=True, hidden=64)
    assert micro.token_ids.tolist() == [[1, 2, 3, 4]]
    assert micro.seen is None
    assert len(micro.queries) == 2


def test_strangers_are_not_laid_into_one_row():
    sources = [Source([n] * 40, [39]) for n in range(4)]
    (micro,) = plan(sources, budget=1000, share=True, hidden=64)
    assert micro.token_ids.shape == (4, 40)
    assert micro.seen is None


@pytest.fixture(scope="module")
def samples():
    """Two groups with a prompt each, replies of several lengths, and one that stands alone."""
    generator = torch.Generator().manual_seed(0)

    def draw(n):
        return torch.randint(3, 320, (n,), generator=generator).tolist()

    made = []
    for length in (40, 25):
        prompt = draw(length)
        made += [prompt + draw(n) for n in (1, 4, 9)]
        made.append(made[-1])
    made.append(draw(12))
    return [Source(tokens, list(range(max(1, len(tokens) - 9), len(tokens)))) for tokens in made]


@pytest.mark.parametrize("model", ["llama", "tied", "sliding"])
@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("budget", [1, 120, 4096])
@pytest.mark.parametrize("share", [True, False])
def test_log_probabilities_are_those_of_plain_transformers(
    folders, samples, model, lora, budget, share
):
    policy = Policy(str(folders[model]), LocalOptions(lora_rank=lora), temperature=0.7)
    assert policy.can_share == (model != "sliding")
    passes = plan(samples, budget=budget, share=share and policy.can_share, hidden=policy.hidden)
    with torch.no_grad():
        for micro in passes:
            scored = policy.score(micro)
            for index, number in enumerate(micro.samples):
                ids, targets = samples[number]
                logits = policy.base(torch.tensor([ids])).logits[0] / 0.7
                logs = torch.log_softmax(logits, -1)
                want = torch.stack([logs[t - 1, ids[t]] for t in targets])
                spread = torch.stack([-(logs[t - 1].exp() * logs[t - 1]).sum() for t in targets])
                count = len(targets)
                torch.testing.assert_close(scored.logprobs[index, :count], want, atol=2e-4, rtol=1e-4)  # fmt: skip
                torch.testing.assert_close(scored.entropy[index, :count], spread, atol=2e-4, rtol=1e-4)  # fmt: skip


def test_the_vocabulary_in_parts_gives_the_same_gradients(folders, samples, monkeypatch):
    from lightning_local.train import policy as module

    def gradients():
        policy = Policy(str(folders["llama"]), LocalOptions(lora_rank=0), temperature=1.0)
        (micro,) = plan(samples, budget=10_000, share=True, hidden=policy.hidden)
        scored = policy.score(micro, entropy=True)
        (scored.logprobs.sum() + scored.entropy.sum()).backward()
        return [p.grad for p in policy.parameters]

    whole = gradients()
    monkeypatch.setattr(module, "VOCABULARY_CHUNK", 7)
    torch.testing.assert_close(gradients(), whole, atol=1e-4, rtol=1e-4)


def test_a_model_that_bounds_its_logits_is_scored_with_the_bound(
    random_model, save_model, tmp_path
):
    import transformers

    config = transformers.Gemma2Config(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, final_logit_softcapping=2.0, attn_logit_softcapping=None, eos_token_id=2,
        pad_token_id=2, bos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Gemma2ForCausalLM(config).eval()
    folder = save_model(tmp_path / "capped", model)
    policy = Policy(str(folder), LocalOptions(lora_rank=0), temperature=1.0)
    ids = [5, 6, 7, 8]
    (micro,) = plan([Source(ids, [2, 3])], budget=10, share=False, hidden=64)
    with torch.no_grad():
        found = policy.score(micro).logprobs[0]
        logs = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    torch.testing.assert_close(found, torch.stack([logs[1, 7], logs[2, 8]]), atol=1e-4, rtol=1e-4)
