"""The engine `vllm`: starts and supervises a vLLM server that is installed on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import aiohttp

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint, Engine, EngineFactory
from lightning_core.errors import EngineError, UsageError
from lightning_local import options as engine_options
from lightning_local import smollm2
from lightning_local.process import Child

log = logging.getLogger(__name__)

OPTIONS = ("executable", "args", "tool_parser", "start_timeout")
"""What `--engine-option` takes."""
PROGRESS = 10.0
"""Seconds between two messages while the server starts."""


class VLLMEngine(Engine):
    """Serves a model with `vllm serve`."""

    name: ClassVar[str] = "vllm"

    def __init__(
        self,
        model: str,
        *,
        folder: Path,
        executable: str,
        arguments: tuple[str, ...] = (),
        tool_parser: str | None = None,
        start_timeout: float = 1800,
    ) -> None:
        """An engine, not yet started.

        Args:
            model: what `vllm serve` takes, or `smollm2`.
            folder: where the log `vllm.log` goes.
            executable: the path of the `vllm` command.
            arguments: further arguments of `vllm serve`.
            tool_parser: vLLM's name of the parser of tool calls, such as `hermes`.
            start_timeout: seconds that the start may take.
        """
        self._model = model
        self._folder = folder
        self._executable = executable
        self._arguments = arguments
        self._tool_parser = tool_parser
        self._start_timeout = start_timeout
        self._child: Child | None = None

    @property
    def gives(self) -> frozenset[Capability]:
        """Token ids and log-probabilities, also in streams; tools with a `tool_parser`."""
        base = {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.STREAM_TOKEN_IDS}
        return frozenset(base | ({Capability.TOOLS} if self._tool_parser else set()))

    @property
    def pid(self) -> int | None:
        """The id of the server's process group, once started."""
        return self._child.pid if self._child else None

    async def start(self) -> tuple[Endpoint, ...]:
        """Start the server and wait until it is healthy.

        Raises:
            EngineError: it ended or was not healthy in time; the message has the end of its log.
        """
        if self._child is not None:
            raise EngineError(f"engine `{self.name}` is started already; make another one")
        source = await self._source()
        port, key = _free_port(), secrets.token_urlsafe(32)
        command = [
            sys.executable, "-m", "lightning_local.supervise", self._executable, "serve", source,
            "--host", "127.0.0.1", "--port", str(port), "--served-model-name", self._model,
            *(("--enable-auto-tool-choice", "--tool-call-parser", self._tool_parser) if self._tool_parser else ()),
            *self._arguments,
        ]  # fmt: skip
        # By the environment: a command line can be read by every user of the machine.
        env = {**os.environ, "VLLM_API_KEY": key}
        try:
            self._child = Child(command, log=self._folder / "vllm.log", env=env)
        except OSError as error:
            raise EngineError(f"engine `{self.name}` cannot be started: {error}") from error
        try:
            await self._wait_healthy(self._child, f"http://127.0.0.1:{port}/health")
        except BaseException:
            await self.stop()
            raise
        return (Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=self._model, api_key=key),)

    async def died(self) -> EngineError:
        """Wait until the server ends by itself; why it did."""
        if self._child is None:
            return EngineError(f"engine `{self.name}` is not started")
        code = await self._child.ended()
        return EngineError(
            f"engine `{self.name}`: `vllm serve {self._model}` ended with code {code} while it served; the end of"
            f" {str(self._child.log)!r}:\n{self._child.tail()}"
        )

    async def stop(self) -> None:
        """End the server's process group."""
        if self._child is not None:
            await self._child.stop()

    async def _source(self) -> str:
        """What vLLM loads; `smollm2` is converted in a process of its own, as that takes torch."""
        if self._model != smollm2.NAME:
            return self._model
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lightning_local.smollm2",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await process.communicate()
        if process.returncode != 0:
            raise EngineError(
                f"model `{self._model}` cannot be converted: {errors.decode(errors='replace')[-2000:]}"
            )
        return output.decode().splitlines()[-1]

    async def _wait_healthy(self, child: Child, url: str) -> None:
        clock = asyncio.get_running_loop().time
        began = said = clock()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while True:
                if child.exit_code is not None:
                    raise EngineError(
                        f"engine `{self.name}`: `vllm serve {self._model}` ended with code {child.exit_code};"
                        f" the end of {str(child.log)!r}:\n{child.tail()}"
                    )
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass  # not listening yet
                now = clock()
                if now - began > self._start_timeout:
                    raise EngineError(
                        f"engine `{self.name}` was not healthy within {self._start_timeout:g} s; allow more with"
                        f" the option `start_timeout`. The end of {str(child.log)!r}:\n{child.tail()}"
                    )
                if now - said > PROGRESS:
                    said = now
                    log.info("vllm has been starting for %.0f s: %s", now - began, child.tail(1))
                await asyncio.sleep(0.25)


class VLLMEngineFactory(EngineFactory):
    """Makes engines of the kind `vllm`; only on demand."""

    name: ClassVar[str] = "vllm"

    def accepts(self, model: str) -> bool:
        """Never: `--engine vllm` has to be asked for."""
        return False

    def create(self, model: str, *, folder: Path, options: Mapping[str, str]) -> VLLMEngine:
        """An engine for `model`.

        Args:
            model: what `vllm serve` takes, or `smollm2`.
            folder: where the log goes.
            options: `executable` (the `vllm` command, by default the one on the path), `args` (more arguments of
                `vllm serve`, quoted as in a shell), `tool_parser` (vLLM's `--tool-call-parser`), `start_timeout`
                (seconds).

        Raises:
            UsageError: an option is unknown or mistyped.
            EngineError: vLLM is not installed.
        """
        engine_options.known(self.name, options, OPTIONS)
        wanted = options.get("executable", "vllm")
        executable = shutil.which(wanted)
        if executable is None:
            raise EngineError(
                f"engine `{self.name}`: there is no command {wanted!r}; run `pip install vllm`, or name the one"
                " of another environment with `--engine-option executable=PATH`"
            )
        if model == smollm2.NAME:
            smollm2.weights_file()
        try:
            arguments = tuple(shlex.split(options.get("args", "")))
        except ValueError as error:
            raise UsageError(
                f"option `args` of engine `{self.name}` is {options['args']!r}: {error}"
            ) from error
        return VLLMEngine(
            model,
            folder=folder,
            executable=executable,
            arguments=arguments,
            tool_parser=options.get("tool_parser"),
            start_timeout=engine_options.whole(self.name, options, "start_timeout", 1800) or 1800,
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
