"""Weights from the trainer to vLLM's own devices on processors: verl's checkpoint engine `lightning_gloo`.

verl has such engines for NCCL, NIXL and others, each of which needs an accelerator. Gloo does without.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, Final

import msgspec
import ray
import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not exported by name
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

from lightning_verl.job import CPU_WEIGHTS

_PATIENCE: Final = timedelta(minutes=10)
_HEADER_BYTES: Final = 1024
"""Bytes of what goes before each weight: a header as JSON, filled up with blanks."""


class _Header(msgspec.Struct, frozen=True):
    """What comes next. Without a name nothing does."""

    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = "uint8"
    """Its name in torch, such as `float32`."""


@CheckpointEngineRegistry.register(CPU_WEIGHTS)
class GlooCheckpointEngine(CheckpointEngine):  # type: ignore[misc]  # verl has no types
    """The trainer's first worker sends each weight whole to all of vLLM's workers, one after the other.

    Args:
        bucket_size: taken, as verl gives it; weights go one by one.
        is_master: whether this is the trainer's first worker.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master
        self._store: Any = None
        self._group: Any = None

    def prepare(self) -> tuple[str, int] | None:
        """Where the workers meet, from the one that sends: host and port."""
        if not self._is_master:
            return None
        host = ray.util.get_node_ip_address().strip("[]")
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_PATIENCE)
        return host, self._store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Each worker's rank, the number of them and where they meet; the trainer's other workers have rank -1."""
        members = 1 + rollout_world_size

        def of(ranks: list[int]) -> dict[str, list[Any]]:
            return {
                "rank": ranks,
                "members": [members] * len(ranks),
                "meeting": [metadata[0]] * len(ranks),
            }

        return of([0] + [-1] * (actor_wg_world_size - 1)), of(list(range(1, members)))

    def init_process_group(self, rank: int, members: int, meeting: tuple[str, int]) -> None:
        """Meet the others.

        Raises:
            RuntimeError: one has not come within ten minutes.
        """
        if rank < 0:
            return
        if self._store is None:
            self._store = TCPStore(*meeting, is_master=False, timeout=_PATIENCE)
        self._group = distributed.ProcessGroupGloo(self._store, rank, members, _PATIENCE)

    async def send_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> None:
        """Send all weights. Workers that send nothing go through them too: to gather one is work for all of them."""
        for name, weight in weights:
            if self._group is not None:
                tensor = weight.detach().contiguous()
                dtype = str(tensor.dtype).removeprefix("torch.")
                self._tell(_Header(name, tuple(tensor.shape), dtype))
                self._broadcast(tensor.view(-1).view(torch.uint8))
        if self._group is not None:
            self._tell(_Header())

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The weights, by name, in the order in which they are sent."""
        while (header := await asyncio.to_thread(self._hear)).name:
            dtype = getattr(torch, header.dtype)
            shape = torch.Size(header.shape)
            flat = torch.empty(shape.numel() * dtype.itemsize, dtype=torch.uint8)
            await asyncio.to_thread(self._broadcast, flat)
            yield header.name, flat.view(dtype).view(shape)

    def finalize(self) -> None:
        """Part from the others."""
        self._group = self._store = None

    def _tell(self, header: _Header) -> None:
        text = msgspec.json.encode(header).ljust(_HEADER_BYTES)
        if len(text) > _HEADER_BYTES:
            raise ValueError(
                f"weight `{header.name}`: its header takes more than {_HEADER_BYTES} bytes"
            )
        self._broadcast(torch.frombuffer(bytearray(text), dtype=torch.uint8))

    def _hear(self) -> _Header:
        header = torch.empty(_HEADER_BYTES, dtype=torch.uint8)
        self._broadcast(header)
        return msgspec.json.decode(bytes(header.tolist()).rstrip(), type=_Header)

    def _broadcast(self, tensor: torch.Tensor) -> None:
        if not tensor.numel():
            return
        how = distributed.BroadcastOptions()
        how.rootRank = 0
        self._group.broadcast([tensor], how).wait()
