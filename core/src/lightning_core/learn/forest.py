"""build_samples: a trace's calls as a prefix forest over token ids, and its chains as samples.

A reply's node is the end of its call's prompt and its sampled tokens. A call joins the longest node that its prompt
begins with. At the tip of a chain it extends the chain; elsewhere, or where there is no such node, it begins a chain
of its own, which repeats the prompt as context. So each reply is in one chain, at one place, and is learnt from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lightning_core.learn.conversation import Conversations
from lightning_core.learn.divergence import Reply, why_apart
from lightning_core.learn.drift import Counter
from lightning_core.learn.prefixes import PrefixTree
from lightning_core.learn.replies import WIDTH, Read, read
from lightning_core.learn.rules import SampleRules
from lightning_core.learn.sample import NO_VERSION, Drift, Joined, Sample, Segment, Skipped
from lightning_core.records import Record
from lightning_core.rollout import Rollout
from lightning_core.trace import Call, TokenSource, Trace


class Built(Record, frozen=True, kw_only=True):
    """What a trace gives to learn from, and how its calls went together."""

    samples: tuple[Sample, ...] = ()
    """The samples, by their first call; empty where there is nothing to learn from."""
    drift: Drift = Drift()
    """How the calls went together."""
    joined: dict[str, Joined] = msgspec.field(default_factory=dict)
    """How each call that is learnt from came into the forest, by id; of several choices the first."""
    skipped: dict[str, Skipped] = msgspec.field(default_factory=dict)
    """Why nothing is learnt from each of the others, by id; of several choices the first."""


def build_samples(trace: Trace, rules: SampleRules = SampleRules()) -> Built:  # noqa: B008 - frozen
    """Make samples of a trace's calls; `credit`, `advantage` and `weight` are left unset.

    Each sampled token that is learnt from is in exactly one sample, and no sample is without one. The result depends
    on the calls alone, in the order of their indices.
    """
    forest = _Forest()
    counter = Counter()
    ways: dict[str, Joined] = {}
    reasons: dict[str, Skipped] = {}
    for call in sorted(trace.calls, key=lambda call: call.index):
        found = read(call, rules)
        counter.call()
        for reason in found.skipped:
            counter.skipped(call.id, reason)
        if found.candidates:
            learnt = [candidate.skipped is None for candidate in found.candidates]
            if any(learnt) and call.token_source is TokenSource.RETOKENIZED:
                counter.retokenized()
            for joined, is_learnt in zip(forest.add(call, found), learnt, strict=True):
                if is_learnt:
                    counter.joined(call.id, joined)
                    ways.setdefault(call.id, joined)
        if call.id not in ways:
            reasons[call.id] = found.skipped[0]
    samples = tuple(
        sample
        for chain in forest.chains
        if (sample := _sample(trace.rollout, chain, rules)) is not None
    )
    for sample in samples:
        counter.sample(sample)
    return Built(samples=samples, drift=counter.drift(), joined=ways, skipped=reasons)


class _Forest:
    """The chains so far."""

    def __init__(self) -> None:
        self.chains: list[list[Reply]] = []
        self._nodes: PrefixTree[Reply] = PrefixTree()
        self._prompts: PrefixTree[int] = PrefixTree()
        self._conversations: Conversations[Reply] = Conversations()
        self._unread: list[Reply] = []

    def add(self, call: Call, found: Read) -> list[Joined]:
        """Give each candidate its place; how each came in."""
        node = self._node(call, found.prompt)
        at_tip = node is not None and node.chain[-1] is node
        joined = Joined.EXTENDED if at_tip else self._apart(call, found.prompt, node)
        ways = []
        for position, candidate in enumerate(found.candidates):
            chain: list[Reply]
            if position == 0 and node is not None and at_tip:
                chain = node.chain
            else:
                chain = []
                self.chains.append(chain)
            reply = Reply(
                call=call,
                choice=candidate.choice,
                learnt=candidate.skipped is None,
                start=len(call.prompt_token_ids or ()),
                stop=len(call.prompt_token_ids or ()) + len(candidate.sampled) // WIDTH,
                parent=node,
                chain=chain,
            )
            chain.append(reply)
            self._nodes.put(found.prompt + candidate.sampled, reply)
            self._unread.append(reply)
            ways.append(joined)
            # The others of the same call stand beside the first.
            joined = Joined.FORKED if joined in (Joined.NEW, Joined.EXTENDED) else joined
        self._prompts.put(found.prompt, len(found.prompt))
        return ways

    def _node(self, call: Call, prompt: bytes) -> Reply | None:
        """The longest node; of replies that are equal to the token a tip, of tips one of the same agent, the first."""
        replies = self._nodes.longest(prompt)
        if len(replies) < 2:
            return replies[0] if replies else None
        return min(
            replies,
            key=lambda reply: (
                reply.chain[-1] is not reply,
                (reply.call.agent, reply.call.node) != (call.agent, call.node),
            ),
        )

    def _apart(self, call: Call, prompt: bytes, node: Reply | None) -> Joined:
        """Why the call begins a chain of its own."""
        for reply in self._unread:
            self._conversations.add(reply.call, reply.call.choices[reply.choice], reply)
        self._unread.clear()
        related = self._conversations.relate(call)
        beginning = self._prompts.longest(prompt)
        if len(prompt) in beginning:
            return Joined.FORKED
        earlier = related.continues
        if earlier is not None and (node is None or node.stop < earlier.stop):
            return why_apart(call, prompt, earlier)
        if node is not None or beginning:
            return Joined.FORKED
        if related.repeats:
            return Joined.TEMPLATE_CHANGED
        return Joined.EDITED if related.edits else Joined.NEW


def _sample(rollout: Rollout, chain: Sequence[Reply], rules: SampleRules) -> Sample | None:
    """A chain up to its last token that is learnt from; None where it has none."""
    last = max((i for i, reply in enumerate(chain) if reply.learnt), default=None)
    if last is None:
        return None
    end = chain[last]
    token_ids = (end.call.prompt_token_ids or ()) + end.token_ids
    mask = [0] * len(token_ids)
    logprobs = [0.0] * len(token_ids)
    versions = [NO_VERSION] * len(token_ids)
    segments = []
    for reply in chain[: last + 1]:
        call, length = reply.call, reply.stop - reply.start
        version = NO_VERSION if call.policy_version is None else call.policy_version
        segments.append(
            Segment(
                call_id=call.id,
                choice=reply.choice,
                start=reply.start,
                stop=reply.stop,
                agent=call.agent,
                node=call.node,
                version=version,
                trainable=reply.learnt,
            )
        )
        if reply.learnt:
            place = slice(reply.start, reply.stop)
            mask[place] = [1] * length
            logprobs[place] = call.choices[reply.choice].logprobs or ()
            versions[place] = [version] * length
    return Sample(
        rollout_id=rollout.id,
        task_id=rollout.task_id,
        group=rollout.group,
        token_ids=token_ids,
        mask=tuple(mask),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        segments=tuple(segments),
    )
