"""Conversations that requests name by the id of a response: bounded, and gone where the agent deletes them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.gateway.lineage import Lineage


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 60)), max_size=30),
    st.integers(0, 200),
)
def test_the_latest_conversations_are_kept_within_the_bound(added, limit):
    lineage, said = Lineage(limit), {}
    for name, size in added:
        messages = [{"role": "user", "content": "x" * size}]
        lineage.add(name, messages)
        said.pop(name, None)
        said[name] = messages
    kept = [name for name in said if lineage.find(name) is not None]
    assert all(lineage.find(name) == said[name] for name in kept)
    sizes = {name: len(msgspec.json.encode(messages)) for name, messages in said.items()}
    assert sum(sizes[name] for name in kept) <= limit
    # Nobody leaves before those that came earlier, nor for the sake of nothing.
    assert kept == list(said)[len(said) - len(kept) :]
    assert not said or kept or sizes[next(reversed(said))] > limit


def test_what_was_deleted_is_known_to_be():
    lineage = Lineage(1000)
    lineage.add("a", [{"role": "user", "content": "hi"}])
    assert lineage.find("a")
    assert not lineage.deleted("a")
    lineage.delete("a")
    assert lineage.find("a") is None
    assert lineage.deleted("a")
