"""Call, Span and Trace: what happened in one attempt."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from lightning_core.records import Json, Record
from lightning_core.reward import Reward, RewardScope
from lightning_core.rollout import Attempt, Mode, Rollout
from lightning_core.slots import SlotDeclaration
from lightning_core.task import Task


class TokenSource(StrEnum):
    """Where token ids come from."""

    ENGINE = "engine"
    """From the engine that sampled them: exactly what the policy saw and said."""
    RETOKENIZED = "retokenized"
    """Re-made from text. A trainer refuses these unless told otherwise."""


class CallErrorKind(StrEnum):
    """Why a model call failed."""

    BAD_REQUEST = "bad_request"
    """The gateway could not read the request: not JSON, wrong content type, too large."""
    STATUS = "status"
    """The upstream answered with a status of 400 or more."""
    REFUSED = "refused"
    """No connection to the upstream could be made."""
    TIMEOUT = "timeout"
    """The upstream was silent for longer than the gateway waits."""
    CUT = "cut"
    """The reply ended before its end: connection closed, or a stream without its terminator."""
    CLIENT_GONE = "client_gone"
    """The agent closed the connection; the upstream request was cancelled."""
    BUDGET = "budget"
    """The attempt had used up its calls or tokens; nothing was sent upstream."""
    DEADLINE = "deadline"
    """The attempt's deadline passed."""
    PAUSED = "paused"
    """The policy stayed paused for longer than a call may wait."""
    UNREADABLE = "unreadable"
    """The upstream answered with success and a body that is not the format's."""


class CallError(Record, frozen=True, kw_only=True):
    """Why a call, or one try at it, failed."""

    kind: CallErrorKind
    """The kind."""
    status: int | None = None
    """The HTTP status that the agent saw, where it saw one; of a call in the background what it would have seen."""
    message: str = ""
    """What the upstream or the gateway said, bounded to 4 KiB."""


class Try(Record, frozen=True, kw_only=True):
    """A try at a call that the agent's SDK repeated."""

    started_at: float
    """Unix time in seconds."""
    ended_at: float
    """Unix time in seconds."""
    error: CallError | None = None
    """Why it was repeated; None where the reply was complete but did not reach the agent."""


class StrategyUse(Record, frozen=True, kw_only=True):
    """What a strategy did to a call. Texts that no template fits go upstream as the agent sent them."""

    digest: str
    """The strategy's digest."""
    applied: tuple[str, ...] = ()
    """The slots whose template replaced a text; empty where nothing of the call matched."""
    ambiguous: tuple[str, ...] = ()
    """The slots whose `original` can be taken apart in several ways in a text that no other slot fits."""
    unmatched: int = 0
    """Texts of system and developer messages that no slot fits, ambiguous ones included."""
    model: str | None = None
    """The key in `models` whose choice was made; None where there is none, and in train mode."""
    left_out: tuple[str, ...] = ()
    """What could not go in: `demonstrations` into a text completion, `model` where the path names the deployment."""


class Choice(Record, frozen=True, kw_only=True):
    """One reply of a call; `n>1` gives several."""

    index: int = 0
    """The upstream's index of the choice."""
    message: dict[str, Any] = msgspec.field(default_factory=dict)
    """The assistant message, assembled where it was streamed: `content`, `tool_calls` and whatever else
    the upstream sent. A text completion has `{"text": …}`."""
    finish_reason: str | None = None
    """The upstream's word: `stop`, `length`, `tool_calls`, …"""
    token_ids: tuple[int, ...] | None = None
    """Sampled token ids, shape [T]; None where the engine gave none."""
    logprobs: tuple[float, ...] | None = None
    """Natural log-probability of each sampled token under the policy that sampled it, shape [T];
    None where the engine gave none."""


class Call(Record, frozen=True, kw_only=True):
    """One model request and its reply as the gateway saw them. Retries by the agent's SDK are one call."""

    id: str
    """Unique within a store."""
    attempt_id: str
    """The attempt whose session made it."""
    rollout_id: str
    """Its rollout."""
    index: int
    """Position in the attempt by time of arrival, from 0."""
    dialect: str
    """The wire format: `chat`, `completions`, `embeddings`, `responses`, `messages`."""
    span_id: str | None = None
    """The span in which it was made; None where no adapter said."""
    agent: str | None = None
    """Label: the agent that spoke."""
    node: str | None = None
    """Label: the graph node that spoke."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Any other labels of the adapter's."""
    request: dict[str, Any] = msgspec.field(default_factory=dict)
    """The body as the agent sent it."""
    chat_request: dict[str, Any] | None = None
    """The request in the terms of chat completions where its own format is another: the whole prompt, with what
    `previous_response_id` stands for; None for chat, text completions and embeddings."""
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)
    """What went upstream in place of the fields of `request`, or, where the call was translated, of `chat_request`;
    None marks a field that was taken out."""
    chat_sent: dict[str, Any] | None = None
    """`chat_request` as it went upstream, where a strategy changed the prompt of a call that was not translated."""
    strategy: StrategyUse | None = None
    """What a strategy did to it; None where there was none, or the format has no prompt."""
    choices: tuple[Choice, ...] = ()
    """The replies."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt's token ids, shape [P]; None where the engine gave none."""
    token_source: TokenSource | None = None
    """Where the token ids come from; None where there are none."""
    reply: dict[str, Any] = msgspec.field(default_factory=dict)
    """What the reply had beside choices, usage and token ids, such as `id`, `created`, `system_fingerprint`;
    for `embeddings` and for an error, the whole body."""
    usage: dict[str, Any] | None = None
    """The upstream's token counts."""
    model: str | None = None
    """The model that answered, as the upstream named it; else the one asked for."""
    target: str | None = None
    """The upstream's address, without query and credentials."""
    replica: str | None = None
    """The replica of the policy that answered, in train and val mode."""
    policy_version: int | None = None
    """The version of the policy that answered, in train and val mode."""
    mode: Mode = Mode.OBSERVE
    """The session's mode."""
    stream: bool = False
    """Whether the agent asked for a stream."""
    status: int | None = None
    """The HTTP status that the agent saw; None where it saw none."""
    complete: bool = False
    """Whether the whole reply was seen, terminator included. Only complete calls may be trained on."""
    error: CallError | None = None
    """Why it failed; None where it did not."""
    tries: tuple[Try, ...] = ()
    """The earlier tries that the agent's SDK repeated, oldest first."""
    started_at: float = 0.0
    """Unix time in seconds at which the request's last byte had come."""
    first_byte_at: float | None = None
    """Unix time in seconds of the reply's first byte."""
    ended_at: float = 0.0
    """Unix time in seconds of the reply's last byte."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The request's messages, in the form of chat completions whatever its format; for a text completion one user
        message of the prompt."""
        return _messages(self.request if self.chat_request is None else self.chat_request)

    @property
    def sent_messages(self) -> list[dict[str, Any]]:
        """The same as they went upstream: with what a strategy replaced and put in."""
        if self.chat_sent is not None:
            return _messages(self.chat_sent)
        asked = self.request if self.chat_request is None else self.chat_request
        return _messages({**asked, **self.overrides})

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the request offers, in the form of chat completions."""
        tools = (self.request if self.chat_request is None else self.chat_request).get("tools")
        return tools if isinstance(tools, list) else []

    @property
    def label(self) -> str:
        """The node, else the agent, else an empty string: what a strategy goes by."""
        return self.node or self.agent or ""

    @property
    def text(self) -> str:
        """The first choice's text, or an empty string."""
        if not self.choices:
            return ""
        message = self.choices[0].message
        content = message.get("content", message.get("text"))
        return content if isinstance(content, str) else ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The first choice's tool calls."""
        calls = self.choices[0].message.get("tool_calls") if self.choices else None
        return calls if isinstance(calls, list) else []

    @property
    def token_counts(self) -> tuple[int | None, int | None]:
        """Prompt and completion tokens as the upstream reported them; None where it did not."""
        prompt = self._count("prompt_tokens")
        completion = self._count("completion_tokens")
        return (
            self._count(*_INPUT_COUNTS) if prompt is None else prompt,
            self._count("output_tokens") if completion is None else completion,
        )

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens as the upstream reported them; 0 where it did not."""
        total = (self.usage or {}).get("total_tokens")
        return total if isinstance(total, int) else sum(count or 0 for count in self.token_counts)

    def _count(self, *names: str) -> int | None:
        usage = self.usage or {}
        counts = [count for name in names if isinstance(count := usage.get(name), int)]
        return sum(counts) if counts else None


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if isinstance(messages, list):
        return messages
    prompt = body.get("prompt")
    return [] if prompt is None else [{"role": "user", "content": prompt}]


# Anthropic's count leaves out what its cache takes and gives.
_INPUT_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


SLOT_PREFIX = "lightning.slot."
"""What the attributes of a `slot` span begin with: the fields of a `SlotDeclaration`, and `value`, what was read."""


class SpanKind(StrEnum):
    """What a span is a stretch of."""

    AGENT = "agent"
    """An agent's turn, or a whole graph."""
    NODE = "node"
    """A node of a graph."""
    TOOL = "tool"
    """A tool's run."""
    HANDOFF = "handoff"
    """One agent passing control to another."""
    SLOT = "slot"
    """A prompt, rule or choice that the agent's code reads from the strategy by name; it takes no time."""


class Span(Record, frozen=True, kw_only=True):
    """A labelled stretch of the agent's own work."""

    id: str
    """Unique within the attempt."""
    attempt_id: str
    """The attempt; set by the server from the session, whatever the sender says."""
    kind: SpanKind
    """What it is a stretch of."""
    name: str
    """The agent's, node's or tool's name."""
    parent_id: str | None = None
    """The span around it."""
    started_at: float = 0.0
    """Unix time in seconds."""
    ended_at: float | None = None
    """Unix time in seconds; None where the end was not seen."""
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    """OpenTelemetry GenAI names where there is one (`gen_ai.tool.call.arguments`), else `lightning.*`."""
    error: str | None = None
    """What was raised in it."""


class TraceNode(msgspec.Struct, frozen=True):
    """A node of a trace's tree: a span or a call, and what happened within it, by time."""

    item: Span | Call
    """The span or call."""
    children: tuple[TraceNode, ...] = ()
    """What happened within it; empty for a call."""


class Trace(Record, frozen=True, kw_only=True):
    """Everything of one attempt."""

    rollout: Rollout
    """The rollout."""
    task: Task
    """The task; without `expected` unless the reader is the run."""
    attempt: Attempt
    """The attempt: output, cause of end, times."""
    spans: tuple[Span, ...] = ()
    """Its spans by start."""
    calls: tuple[Call, ...] = ()
    """Its calls by index."""
    rewards: tuple[Reward, ...] = ()
    """Its rewards."""

    @property
    def output(self) -> Json:
        """What the agent returned."""
        return self.attempt.output

    @property
    def reward(self) -> float | None:
        """The value of the reward named `reward` for the whole rollout; None where it is not scored."""
        for reward in self.rewards:
            if reward.scope is RewardScope.ROLLOUT and reward.name == "reward":
                return reward.value
        return None

    @property
    def slots(self) -> tuple[SlotDeclaration, ...]:
        """What the agent's code reads of a strategy by name, each slot once.

        Raises:
            FormatError: a span of kind `slot` is none: whoever holds a session's token may post spans.
        """
        found: dict[tuple[str, str], SlotDeclaration] = {}
        for span in self.spans:
            if span.kind is SpanKind.SLOT:
                fields = {k.removeprefix(SLOT_PREFIX): v for k, v in span.attributes.items()}
                declared = SlotDeclaration.from_value(fields)
                found.setdefault((declared.kind, declared.name), declared)
        return tuple(found.values())

    def tree(self) -> tuple[TraceNode, ...]:
        """The roots of the tree of spans and calls, siblings by time. A parent that is unknown, or a cycle,
        makes a root."""
        parents = _parents(self.spans)
        children: dict[str | None, list[Span | Call]] = {}
        for span in self.spans:
            children.setdefault(parents[span.id], []).append(span)
        for call in self.calls:
            parent = call.span_id if call.span_id in parents else None
            children.setdefault(parent, []).append(call)
        for siblings in children.values():
            siblings.sort(key=lambda item: item.started_at)
        # Parents before children, then built from the end: a chain of spans may be deeper than Python's stack.
        ordered = list(children.get(None, ()))
        for item in ordered:
            if isinstance(item, Span):
                ordered.extend(children.get(item.id, ()))
        built: dict[int, TraceNode] = {}
        for item in reversed(ordered):
            below = children.get(item.id, ()) if isinstance(item, Span) else ()
            built[id(item)] = TraceNode(item, tuple(built[id(child)] for child in below))
        return tuple(built[id(item)] for item in children.get(None, ()))


def _parents(spans: tuple[Span, ...]) -> dict[str, str | None]:
    """Each span's parent; None where it is unknown, or where the span lies on a cycle."""
    named = {span.id: span.parent_id for span in spans}
    parents = {id_: parent if parent in named else None for id_, parent in named.items()}
    done: set[str] = set()
    for start in named:
        path: dict[str, None] = {}
        current: str | None = start
        while current is not None and current not in done and current not in path:
            path[current] = None
            current = parents[current]
        if current in path:
            on_path = list(path)
            for id_ in on_path[on_path.index(current) :]:
                parents[id_] = None
        done.update(path)
    return parents
