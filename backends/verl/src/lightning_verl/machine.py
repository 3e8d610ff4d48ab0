"""What the machine gives a verl run: driver, memory, disk, files, and what Ray it has."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from lightning_core.findings import Finding, Verdict
from lightning_core.settings import Settings

_GIB: Final = 1024**3
_SHARED: Final = Path("/dev/shm")
_SHARED_BYTES: Final = 4 * _GIB
_MEMORY_BYTES: Final = 16 * _GIB
_DISK_BYTES: Final = 20 * _GIB
_FILES: Final = 4096
_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 3.0


class Driver(msgspec.Struct, frozen=True):
    """The NVIDIA driver."""

    release: str
    """Its release, such as `570.86.10`."""
    cuda: str
    """The newest CUDA version that it runs."""


def driver() -> Driver | None:
    """The NVIDIA driver of this machine by `nvidia-smi`; None where there is none, or it does not answer."""
    try:
        done = subprocess.run(
            ["nvidia-smi"], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    release = re.search(r"Driver Version\s*:\s*([\d.]+)", done.stdout)
    cuda = re.search(r"CUDA (?:\w+ )?Version\s*:\s*([\d.]+)", done.stdout)
    if release is None or cuda is None:
        return None
    return Driver(release.group(1), cuda.group(1))


def examine() -> Iterator[Finding]:
    """The machine's findings."""
    yield _memory()
    yield _shared()
    yield _disk()
    yield _files()
    yield from _ray()


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _limit_of_group()
    usable = min(total, limit) if limit else total
    found = f"{usable / _GIB:.0f} GiB" + (" by the limit of this container" if limit else "")
    if usable >= _MEMORY_BYTES:
        return Finding("memory", Verdict.GOOD, found)
    return Finding(
        "memory",
        Verdict.OPTIONAL,
        f"{found}, where Ray, vLLM and the trainer of a small model take up to {_MEMORY_BYTES / _GIB:.0f} GiB",
        "train a smaller model, or on a larger machine",
    )


def _limit_of_group() -> int | None:
    """The memory limit of this process's control group, where it has one."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        # Without a limit it is `max`, or a number beyond any memory.
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def _shared() -> Finding:
    what = f"shared memory {_SHARED}"
    try:
        size = shutil.disk_usage(_SHARED).total
    except OSError as error:
        return Finding(
            what,
            Verdict.BAD,
            f"cannot be used: {error.strerror}; Ray's object store and vLLM's workers need it",
            "mount it: mount -t tmpfs -o size=16g tmpfs /dev/shm",
        )
    found = f"{size / _GIB:.1f} GiB"
    if size >= _SHARED_BYTES:
        return Finding(what, Verdict.GOOD, found)
    return Finding(
        what,
        Verdict.OPTIONAL,
        f"{found}; Ray keeps its objects on disk instead, and NCCL and vLLM's workers may fail",
        "start the container with --shm-size=16g or --ipc=host; as root: mount -o remount,size=16g /dev/shm",
    )


def _disk() -> Finding:
    runs = Path(Settings.from_environ().runs).absolute()
    places = {"runs": runs, "Ray": Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())}
    free = {}
    for name, place in places.items():
        there = next((path for path in (place, *place.parents) if path.exists()), Path("/"))
        free[name] = shutil.disk_usage(there).free
    found = ", ".join(f"{free[name] / _GIB:.0f} GiB free for {name}" for name in places)
    if min(free.values()) >= _DISK_BYTES:
        return Finding("disk", Verdict.GOOD, found)
    return Finding(
        "disk",
        Verdict.OPTIONAL,
        f"{found}; a checkpoint takes about 12 bytes for each parameter",
        "set LIGHTNING_CORE_RUNS and RAY_TMPDIR to folders on a larger disk",
    )


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FILES:
        return Finding("open files", Verdict.GOOD, f"up to {soft}")
    most = _FILES * 16 if hard == resource.RLIM_INFINITY else hard
    return Finding(
        "open files",
        Verdict.OPTIONAL,
        f"up to {soft}; Ray opens several for each worker",
        f"ulimit -n {max(most, _FILES)}, in the shell that starts the run",
    )


def _ray() -> Iterator[Finding]:
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return
    joins = f"--set +ray_kwargs.ray_init.address={address}"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        reached = "names no host and port"
    else:
        try:
            with socket.create_connection((host or "127.0.0.1", int(port)), _CONNECT_SECONDS):
                reached = "answers"
        except OSError as error:
            reached = f"cannot be reached: {error}"
    yield Finding(
        "Ray",
        Verdict.OPTIONAL,
        f"RAY_ADDRESS={address} {reached}; a run starts a Ray of its own all the same",
        f"to train on that one: lightning-core optimize … {joins}",
    )
