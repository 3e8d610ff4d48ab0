"""The loop that decodes: requests join and leave the batch at any step."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from lightning_local.serve.batch import Batch, Forward
from lightning_local.serve.limits import Limits
from lightning_local.serve.prefill import Prompt, compute, may_join
from lightning_local.serve.prefix import PrefixCache
from lightning_local.serve.sampling import Logprobs, draw
from lightning_local.serve.sequence import Delta, Failure, Job, Sequence

log = logging.getLogger(__name__)

CHUNK = 512
"""Prompt tokens that are computed between two decoding steps."""
LOOK_AHEAD = 64
"""Columns per row that must be free before another row joins."""
WINDOW = 10.0
"""Seconds over which the speed is measured."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How the server is doing."""

    model: str
    """The model's name."""
    weights_version: int
    """How often the weights were replaced."""
    logprobs: Logprobs
    """Of which distribution the log-probabilities are."""
    running: int
    """Rows being decoded."""
    waiting: int
    """Rows that wait for room."""
    tokens_per_second: float
    """Sampled tokens a second, over the last ten seconds."""
    sampled_tokens: int
    """Tokens sampled since the start."""
    prompt_tokens: int
    """Prompt tokens since the start."""
    reused_prompt_tokens: int
    """Of these, those that were known from earlier prompts."""
    preempted: int
    """Rows that had to make room and were computed again."""


class Scheduler:
    """Owns the model. All work on it happens in one thread; the public methods may be called from any other."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        eos: frozenset[int],
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        logprobs: Logprobs = Logprobs.RAW,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._name = name
        self._eos = eos
        self._limits = limits
        self._loop = loop
        self._logprobs = logprobs
        self._forward = Forward(model)
        self._batch = Batch(self._forward)
        self._rows: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._prefill: list[Prompt] = []
        self._known: list[Prompt] = []
        self._prefixes = PrefixCache(limits.prefix_bytes)
        self._swap: tuple[Callable[[], None], concurrent.futures.Future[int]] | None = None
        self._inbox: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._version = 0
        self._sampled = self._prompted = self._reused = self._preempted = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._out: list[tuple[Job, Delta | Failure]] = []
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is under way is left unfinished."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a request; its events arrive in `job.events`."""
        with self._changed:
            self._inbox.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Drop a request whose client has gone."""
        with self._changed:
            job.cancelled = True
            self._changed.notify()

    def swap(self, apply: Callable[[], None]) -> concurrent.futures.Future[int]:
        """Let what runs finish, call `apply` while nothing runs, then go on; the future gives the new version."""
        future: concurrent.futures.Future[int] = concurrent.futures.Future()
        with self._changed:
            if self._swap is not None:
                future.set_exception(RuntimeError("other weights are being loaded"))
                return future
            self._swap = (apply, future)
            self._changed.notify()
        return future

    def stats(self) -> Stats:
        """Counters, as of now."""
        now = time.monotonic()
        recent = [(at, count) for at, count in list(self._recent) if now - at < WINDOW]
        return Stats(
            model=self._name,
            weights_version=self._version,
            logprobs=self._logprobs,
            running=len(self._rows),
            waiting=len(self._waiting) + sum(job.choices for job in list(self._inbox)),
            tokens_per_second=round(sum(count for _, count in recent) / WINDOW, 2),
            sampled_tokens=self._sampled,
            prompt_tokens=self._prompted,
            reused_prompt_tokens=self._reused,
            preempted=self._preempted,
        )

    def _run(self) -> None:
        with torch.inference_mode():
            while True:
                with self._changed:
                    while not (self._stopping or self._inbox or self._swap or self._busy()):
                        self._changed.wait()
                    if self._stopping:
                        return
                    arrived = list(self._inbox)
                    self._inbox.clear()
                for job in arrived:
                    self._prompted += sum(len(prompt) for prompt, _ in job.prompts)
                    self._waiting.extend(job.sequences(self._tokenizer, self._eos))
                try:
                    self._iterate()
                # Whatever torch raises ends these requests, not the server.
                except Exception as error:
                    log.exception("a decoding step failed")
                    self._fail(f"{type(error).__name__}: {error}")
                self._deliver()

    def _busy(self) -> bool:
        return bool(self._rows or self._waiting or self._prefill)

    def _iterate(self) -> None:
        self._drop_cancelled()
        if self._swap is not None and not self._begun():
            self._swap_now()
        budget = CHUNK
        while budget > 0:
            if not self._prefill:
                self._admit(budget)
            if not self._prefill:
                break
            budget -= self._advance_prefill(budget)
        if self._rows:
            self._make_room()
            logits = self._batch.step([(row.tokens or row.prompt)[-1] for row in self._rows])
            self._take(logits, list(self._rows))
            self._retire()

    def _begun(self) -> bool:
        """Whether a request is half done: all of it is answered by the same weights."""
        return bool(self._rows or self._prefill or any(s.job.begun for s in self._waiting))

    def _drop_cancelled(self) -> None:
        for i in reversed(range(len(self._rows))):
            if self._rows[i].job.cancelled:
                self._remove(i)
        if any(sequence.job.cancelled for sequence in self._waiting):
            self._waiting = deque(s for s in self._waiting if not s.job.cancelled)
        for prompt in self._prefill:  # of a long one, which takes several steps
            prompt.sequences = [s for s in prompt.sequences if not s.job.cancelled]
        self._prefill = [prompt for prompt in self._prefill if prompt.sequences]

    def _admit(self, budget: int) -> None:
        """Take from the queue what there is room for.

        What is known but for its last token joins the batch. Of the rest, those that are best computed at once
        become the prompts under way; with each go all that wait with the same tokens.
        """
        alike: dict[tuple[int, ...], list[Sequence]] = {}
        for sequence in self._waiting:
            if self._swap is None or sequence.job.begun:
                alike.setdefault(tuple(sequence.ids), []).append(sequence)
        taken: set[int] = set()
        width = self._batch.width
        for key, sequences in alike.items():
            ids = list(key)
            width = max(width, len(ids))
            most = min(self._limits.max_batch, self._limits.cache_tokens // (width + LOOK_AHEAD))
            used = len(self._rows) + sum(len(p.sequences) for p in (*self._prefill, *self._known))
            room = most - used if used else max(1, most)
            if room <= 0:
                break
            known, done = self._prefixes.find(ids)
            prompt = Prompt(sequences[:room], ids, known, done)
            ready = done > 0 and prompt.left == 1
            if not ready and not may_join(
                prompt, self._prefill, budget, remembers=bool(self._limits.prefix_bytes)
            ):
                continue
            self._reused += done
            taken.update(map(id, prompt.sequences))
            for sequence in prompt.sequences:
                sequence.job.begun = True
                sequence.job.weights_version = self._version
            (self._known if ready else self._prefill).append(prompt)
        if taken:
            self._waiting = deque(s for s in self._waiting if id(s) not in taken)
        while self._known:
            self._join(self._known[0])
            self._known.pop(0)

    def _join(self, prompt: Prompt) -> None:
        self._batch.add(prompt.known, len(prompt.sequences))
        self._rows.extend(prompt.sequences)

    def _advance_prefill(self, budget: int) -> int:
        """Compute the prompts under way, or `budget` tokens of one; once done, the rows join. Returns the tokens."""
        before = sum(prompt.left for prompt in self._prefill)
        logits = compute(self._forward, self._prefill, budget)
        computed = before - sum(prompt.left for prompt in self._prefill)
        if self._prefill[0].left:
            return computed
        done, rows = self._prefill, list[int]()
        for row, prompt in enumerate(done):
            self._prefixes.put(prompt.ids, prompt.known)
            self._join(prompt)
            rows += [row] * len(prompt.sequences)
        self._prefill = []
        self._take(logits[rows], [s for prompt in done for s in prompt.sequences])
        self._retire()
        return computed

    def _take(self, logits: torch.Tensor, rows: list[Sequence]) -> None:
        """Sample a token for each row."""
        for sequence, token in zip(rows, draw(logits, rows, self._logprobs), strict=True):
            self._out.append((sequence.job, sequence.push(token)))
        now = time.monotonic()
        self._sampled += len(rows)
        self._recent.append((now, len(rows)))
        while now - self._recent[0][0] > WINDOW:
            self._recent.popleft()

    def _retire(self) -> None:
        """Take out the rows that have ended, and send what there is."""
        for i in reversed(range(len(self._rows))):
            if self._rows[i].finished:
                # The last token was sampled but not run, so the cache ends before it.
                if self._limits.prefix_bytes:
                    self._prefixes.put(self._rows[i].ids[:-1], self._batch.take(i))
                self._remove(i)
        self._deliver()

    def _remove(self, i: int) -> None:
        self._batch.remove(i)
        last = self._rows.pop()
        if i < len(self._rows):
            self._rows[i] = last

    def _make_room(self) -> None:
        """Put rows back in the queue while the cache is over its bound; the latest to come goes first."""
        while len(self._rows) > 1 and (
            len(self._rows) * (self._batch.width + 1) > self._limits.cache_tokens
        ):
            i = min(range(len(self._rows)), key=lambda row: len(self._rows[row].tokens))
            self._waiting.appendleft(self._rows[i])
            self._remove(i)
            self._preempted += 1

    def _swap_now(self) -> None:
        assert self._swap is not None
        apply, future = self._swap
        try:
            if not future.set_running_or_notify_cancel():
                return  # who asked has gone, and does not know what is served
            apply()
        except Exception as error:  # handed to the caller, who knows what it was about
            future.set_exception(error)
        else:
            self._version += 1
            self._prefixes.clear()
            future.set_result(self._version)
        finally:
            with self._changed:
                self._swap = None

    def _fail(self, message: str) -> None:
        """End every request that is computed now, and begin again with an empty cache."""
        begun = [s for prompt in (*self._prefill, *self._known) for s in prompt.sequences]
        sequences = [*self._rows, *begun]
        for job in {id(s.job): s.job for s in sequences}.values():
            job.cancelled = True
            self._out.append((job, Failure(message)))
        self._rows, self._prefill, self._known = [], [], []
        self._batch = Batch(self._forward)
        self._prefixes.clear()

    def _deliver(self) -> None:
        if not self._out:
            return
        events, self._out = self._out, []
        self._loop.call_soon_threadsafe(_put, events)


def _put(events: list[tuple[Job, Delta | Failure]]) -> None:
    for job, event in events:
        job.events.put_nowait(event)
