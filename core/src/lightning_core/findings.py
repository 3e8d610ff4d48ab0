"""Findings: what an examination of a machine or an environment saw, and what to do about it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """What a finding means."""

    GOOD = "ok"
    """As it should be."""
    OPTIONAL = "note"
    """Something that only some uses need, or that may be meant."""
    BAD = "problem"
    """Something that keeps lightning-core, or the backend that was asked about, from working."""


class Finding(msgspec.Struct, frozen=True):
    """What one check found."""

    what: str
    """What was looked at, in a word or two."""
    verdict: Verdict
    """What it means."""
    found: str
    """What was found; where it is wrong, also what was expected."""
    fix: str = ""
    """What to do, with the exact command where there is one. Empty where nothing is to be done."""
