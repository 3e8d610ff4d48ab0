"""Which releases of its framework a plugin supports, and whether those installed are among them."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext

from lightning_core.adapter import Adapter

_log = logging.getLogger(__name__)
_told: set[str] = set()


def requirements(distribution: str, extra: str = "instruments") -> tuple[str, ...]:
    """The requirements of a distribution's extra, such as `langgraph>=1,<2`; empty where there are none."""
    import importlib.metadata  # noqa: PLC0415 - as long as all else that an instrumented program imports of ours

    try:
        lines = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    split = [line.partition(";") for line in lines]
    return tuple(
        requirement.strip()
        for requirement, _, marker in split
        if f"extra == '{extra}'" in marker.replace('"', "'")
    )


def installed(line: str) -> tuple[str | None, bool]:
    """The installed version of what a requirement asks for, and whether it fits; None where none is, or it cannot be read."""
    import importlib.metadata  # noqa: PLC0415 - see above

    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - see above

    try:
        requirement = Requirement(line)
        version = importlib.metadata.version(requirement.name)
    except (InvalidRequirement, importlib.metadata.PackageNotFoundError):
        return None, False
    return version, requirement.specifier.contains(version, prereleases=True)


def misfit(adapter: Adapter) -> str | None:
    """Why an adapter cannot be used with the releases that are installed of its framework, and what to do; None where it can."""
    if adapter.distribution is None:
        return None
    for line in requirements(adapter.distribution):
        version, fits = installed(line)
        if version is not None and not fits:
            return (
                f"adapter `{adapter.name}` of `{adapter.distribution}` is for `{line}` but {version} is installed;"
                f' run `pip install "{adapter.distribution}[instruments]"`'
            )
    return None


def instrumented(adapter: Adapter) -> AbstractContextManager[None]:
    """An adapter's `instrument`; nothing, and a warning once, where it does not support what is installed: wrappers around
    other code than that for which they were written would break it."""
    why = misfit(adapter)
    if why is None:
        return adapter.instrument()
    if why not in _told:
        _told.add(why)
        _log.warning("%s; until then its agents' calls are recorded without labels", why)
    return nullcontext()
