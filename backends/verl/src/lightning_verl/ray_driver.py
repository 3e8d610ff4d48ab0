"""`python -m lightning_verl.ray_driver`: the process of a run that speaks with Ray, for the executor `ray`.

Ray takes signals, threads and a process's one connection for itself, so it has a process of its own. Standard input is
its lifeline and brings an `Opening` and then commands, standard output takes reports, each as a line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec

from lightning_core.children import read_opening, take_lifeline, take_stdout
from lightning_verl.ray_actor import NodeOrder, NodeWorker
from lightning_verl.ray_errors import brief
from lightning_verl.ray_messages import (
    Command,
    Ended,
    Opened,
    Opening,
    Refused,
    Report,
    Start,
    Started,
)

START_SECONDS: Final = 150.0
"""Seconds in which Ray must have started a worker, its agent loaded."""
STOP_SECONDS: Final = 25.0
"""Seconds in which a worker must have ended in order."""
_FLUSH_SECONDS: Final = 5.0
_T = TypeVar("_T")

log = logging.getLogger("lightning_verl.ray")


class Driver:
    """Holds the actors of one run."""

    def __init__(self, opening: Opening, reports: IO[bytes]) -> None:
        self.scratch: Final = opening.scratch
        self._opening = opening
        self._reports = reports
        self._stops: dict[int, asyncio.Event] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._places: dict[int, str] = {}
        self._folder: str | None = opening.folder

    def say(self, report: Report) -> None:
        """Tell the run."""
        # The run may be gone; the lifeline then ends this process.
        with contextlib.suppress(BrokenPipeError):
            self._reports.write(msgspec.json.encode(report) + b"\n")

    def open(self) -> bool:
        """Start Ray or join it; whether it is of use."""
        asked = self._opening
        where = "a Ray of its own" if asked.address is None else f"the Ray at {asked.address!r}"
        try:
            ray = _join(asked)
        except Exception as error:
            log.exception("Ray")
            verb = "did not start" if asked.address is None else "cannot be joined"
            text = f"executor `ray`: {where} {verb}: {type(error).__name__}: {brief(error)}"
            self.say(Refused(message=text, usage=False))
            return False
        here = ray.util.get_node_ip_address()
        nodes = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        if asked.loopback and (others := sorted(nodes - {here})):
            text = (
                f"executor `ray`: {where} has nodes on other machines ({', '.join(others[:3])}"
                f"{', …' if len(others) > 3 else ''}), which cannot reach a server on this one's loopback; start one that"
                f" they reach with `lightning-core serve --host {here}`, and give `--server http://{here}:9999`"
            )
            self.say(Refused(message=text, usage=True))
            return False
        environment = ray.get_runtime_context().runtime_env
        if environment.get("working_dir"):
            self._folder = None
        self.say(Opened())
        return True

    async def drive(self, commands: asyncio.Queue[bytes]) -> None:
        """Obey until the lifeline closes; then end every worker."""
        decode = msgspec.json.Decoder(Command).decode
        while line := await commands.get():
            command = decode(line)
            if isinstance(command, Start):
                self._stops[command.number] = asyncio.Event()
                task = asyncio.create_task(self._run(command))
                self._workers.add(task)
                task.add_done_callback(self._workers.discard)
            elif command.number in self._stops:
                self._stops[command.number].set()
        for stop in self._stops.values():
            stop.set()
        if self._workers:
            await asyncio.wait(self._workers, timeout=STOP_SECONDS + _FLUSH_SECONDS)

    async def _run(self, start: Start) -> None:
        """One worker, from its start to its end."""
        try:
            status, message = await self._supervise(start, self._stops[start.number])
        except Exception as error:
            log.exception("%s", start.what)
            status, message = None, f"{start.what}: Ray failed: {brief(error)}"
        del self._stops[start.number]
        self._places.pop(start.number, None)
        self.say(Ended(number=start.number, message=message, status=status))

    def _place(self, ray: Any, number: int) -> Any:
        """The node with the fewest of our workers. One without processors is spared where others have some: so is a head
        node kept free of work.

        Ray's own `SPREAD` may put two of two actors that ask for nothing on one node of two.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        alive = [node for node in ray.nodes() if node["Alive"]]
        working = [node for node in alive if node["Resources"].get("CPU")] or alive
        taken = Counter(self._places.values())
        node: str = min((node["NodeID"] for node in working), key=lambda each: taken[each])
        self._places[number] = node
        return NodeAffinitySchedulingStrategy(node, soft=False)

    async def _supervise(self, start: Start, stop: asyncio.Event) -> tuple[int | None, str]:
        import ray

        place = Path(start.log)
        place.parent.mkdir(parents=True, exist_ok=True)
        order = NodeOrder(
            what=start.what,
            arguments=start.arguments,
            token=start.token,
            log=start.log,
            folder=self._folder,
            scratch=self.scratch,
            hidden=start.hidden,
        )
        actor = (
            ray.remote(NodeWorker)
            .options(num_cpus=0, max_restarts=0, scheduling_strategy=self._place(ray, start.number))
            .remote()
        )
        stopped = f"{start.what}: ended by the run"
        following: asyncio.Task[None] | None = None
        node = ""
        try:
            async with asyncio.timeout(START_SECONDS):
                found = await _unless(stop, actor.node.remote())
                if found is None:
                    return None, stopped
                node = f" on node {found[0]}"
                with place.open("ab") as file:
                    file.write(f"{start.what}: runs{node}\n".encode())
                following = asyncio.create_task(_follow(actor, place))
                ready = await _unless(stop, actor.start.remote(msgspec.json.encode(order)))
            if ready is not None and ready[0] is not None:
                return None, ready[0]
            if ready is not None:
                self.say(Started(number=start.number))
                ended = await _unless(stop, actor.ended.remote())
                if ended is not None:
                    status, message = ended[0]
                    return status, message
            async with asyncio.timeout(STOP_SECONDS):
                await actor.stop.remote()
            return None, stopped
        except TimeoutError:
            what = (
                "did not end in order"
                if stop.is_set()
                else f"not ready after {START_SECONDS:.0f} s"
            )
            return None, f"{start.what}: {what}{node}; see `{start.log}`"
        except ray.exceptions.RayActorError as error:
            return (
                None,
                f"{start.what}: its Ray actor{node} ended: {brief(error)}; see `{start.log}`",
            )
        finally:
            try:
                with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
                    async with asyncio.timeout(_FLUSH_SECONDS):
                        if following is not None:
                            await following
                        await actor.clean.remote()
            finally:
                ray.kill(actor)


async def _unless(stop: asyncio.Event, reference: Awaitable[_T]) -> tuple[_T] | None:
    """What an actor answers, as a tuple of one; None where the run wants the worker to end before that."""
    answering = asyncio.ensure_future(_answer(reference))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({answering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return (answering.result(),) if answering.done() else None
    finally:
        for each in (answering, stopping):
            each.cancel()
        await asyncio.gather(answering, stopping, return_exceptions=True)


async def _answer(reference: Awaitable[_T]) -> _T:
    return await reference


async def _follow(actor: Any, place: Path) -> None:
    """Append to the run's log what a worker's log gets."""
    offset, over = 0, False
    while not over:
        data, over = await actor.said.remote(offset)
        offset += len(data)
        with place.open("ab") as file:
            file.write(data)


def _join(asked: Opening) -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if asked.address is None:
        # Named for other systems, it makes Ray listen on loopback alone, everywhere.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        import ray

        # No processors: Ray starts no idle workers ahead, and ours ask for none.
        ray.init(
            address="local", num_cpus=0, object_store_memory=80 << 20, include_dashboard=False,
            _temp_dir=asked.scratch,
        )  # fmt: skip
    else:
        import ray

        ray.init(address=asked.address)
    return ray


def main() -> int:
    """Open Ray, and obey."""
    reports = take_stdout()
    opening = read_opening(Opening)
    lifeline = os.fdopen(take_lifeline(), "rb")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return asyncio.run(_main(Driver(opening, reports), lifeline))


async def _main(driver: Driver, lifeline: IO[bytes]) -> int:
    loop = asyncio.get_running_loop()
    commands: asyncio.Queue[bytes] = asyncio.Queue()
    opened = threading.Event()

    def read() -> None:
        for line in lifeline:
            loop.call_soon_threadsafe(commands.put_nowait, line)
        if not opened.is_set():
            if driver.scratch is not None:
                shutil.rmtree(driver.scratch, ignore_errors=True)
            os._exit(1)  # What Ray has started ends with this process.
        loop.call_soon_threadsafe(commands.put_nowait, b"")

    threading.Thread(target=read, daemon=True, name="lifeline").start()
    try:
        # In the main thread, for Ray's processes end with the thread that starts them.
        usable = driver.open()
        opened.set()
        if usable:
            await driver.drive(commands)
        return 0 if usable else 1
    finally:
        _leave(driver)


def _leave(driver: Driver) -> None:
    """One that we started ends with this; one that we joined loses our actors."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
    if driver.scratch is not None:
        shutil.rmtree(driver.scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
