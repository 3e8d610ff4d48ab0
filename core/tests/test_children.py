"""A child of ours hears its parent, tells it, and keeps both to itself."""

import asyncio
import json
import sys

from lightning_core.children import end_by_lifeline, start_child

CHILD = """
import json, os, subprocess
from lightning_core.children import read_opening, take_lifeline, take_stdout

opening = read_opening(dict)
lifeline = os.fdopen(take_lifeline(), "rb")
own = take_stdout()
print("a library prints", flush=True)
heard = subprocess.run(["cat"], capture_output=True, text=True, timeout=30).stdout
own.write(json.dumps([opening, heard, lifeline.readline().decode()]).encode() + b"\\n")
lifeline.read()
own.write(b"the end\\n")
"""


async def test_what_a_child_starts_and_its_libraries_get_neither_of_its_pipes(tmp_path):
    log = tmp_path / "logs" / "child.log"
    process = await start_child([sys.executable, "-c", CHILD], log=log, opening={"token": "ü"})
    process.stdin.write(b"then this\n")
    async with asyncio.timeout(60):
        said = json.loads(await process.stdout.readline())
        # Nothing is there for what it starts, and nothing is taken of what comes after the opening.
        assert said == [{"token": "ü"}, "", "then this\n"]
        await end_by_lifeline(process, 30)
        assert await process.stdout.read() == b"the end\n"
    assert process.returncode == 0
    assert log.read_text() == "a library prints\n"
