"""Reading a check: what a model's reply, or a user's checker, says of a solution."""

from __future__ import annotations

import re
from numbers import Real
from typing import Any, Final

from lightning_core.errors import UsageError

UNSURE: Final = 0.5
"""The score of a check that cannot be read."""
RIGHT: Final = frozenset({"yes", "ok", "okay", "correct", "right", "true", "是", "对", "正确"})
"""What says that a solution is right."""
WRONG: Final = frozenset(
    {"no", "not ok", "incorrect", "not correct", "wrong", "false", "否", "错", "错误", "不对", "不正确"}
)  # fmt: skip
"""What says that it is wrong."""
_TITLE: Final = re.compile(
    r"(?:(?:final|my)\s+)?(?:verdict|answer|score|rating|grade|judge?ment|conclusion|correct)\s*[:=]"
    r"|(?:结论|答案|判断|评分|得分|分数)\s*[:：]"  # noqa: RUF001
)
_BULLET: Final = re.compile(r"\A[-*#>]+\s+")
_MARKUP: Final = "*_`\"' \t"
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")


def read_verdict(reply: str) -> float | None:
    """The score that a model's check gives, from 0 to 1; None where it cannot be read.

    The reply's last line counts, or else its first. It must be nothing but a verdict: `yes`, `ok`, `correct`, `right` or
    `true` is 1; `no`, `not ok`, `wrong`, `incorrect`, `not correct` or `false` is 0; so are `是`, `对`, `正确` and `否`,
    `错`, `错误`, `不对`, `不正确`; a number from 0 to 1 is itself. A title such as `VERDICT:` or `Score:`, capitals, Markdown's
    marks and a full stop do not count. What is said in a sentence is not read: `no errors` would be taken for `no`.
    """
    lines = [line for line in map(_bare, reply.splitlines()) if line]
    for line in (*lines[-1:], *lines[:1]):
        if line in RIGHT:
            return 1.0
        if line in WRONG:
            return 0.0
        if _NUMBER.fullmatch(line) and float(line) <= 1:
            return float(line)
    return None


def _bare(line: str) -> str:
    line = _BULLET.sub("", line.strip()).strip(_MARKUP).casefold()
    title = _TITLE.match(line)
    rest = line[title.end() :] if title else line
    return rest.strip(_MARKUP).rstrip(".!。！").strip(_MARKUP)  # noqa: RUF001


def read_checked(value: Any) -> tuple[float, str]:
    """What a user's checker returned, as score and feedback.

    Raises:
        UsageError: it is neither a bool, nor a number from 0 to 1, nor one of these with a text.
    """
    score, feedback = value if isinstance(value, tuple) and len(value) == 2 else (value, "")
    if isinstance(score, Real) and isinstance(feedback, str) and 0 <= float(score) <= 1:
        return float(score), feedback
    raise UsageError(
        f"`checker`: expected True, False, a score from 0 to 1, or `(score, feedback)`, but it returned {value!r}"
    )
