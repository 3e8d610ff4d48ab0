"""A small process that starts a command and ends the whole tree of what came of it.

The worker runs it as a script, `python -I -S supervisor.py STATUS_FD GRACE FOLDER -- COMMAND …`, in a session of its own. It
needs the standard library only and starts in some 30 ms.

* On Linux it is the subreaper of its descendants: what the command starts stays below it even if it daemonises, so
  the tree can be found by its parents whatever process groups, sessions and environments it uses.
* Its standard input is a pipe that the worker holds. A byte on it, or its end (the worker has died, by `kill -9` too),
  ends the tree: SIGTERM to all, SIGKILL to what is left after GRACE seconds. Where the worker has died, FOLDER, which
  holds the attempt's files, is removed in its place.
* When the command has ended by itself, what outlives it is ended in the same way, within half a second.
* It then writes one line of JSON to STATUS_FD: `{"returncode": N}` (negative: a signal's number) or `{"failed": "why"}`.

Where there is no `/proc`, only the command's process group is ended.

`lightning-core trace` runs it as `supervisor.py --terminal STATUS_FD GRACE LIFELINE_FD -- COMMAND …`. The command then keeps the
standard streams, the terminal and the process group; the pipe is LIFELINE_FD; a byte `t` on it sends SIGTERM to the
command, whose tree is killed after GRACE seconds; and what the command leaves running when it ends by itself runs on.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection

OUTLIVED_GRACE = 0.5
"""Seconds that processes which outlive the command have after SIGTERM."""
_PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> list[int] | None:
    """The living processes below `root`, zombies left out; None where there is no `/proc`."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return None
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    seen = False
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # It ended in between.
        seen = True
        children.setdefault(int(fields[1]), []).append(int(name))
        if fields[0] in (b"Z", b"X"):
            dead.add(int(name))
    if not seen:
        return None
    found: list[int] = []
    below = list(children.get(root, ()))
    while below:
        pid = below.pop()
        found.append(pid)
        below.extend(children.get(pid, ()))
    return [pid for pid in found if pid not in dead]


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end_tree(
    root: int,
    *,
    grace: float,
    group: int | None = None,
    spare: Collection[int] = (),
    reap: bool = True,
) -> bool:
    """End all processes below `root`: SIGTERM, and after `grace` seconds SIGKILL. Whether all have ended.

    Args:
        root: the process whose descendants are ended; itself it is left alone.
        grace: seconds between the signals.
        group: a process group to signal where there is no `/proc`.
        spare: processes to leave alone.
        reap: wait for every child of this process that has ended; False where others wait for them.
    """
    kill_at = time.monotonic() + grace
    give_up_at = kill_at + 10.0
    told: set[int] = set()
    while True:
        if reap:
            _reap()
        living = descendants(root)
        if living is None:
            return _end_group(group, grace)
        living = [pid for pid in living if pid not in spare]
        if not living:
            return True
        now = time.monotonic()
        if now > give_up_at:
            return False
        for pid in living:
            if now >= kill_at:
                send(pid, signal.SIGKILL)
            elif pid not in told:
                told.add(pid)
                send(pid, signal.SIGTERM)
        time.sleep(0.005 if now < kill_at - grace + 0.1 else 0.02)


def _end_group(group: int | None, grace: float) -> bool:
    if group is None:
        return False
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 1.0)):
        until = time.monotonic() + wait
        try:
            os.killpg(group, number)
            while time.monotonic() < until:
                _reap()
                os.killpg(group, 0)
                time.sleep(0.02)
        except (ProcessLookupError, PermissionError):
            return True
    return False


_statuses: dict[int, int] = {}
"""Return codes of the children that have been waited for."""


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _statuses[pid] = os.waitstatus_to_exitcode(status)


class _Signals:
    """Signals that came to this process, which wakes a `select` for them."""

    def __init__(self, told: Collection[int], ignored: Collection[int]) -> None:
        self.told = False
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Functions rather than SIG_IGN, which the command would inherit.
        for number in (signal.SIGCHLD, *ignored):
            # Nor must the command heed what it was to ignore.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: None)
        for number in told:
            signal.signal(number, self._tell)

    def _tell(self, number: int, frame: object) -> None:
        self.told = True


def main(arguments: list[str]) -> int:
    """Run the command that the arguments name; see the module's docstring."""
    terminal = arguments[0] == "--terminal"
    if terminal:
        arguments = arguments[1:]
    status_fd, grace = int(arguments[0]), float(arguments[1])
    lifeline = int(arguments[2]) if terminal else 0
    argv = arguments[arguments.index("--") + 1 :]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # What the terminal sends to all of its group the command gets by itself.
    from_terminal = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    if terminal:
        signals = _Signals((signal.SIGTERM,), from_terminal)
    else:
        signals = _Signals((signal.SIGTERM, signal.SIGINT), ())
    try:
        if terminal:
            child = subprocess.Popen(argv)
        else:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, process_group=0)
    except (OSError, ValueError) as error:
        os.write(status_fd, json.dumps({"failed": str(error)}).encode())
        return 0
    # The pipes belong to the command alone from here, or their end would never be seen.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2) if terminal else (1, 2):
        os.dup2(null, fd)
    asked, orphaned, end_at = False, False, None
    while not (asked or signals.told):
        _reap()
        if child.pid in _statuses:
            break
        left = None if end_at is None else max(0.0, end_at - time.monotonic())
        ready, _, _ = select.select([lifeline, signals.woken], [], [], left)
        if signals.woken in ready:
            os.read(signals.woken, 4096)
        if lifeline in ready:
            word = os.read(lifeline, 1)
            orphaned = not word
            if terminal and word == b"t":
                send(child.pid, signal.SIGTERM)
                end_at = time.monotonic() + grace
            else:
                asked = True
        elif not ready:
            asked, grace = True, 0.0
    asked = asked or signals.told
    ended = True
    # What a program on a terminal leaves running when it ends by itself is meant to run on.
    if asked or end_at is not None or not terminal:
        ended = end_tree(
            os.getpid(),
            grace=grace if asked else min(grace, OUTLIVED_GRACE),
            group=None if terminal else child.pid,
        )
    _reap()
    report = {"returncode": _statuses.get(child.pid, -signal.SIGKILL), "ended": ended}
    if orphaned:
        if not terminal:
            shutil.rmtree(arguments[2], ignore_errors=True)
        return 0
    os.write(status_fd, json.dumps(report).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
