"""Changes: what differs between two strategies."""

from __future__ import annotations

from typing import Final

import msgspec

from lightning_core.records import Json
from lightning_core.strategy import Strategy

_SECTIONS: Final = ("prompt_templates", "decision_rules", "interaction_patterns", "models")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One value that is another in the second strategy."""

    section: str
    """`prompt_templates`, `decision_rules`, `interaction_patterns` or `models`."""
    slot: str
    """The name within the section."""
    field: str
    """The field of the slot; of a decision rule, which has none, `value`."""
    before: Json
    """Its value in the first strategy; None where that has none."""
    after: Json
    """Its value in the second."""


def changes(before: Strategy, after: Strategy) -> list[Change]:
    """What differs, by section and slot; empty exactly where both have the same digest. Provenance is left out."""
    found = []
    for section in _SECTIONS:
        old, new = getattr(before, section), getattr(after, section)
        for slot in sorted({*old, *new}):
            both = slot in old and slot in new
            olds, news = _fields(old.get(slot), both), _fields(new.get(slot), both)
            found += [
                Change(
                    section=section,
                    slot=slot,
                    field=field,
                    before=olds.get(field),
                    after=news.get(field),
                )
                for field in {**olds, **news}
                # Compared as JSON, in which true is not 1.
                if _json(olds.get(field)) != _json(news.get(field))
            ]
    return found


def _fields(value: Json, every: bool) -> dict[str, Json]:
    """The fields of a slot; those at their default only where every one is wanted, to compare it."""
    if value is None:
        return {}
    if not isinstance(value, msgspec.Struct):
        return {"value": value}
    if not every:
        return msgspec.to_builtins(value) or {"value": {}}
    return {name: msgspec.to_builtins(getattr(value, name)) for name in value.__struct_fields__}


def _json(value: Json) -> bytes:
    return msgspec.json.encode(value, order="sorted")
