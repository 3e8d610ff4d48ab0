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
from transformers.cache_utils import DynamicCache

from lightning_local.serve.batch import Batch, Forward, one_row
from lightning_local.serve.limits import Limits
from lightning_local.serve.prefix import PrefixCache
from lightning_local.serve.sampling import draw
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


class _Prefill:
    """A prompt being computed, for one row or several with the same tokens."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences = sequences
        self.cache = DynamicCache()
        self.ids = sequences[0].ids


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
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._name = name
        self._eos = eos
        self._limits = limits
        self._loop = loop
        self._forward = Forward(model)
        self._batch = Batch(self._forward)
        self._rows: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._prefill: _Prefill | None = None
        self._prefixes = PrefixCache(limits.prefix_bytes)
        self._swap: tuple[Callable[[], None], concurrent.futures.Future[int]] | None = None
        self._inbox: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._version = 0
        self._sampled = self._prompted = self._preempted = 0
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
            running=len(self._rows),
            waiting=len(self._waiting) + sum(job.choices for job in list(self._inbox)),
            tokens_per_second=round(sum(count for _, count in recent) / WINDOW, 2),
            sampled_tokens=self._sampled,
            prompt_tokens=self._prompted,
            reused_prompt_tokens=self._prefixes.reused,
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
            if self._prefill is None and not self._admit():
                break
            budget -= self._advance_prefill(budget)
        if self._rows:
            self._make_room()
            logits = self._batch.step([row.tokens[-1] for row in self._rows])
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
        if self._prefill is not None:
            left = [s for s in self._prefill.sequences if not s.job.cancelled]
            self._prefill.sequences = left
            if not left:
                self._prefill = None

    def _admit(self) -> bool:
        """Begin the next prompt, where there is room; with it all that wait with the same tokens."""
        waiting = (s for s in self._waiting if self._swap is None or s.job.begun)
        first = next(waiting, None)
        if first is None:
            return False
        ids = first.ids
        columns = max(self._batch.width, len(ids)) + LOOK_AHEAD
        room = min(self._limits.max_batch, self._limits.cache_tokens // columns) - len(self._rows)
        if room <= 0 and self._rows:
            return False
        alike = [
            first,
            *(s for s in waiting if s.prompt == first.prompt and s.tokens == first.tokens),
        ]
        alike = alike[: max(1, room)]
        chosen = {id(sequence) for sequence in alike}
        self._waiting = deque(s for s in self._waiting if id(s) not in chosen)
        for sequence in alike:
            sequence.job.begun = True
            sequence.job.weights_version = self._version
        self._prefill = _Prefill(alike)
        self._prefill.cache = self._prefixes.start(ids)
        return True

    def _advance_prefill(self, budget: int) -> int:
        """Compute up to `budget` tokens of the prompt; once done, its rows join. Returns the tokens computed."""
        prefill = self._prefill
        assert prefill is not None
        done = prefill.cache.get_seq_length()
        part = prefill.ids[done : done + budget]
        logits = self._forward.prefill(part, prefill.cache)
        if done + len(part) < len(prefill.ids):
            return len(part)
        self._prefixes.put(prefill.ids, one_row(prefill.cache))
        count = len(prefill.sequences)
        self._batch.add(prefill.cache, count)
        self._rows.extend(prefill.sequences)
        self._prefill = None
        self._take(logits.expand(count, -1), prefill.sequences)
        self._retire()
        return len(part)

    def _take(self, logits: torch.Tensor, rows: list[Sequence]) -> None:
        """Sample a token for each row."""
        for sequence, token in zip(rows, draw(logits, rows), strict=True):
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
        sequences = list(self._rows)
        if self._prefill is not None:
            sequences += self._prefill.sequences
        for job in {id(s.job): s.job for s in sequences}.values():
            job.cancelled = True
            self._out.append((job, Failure(message)))
        self._rows, self._prefill = [], None
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
