"""Keeping secrets out of what is written down: run.json, messages, names of agents that are commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

HIDDEN: Final = "***"
"""What stands in place of a secret."""

_USERINFO: Final = re.compile(r"(?<=://)[^\s/?#@]*(?:@[^\s/?#@]*)*@")
_WORD: Final = r"(?:api[-_]?key|apikey|key|token|secret|password|passwd|credentials?|authorization)"
_NAME: Final = re.compile(rf"(?i)(?:[\w.]*[-_.])*{_WORD}")
_NAMED: Final = re.compile(
    rf"(?i)(?<![\w.-])(?P<name>-{{0,2}}(?:[\w.]+[-_.])*{_WORD})(?P<between>\s*[=:]\s*|\s+)(?P<value>\S+)"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+(?P<value>[^\s'\"]+)")
_KNOWN: Final = re.compile(r"\b(?:sk-[\w-]{16,}|lc1\.[\w.-]{16,})")


def without_userinfo(text: str) -> str:
    """The text, with `***` in place of user and password in each address."""
    return _USERINFO.sub(f"{HIDDEN}@", text)


def redacted(text: str) -> str:
    """The text without users and passwords of addresses, and without what looks like a key or names itself one."""
    text = _BEARER.sub(rf"\1 {HIDDEN}", without_userinfo(text))

    def hide(match: re.Match[str]) -> str:
        # `--monkey banana` is no secret; a name alone before a space counts only as a flag.
        if match["between"].isspace() and not match["name"].startswith("-"):
            return match[0]
        if match["value"].lower() in ("bearer", "basic"):
            return match[0]
        return f"{match['name']}{match['between']}{HIDDEN}"

    return _KNOWN.sub(HIDDEN, _NAMED.sub(hide, text))


def redacted_words(words: Iterable[str]) -> tuple[str, ...]:
    """A command line without the values of flags such as `--api-key`, given as `--api-key=V` or as two words."""
    kept: list[str] = []
    hide_next = False
    for word in words:
        flag = word.lstrip("-")
        if hide_next and not word.startswith("--"):
            kept.append(HIDDEN)
        else:
            kept.append(redacted(word))
        hide_next = word.startswith("-") and _NAME.fullmatch(flag) is not None
    return tuple(kept)


def redacted_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options without the values of those that name a secret, and without secrets in the others."""
    return {
        name: HIDDEN if _NAME.fullmatch(name) else redacted(value)
        for name, value in options.items()
    }
