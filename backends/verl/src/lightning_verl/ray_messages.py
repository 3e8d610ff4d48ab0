"""What the run and its process that speaks with Ray say to each other: a line of JSON each."""

from __future__ import annotations

import msgspec


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    address: str | None
    """The Ray to join; None starts one of our own."""
    scratch: str | None
    """The folder of a Ray of our own."""
    loopback: bool
    """Whether the run's server listens on this machine's loopback alone."""
    folder: str
    """The folder that the workers are to run in."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start a worker."""

    number: int
    """Names it from now on."""
    what: str
    """Its name in messages."""
    arguments: tuple[str, ...]
    """What follows `python -m lightning_core.worker`."""
    token: str
    """The worker's token."""
    log: str
    """The file to which its log is appended."""
    hidden: frozenset[str] = frozenset()
    """Environment variables whose values it must not get."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Let a worker end."""

    number: int
    """Which."""


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """Ray is there."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Ray is not there, or is of no use; the process ends."""

    message: str
    """Why, for the user."""
    usage: bool
    """Whether the user must ask for something else."""


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A worker is ready."""

    number: int
    """Which."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A worker has ended, or did not start; said once of each."""

    number: int
    """Which."""
    message: str
    """Why, as `WHAT: REASON`."""
    status: int | None = None
    """Its process's exit status, where that ended by itself."""


Command = Start | Stop
Report = Opened | Refused | Started | Ended
