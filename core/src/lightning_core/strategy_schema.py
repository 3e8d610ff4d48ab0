"""The JSON Schema of `strategy.json`, made of its types. Run as a module, it prints what `strategy.schema.json` holds."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any, Final

import msgspec

from lightning_core import strategy
from lightning_core.strategy import Strategy

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def strategy_schema() -> dict[str, Any]:
    """What a JSON Schema can say of `strategy.json`; that holes fit and that an option exists, only loading says."""
    (root,), defs = msgspec.json.schema_components([Strategy], ref_template="#/$defs/{name}")
    for name, described in defs.items():
        # What it raises is for callers.
        described["description"] = described["description"].partition("\n\nRaises:")[0]
        for field, text in _documented(getattr(strategy, name)).items():
            properties = described.get("properties", {})
            if field in properties:
                properties[field] = {"description": text, **properties[field]}
    top = defs.pop(root["$ref"].rpartition("/")[2])
    version = {
        "description": "The version of the format.", "type": "integer", "maximum": Strategy.VERSION
    }  # fmt: skip
    return {
        "$schema": DIALECT,
        **top,
        "properties": {"format_version": version, **top["properties"]},
        "additionalProperties": False,
        "$defs": defs,
    }


def _documented(cls: type) -> dict[str, str]:
    """The strings under a class's fields."""
    (definition,) = ast.parse(inspect.getsource(cls)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(text.value.value).replace("\n", " ")
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


if __name__ == "__main__":
    print(msgspec.json.format(msgspec.json.encode(strategy_schema())).decode())
