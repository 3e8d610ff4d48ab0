"""The notes that go with verl's rows, and what the light half is told of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import transfer_queue as tq

from lightning_verl.job import Consumed
from lightning_verl.trainer.samples import NOTE, Note


def notes_of(keys: list[str], partition: str) -> list[Note]:
    """The note of each of verl's rows, in order."""
    if not keys:
        return []
    data = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=["extra_fields"])
    fields = [getattr(each, "data", each) for each in data["extra_fields"]]
    return [msgspec.json.decode(each[NOTE], type=Note) for each in fields]


def tell_consumed(path: str, step: int, notes: Iterable[Note]) -> None:
    """Tell the light half which groups a step was made of."""
    groups = tuple(dict.fromkeys(note.group for note in notes))
    with Path(path).open("ab") as file:
        file.write(msgspec.json.encode(Consumed(step=step, groups=groups)) + b"\n")
