"""The date and time of a call in its text: filled in, even where all calls of a run have the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_FORMS: Final = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y年%m月%d日",
    "%B %d, %Y", "%b %d, %Y", "%d %B %Y", "%d %b %Y",
)  # fmt: skip
_DAY: Final = 86_400
_WEEKDAY: Final = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?,? )?"
_TIME: Final = (
    r"(?:(?:T|,? |,? at )\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp](?:[Mm]\b|\.[Mm]\.))?"
    r"(?: ?(?:Z|UTC|GMT)\b| ?[+-]\d\d:?\d\d)?)?"
)


def moments(text: str, at: float) -> Iterator[str]:
    """The dates in a text that are those of a moment, or of the day before or after as time zones differ; each with the
    weekday and the time beside it.

    Args:
        text: the text.
        at: the moment, Unix time in seconds.
    """
    for found in _dates(int(at // _DAY)).finditer(text):
        yield found[0]


@lru_cache(maxsize=64)
def _dates(day: int) -> re.Pattern[str]:
    """What a date of about that day looks like."""
    forms: set[str] = set()
    for other in (-1, 0, 1):
        moment = datetime.fromtimestamp(day * _DAY, UTC) + timedelta(days=other)
        for form in _FORMS:
            padded = moment.strftime(form)
            forms |= {padded, re.sub(r"(?<!\d)0(?=\d)", "", padded)}
    dates = "|".join(sorted(map(re.escape, forms), key=len, reverse=True))
    return re.compile(rf"(?<![0-9A-Za-z]){_WEEKDAY}(?:{dates})(?!\d){_TIME}")
