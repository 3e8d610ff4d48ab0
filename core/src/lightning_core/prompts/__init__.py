"""Finding the prompts of an unchanged agent in its recorded traffic. See `docs/prompts.md`."""

from __future__ import annotations

from lightning_core.prompts.find import Prompt, Prompts, find_prompts
from lightning_core.prompts.infer import Found, infer

__all__ = ["Found", "Prompt", "Prompts", "find_prompts", "infer"]
