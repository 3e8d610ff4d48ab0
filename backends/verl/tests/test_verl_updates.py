"""How the rows of a step become updates, whatever their number; and what must be so in Ray before anything starts."""

import math
import socket

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import LightningError
from lightning_core.learn import Aggregation
from lightning_verl.trainer.__main__ import check_ray
from lightning_verl.trainer.advantages import scales
from lightning_verl.trainer.task_runner import check_alone, check_reachable
from lightning_verl.trainer.updates import mini_batch_size, mini_batches

counts = st.integers(1, 12)


@given(st.integers(1, 3000), counts, st.sampled_from([1, 2, 3, 8, 16]), counts)
def test_any_number_of_rows_makes_as_many_updates_as_were_asked_for_and_little_padding(
    rows, group, workers, updates
):
    size = mini_batch_size(rows, group=group, workers=workers, updates=updates) * group
    assert size % workers == 0
    assert size % group == 0
    padded = math.ceil(rows / size) * size  # As verl fills up: to a multiple of the mini-batch.
    assert 1 <= padded // size <= updates
    assert padded - rows < size
    assert size - rows / updates < math.lcm(group, workers) + group


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 6))
def test_each_mini_batch_has_a_slice_of_each_workers_block(share, workers, updates):
    size = share * workers
    rows = size * updates
    places = mini_batches(rows, size=size, workers=workers)
    assert sorted(places) == sorted(list(range(updates)) * size)
    blocks = [
        places[rank * rows // workers : (rank + 1) * rows // workers] for rank in range(workers)
    ]
    assert all(block == sorted(block) for block in blocks)
    assert all(block == blocks[0] for block in blocks)


def test_within_each_update_each_rollout_weighs_the_same():
    """Rollouts of ten tokens are in one update, and of four hundred in the other."""
    lengths = [10, 10, 400, 400]
    mask = torch.zeros((4, 400), dtype=torch.int64)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    places = torch.tensor(mini_batches(4, size=2, workers=1))
    for place in (0, 1):
        chosen = places == place
        weight = scales(["a", "b"], mask[chosen], Aggregation.ROLLOUT)[:, None] * mask[chosen]
        assert (weight.sum(dim=1) / mask[chosen].sum()).tolist() == pytest.approx([0.5, 0.5])


def test_tokens_that_a_correction_rejects_are_in_verls_mean_all_the_same():
    mask = torch.tensor([[1, 0, 0], [1, 1, 0]])
    weight = scales(["a", "b"], mask, Aggregation.ROLLOUT, total=6)[:, None] * mask / 6
    assert float(weight.sum()) == pytest.approx(1.0)
    assert weight.sum(dim=1).tolist() == pytest.approx([0.5, 0.5])


class Ray:
    """What is asked of Ray: whether an actor is there."""

    def __init__(self, there):
        self.there = there

    def get_actor(self, name, namespace):
        if not self.there:
            raise ValueError(f"no actor {name} in {namespace}")
        return object()


def test_a_ray_in_which_another_training_runs_is_refused():
    check_alone(Ray(there=False))
    with pytest.raises(LightningError, match="take each other's rows"):
        check_alone(Ray(there=True))


def test_a_ray_at_which_nothing_answers_is_refused_at_once():
    for address in (None, "local", "auto"):
        check_ray(address)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        check_ray(address)
    with pytest.raises(LightningError, match=f"no Ray at {address}"):
        check_ray(address)


def test_other_nodes_need_a_server_that_they_reach():
    check_reachable("http://127.0.0.1:80", ["10.0.0.1"])
    check_reachable("http://10.0.0.9:80", ["10.0.0.1", "10.0.0.2"])
    for url in ("http://127.0.0.1:80", "http://localhost:80", "http://[::1]:80"):
        with pytest.raises(LightningError, match="serve --host ADDRESS"):
            check_reachable(url, ["10.0.0.1", "10.0.0.2"])
