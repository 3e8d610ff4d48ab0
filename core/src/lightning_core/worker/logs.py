"""What a worker's process logs, without tokens in it."""

from __future__ import annotations

import logging
import re
import sys
from typing import Final

from lightning_core.tokens import PREFIX

_TOKEN: Final = re.compile(rf"\b{re.escape(PREFIX)}[\w-]+(?:\.[\w-]+)*")
_HIDDEN: Final = f"{PREFIX}…"


def without_tokens(text: str) -> str:
    """`text` with every token of ours blotted out: HTTP libraries log addresses, and a session's holds its token."""
    return _TOKEN.sub(_HIDDEN, text)


class TokenFreeFormatter(logging.Formatter):
    """A formatter whose lines hold no token."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return without_tokens(super().format(record))


def log_to_stderr() -> None:
    """Log our own information and everybody's warnings to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TokenFreeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("lightning_core").setLevel(logging.INFO)
