"""verl itself, on this machine's processors: Ray, FSDP2, vLLM, the gateway and an agent that knows of none of it.

Needs the verl environment (`make verl-env`), named by `LIGHTNING_CORE_VERL_PYTHON`; takes minutes.
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from lightning_core.folder import RunFolder
from lightning_core.learn import build_samples, make_step
from lightning_core.rollout import Mode
from lightning_verl import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
STEPS, BATCH, GROUP = 2, 2, 2


@pytest.fixture(scope="module")
def trained(optimize_by_verl):
    """A run of two steps, from the command line: where it was started, and what it said."""
    place = optimize_by_verl.place
    given = {
        "actor_rollout_ref.actor.optim.lr": "1e-3",
        "trainer.v1.sampler.custom_sampler.path": HERE / "dumping_buffer.py",
        "trainer.v1.sampler.custom_sampler.name": "DumpingBuffer",
        "+trainer.v1.sampler.sampler_kwargs.folder": place,
    }
    done = optimize_by_verl(
        "trained", [f"{key}={value}" for key, value in given.items()], steps=STEPS
    )
    return place, done.said


@pytest.fixture(scope="module")
def lines(trained):
    return list(RunFolder(trained[0] / "runs/trained").lines())


@pytest.fixture(scope="module")
def traces(trained):
    from lightning_core.cli.reading import read_traces

    found = read_traces(str(trained[0] / "runs/trained")).traces
    return {trace.rollout.id: trace for trace in found}


@pytest.fixture(scope="module")
def batches(trained):
    """What verl's trainer got, by rollout."""
    rows = defaultdict(list)
    for line in (trained[0] / "batches.jsonl").read_text().splitlines():
        row = json.loads(line)
        info = row["info"]
        stem = f"trained:{info['task']}:step-{row['step']}.{info['index']}:{row['session']}"
        rows[stem].append(row)
    return {
        rollout: sorted(each, key=lambda row: int(row["key"].rpartition("_")[2]))
        for rollout, each in rows.items()
    }


def test_each_step_is_logged_and_the_run_ends_in_a_checkpoint(trained, lines):
    folder, said = trained
    steps = [line for line in lines if "reward" in line and "step" in line]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["rollouts/scored"] == BATCH * GROUP for line in steps)
    assert [line["step"] for line in lines if "val/reward" in line] == [0, STEPS]
    assert "validation:" in said
    artifact = json.loads((folder / "runs/trained/artifact.json").read_bytes())
    assert artifact["kind"] == "checkpoint"
    assert (folder / "runs/trained" / artifact["path"] / "actor").is_dir()


def test_verls_batch_is_what_the_gateway_recorded(batches, traces):
    train = {name for name, trace in traces.items() if trace.rollout.mode is Mode.TRAIN}
    assert set(batches) == train
    assert len(train) == STEPS * BATCH * GROUP
    for name, rows in batches.items():
        samples = build_samples(traces[name]).samples
        assert len(rows) == len(samples)
        for row, sample in zip(rows, samples, strict=True):
            ids, first = list(sample.token_ids), sample.mask.index(1)
            assert row["input_ids"] == ids
            assert (row["prompts"], row["responses"]) == (ids[:first], ids[first:])
            assert row["response_mask"] == list(sample.mask[first:])
            assert row["rollout_log_probs"] == pytest.approx(
                list(sample.logprobs[first:]), rel=1e-6
            )
            assert sum(row["rm_scores"]) == pytest.approx(traces[name].reward, rel=1e-6)


def test_verl_learns_from_the_advantages_and_weights_that_core_makes(trained, batches, traces):
    """verl's loss is a mean over tokens, so a token's advantage is core's, times its weight, times all tokens."""
    given = {}  # The last word: verl's own come first.
    for line in (trained[0] / "advantages.jsonl").read_text().splitlines():
        row = json.loads(line)
        given[row["key"]] = row["advantages"]
    for step in range(1, STEPS + 1):
        groups = defaultdict(list)
        for trace in traces.values():
            if trace.rollout.mode is Mode.TRAIN and trace.rollout.metadata["step"] == step:
                groups[trace.rollout.group].append(trace)
        made = make_step(list(groups.values()))
        tokens = sum(sample.trainable_tokens for sample in made.samples)
        expected = defaultdict(list)
        for sample in made.samples:
            first = sample.mask.index(1)
            expected[sample.rollout_id].append(
                [value * sample.weight * tokens for value in sample.advantages()[first:]]
            )
        assert any(any(row) for rows in expected.values() for row in rows)
        for name, rows in expected.items():
            found = [given[row["key"]] for row in batches[name]]
            assert found == [pytest.approx(row, abs=1e-5) for row in rows]


def test_each_call_has_the_version_of_the_weights_that_answered_it(traces):
    for trace in traces.values():
        step = trace.rollout.metadata["step"]
        expected = step - 1 if trace.rollout.mode is Mode.TRAIN else step
        assert {call.policy_version for call in trace.calls} == {expected}, trace.rollout.id


def test_no_call_that_is_learnt_from_has_a_seed_which_slows_vllm_down(traces):
    for trace in traces.values():
        if trace.rollout.mode is Mode.TRAIN:
            assert {"temperature"} <= trace.calls[0].overrides.keys()
            assert not any("seed" in call.overrides for call in trace.calls)


def test_vllm_and_the_actor_agree_after_an_update_as_before_it(lines):
    """The head that is tied to the embeddings is where they would part."""
    steps = [line for line in lines if "update/loss" in line]
    assert all(line["update/grad_norm"] > 0 for line in steps)
    parted = [line["verl/training/rollout_probs_diff_mean"] for line in steps]
    assert max(parted) < 1e-5, parted


COMPARED = """
import sys
from transformers import AutoModelForCausalLM
first, last = (AutoModelForCausalLM.from_pretrained(name).float().state_dict() for name in sys.argv[1:])
assert set(first) == set(last), set(first) ^ set(last)
print(max((last[name] - first[name]).abs().mean().item() for name in first if "q_proj.weight" in name))
"""


@pytest.fixture(scope="module")
def export(trained):
    """Writes what the run came to in a format, once; gives the folder."""

    def export(format):
        output = trained[0] / f"exported-{format}"
        if not output.exists():
            done = subprocess.run(
                [sys.executable, "-m", "lightning_core.cli", "export", "--run", "trained", "--format", format,
                 "--output", output],
                cwd=trained[0], capture_output=True, text=True, timeout=600,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        return output

    return export


def test_what_it_came_to_is_exported_and_has_learnt(trained, export, verl_python):
    compared = subprocess.run(
        [verl_python, "-c", COMPARED, "tiny", export("hf")],
        cwd=trained[0], capture_output=True, text=True, timeout=300, env=environment.environ(),
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr
    # Two steps of Adam at 1e-3; to write the weights in 16 bits alone would change them by a tenth of that.
    assert float(compared.stdout) > 5e-4


def test_the_backend_local_loads_what_verl_trained(export):
    local = pytest.importorskip("lightning_local.train", reason="it loads a `policy.pt`")
    import torch
    from transformers import AutoModelForCausalLM

    loaded = local.load_policy(export("policy.pt"), device="cpu").model
    merged = AutoModelForCausalLM.from_pretrained(export("hf")).float()
    expected = merged.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_behind(trained):
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(trained[0]).encode() in command:
                left.append((entry / "cmdline").read_bytes())
    assert not left
