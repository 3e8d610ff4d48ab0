"""`python -m lightning_local.supervise COMMAND…`: runs a command and ends it with the process that started us.

For servers that do not watch their parent themselves. Must be the leader of its own process group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE = 5.0
"""Seconds between asking the group to end and ending it."""


def main() -> None:
    """Run the command in our group, until it ends or our standard input closes."""
    parent = os.getppid()
    # Ours is to pass the end on, not to end first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=_default_signals,
    )
    closed = threading.Event()

    def drain() -> None:
        while os.read(0, 4096):
            pass
        closed.set()

    threading.Thread(target=drain, daemon=True).start()
    while process.poll() is None:
        if closed.wait(0.2) or os.getppid() != parent:
            os.killpg(0, signal.SIGTERM)
            deadline = time.monotonic() + GRACE
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(0, signal.SIGKILL)
    # The command has ended; what it started may not have.
    code = process.returncode
    os._exit(code if code >= 0 else 128 - code)


def _default_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
