"""The engine `local`: a model on torch and transformers, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import aiohttp

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint, Engine, EngineFactory
from lightning_core.errors import EngineError, UsageError
from lightning_core.litellm_engine import provider_of
from lightning_local import models, options, smollm2
from lightning_local.process import Child

log = logging.getLogger(__name__)

OPTIONS = (
    "device", "dtype", "threads", "max_batch", "max_context", "cache_mb", "prefix_mb", "logprobs", "start_timeout",
)  # fmt: skip
"""What `--engine-option` takes."""
CHOICES = {"device": models.DEVICES, "dtype": models.DTYPES, "logprobs": ("raw", "processed")}
"""The options with fixed values. `logprobs` says of which distribution the log-probabilities are: the model's own,
or the one sampled from, as `lightning_local.serve.sampling.Logprobs` explains."""
GIVES = frozenset(
    {
        Capability.TOKEN_IDS,
        Capability.LOGPROBS,
        Capability.STREAM_TOKEN_IDS,
        Capability.TOOLS,
        Capability.WEIGHTS_IN_PLACE,
    }
)


PROGRESS = 10.0
"""Seconds between two messages while the model loads."""
WEIGHTS_SECONDS = 600.0
"""Seconds that loading new weights may take, the completions under way included."""
STATS_SECONDS = 30.0
"""Seconds that the server may take to tell its counters."""


class LocalEngine(Engine):
    """Serves a model with `python -m lightning_local.serve`.

    The child listens on a free port of 127.0.0.1, asks for a key that is made for this start, and ends with this
    process, however that ends.
    """

    name: ClassVar[str] = "local"

    def __init__(
        self,
        model: str,
        *,
        folder: Path,
        arguments: tuple[str, ...] = (),
        start_timeout: float = 600,
    ) -> None:
        """An engine, not yet started.

        Args:
            model: `smollm2`, a hub id, or a folder: a Hugging Face model, a LoRA adapter or a `policy.pt`.
            folder: where the log `engine.log` goes.
            arguments: further arguments of `python -m lightning_local.serve`.
            start_timeout: seconds that loading may take.
        """
        self._model = model
        self._folder = folder
        self._arguments = arguments
        self._start_timeout = start_timeout
        self._child: Child | None = None
        self._endpoint: Endpoint | None = None

    @property
    def gives(self) -> frozenset[Capability]:
        """Everything that an engine can give."""
        return GIVES

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._child.pid if self._child else None

    async def start(self) -> tuple[Endpoint, ...]:
        """Load the model and serve it; the first start of `smollm2` converts its weights, about 20 s.

        Raises:
            EngineError: it did not come up, or was started before.
        """
        if self._child is not None:
            raise EngineError(f"engine `{self.name}` is started already; make another one")
        key = secrets.token_urlsafe(32)
        command = [
            sys.executable, "-m", "lightning_local.serve", "--child", "--port", "0",
            "--model", self._model, *self._arguments,
        ]  # fmt: skip
        try:
            child = self._child = Child(
                command,
                log=self._folder / "engine.log",
                # Threads that spin while they wait are far slower where anything else runs.
                env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            raise EngineError(f"engine `{self.name}` cannot be started: {error}") from error
        try:
            child.send(json.dumps({"api_key": key}))
            line = await self._ready_line(child)
            if not line:
                raise EngineError(
                    f"engine `{self.name}` ended before it served {self._model!r}. {_logged(child)}"
                )
            ready = json.loads(line)
        except BaseException:
            await self.stop()
            raise
        self._endpoint = Endpoint(
            base_url=f"http://127.0.0.1:{ready['port']}/v1", model=ready["model"], api_key=key
        )
        return (self._endpoint,)

    async def _ready_line(self, child: Child) -> str:
        """The line that the child writes once it serves; empty where it has ended."""
        clock = asyncio.get_running_loop().time
        began = clock()
        reading = asyncio.create_task(child.read_line())
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=min(PROGRESS, self._start_timeout))
                waited = clock() - began
                if reading.done():
                    break
                if waited > self._start_timeout:
                    raise EngineError(
                        f"engine `{self.name}` did not serve {self._model!r} within"
                        f" {self._start_timeout:g} s; allow more with the option `start_timeout`."
                        f" {_logged(child)}"
                    )
                log.info("%s has been loading for %.0f s: %s", self._model, waited, child.tail(1))
        finally:
            reading.cancel()
        return reading.result()

    async def stop(self) -> None:
        """End the child and its group."""
        child, self._endpoint = self._child, None
        if child is not None:
            await child.stop()

    async def died(self) -> EngineError:
        """Wait until the child ends by itself; why it did."""
        if self._child is None:
            return EngineError(f"engine `{self.name}` is not started")
        await self._child.ended()
        return EngineError(f"engine `{self.name}` ended while it served. {_logged(self._child)}")

    async def load_weights(self, folder: Path) -> None:
        """Serve the weights in `folder` once the requests under way have been answered.

        Args:
            folder: a Hugging Face folder, which becomes the base model; or one with a LoRA adapter in PEFT's layout,
                which goes on the base model's own weights in place of any other adapter.

        Raises:
            EngineError: they do not fit, or cannot be read, and the old ones stay; or there was no answer in ten minutes.
        """
        body = {"folder": str(folder.resolve())}
        answer = await self._ask("POST", "/admin/weights", body, seconds=WEIGHTS_SECONDS)
        assert "weights_version" in answer

    async def stats(self) -> dict[str, object]:
        """The server's counters: speed, rows running and waiting, version of the weights.

        Raises:
            EngineError: it does not answer.
        """
        return await self._ask("GET", "/stats", None, seconds=STATS_SECONDS)

    async def _ask(
        self, method: str, path: str, body: object, *, seconds: float
    ) -> dict[str, object]:
        if self._endpoint is None or self._child is None:
            raise EngineError(f"engine `{self.name}` is not started")
        url = self._endpoint.base_url.removesuffix("/v1") + path
        headers = {"authorization": f"Bearer {self._endpoint.api_key}"}
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=10)
        try:
            async with (
                aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
                session.request(method, url, json=body) as response,
            ):
                answer: dict[str, object] = await response.json()
        except TimeoutError as error:
            raise EngineError(
                f"engine `{self.name}` did not answer {method} {path} within {seconds:g} s. {_logged(self._child)}"
            ) from error
        except (aiohttp.ClientError, ValueError) as error:
            # A ValueError is an answer that is no JSON.
            raise EngineError(
                f"engine `{self.name}` does not answer: {error}. {_logged(self._child)}"
            ) from error
        if response.status != 200:
            fault = answer.get("error")
            message = fault.get("message") if isinstance(fault, dict) else answer
            raise EngineError(f"engine `{self.name}`: {message}")
        return answer


class LocalEngineFactory(EngineFactory):
    """Makes engines of the kind `local`."""

    name: ClassVar[str] = "local"

    def accepts(self, model: str) -> bool:
        """`smollm2`, `org/name` where `org` is no provider's prefix, or a folder with a model, a LoRA adapter or a `policy.pt`."""
        return models.accepts(model) and provider_of(model) is None

    def create(self, model: str, *, folder: Path, options: Mapping[str, str]) -> LocalEngine:
        """An engine for `model`; the options are those of `python -m lightning_local.serve`.

        Raises:
            UsageError: the model's weights are not there, or an option is unknown or mistyped.
        """
        if not models.accepts(model):
            raise UsageError(
                f"engine `{self.name}` cannot serve {model!r}: expected `{smollm2.NAME}`, a hub id `org/name`, or a"
                " folder with a `config.json`, an `adapter_config.json` or a `policy.pt`"
            )
        if model == smollm2.NAME:
            smollm2.weights_file()
        return LocalEngine(
            model,
            folder=folder,
            arguments=_arguments(options),
            start_timeout=_whole(options, "start_timeout") or 600,
        )


def _arguments(given: Mapping[str, str]) -> tuple[str, ...]:
    """Command-line arguments from options."""
    options.known(LocalEngine.name, given, OPTIONS)
    arguments: list[str] = []
    for key, values in CHOICES.items():
        if key in given:
            arguments += [f"--{key}", options.one_of(LocalEngine.name, given, key, values)]
    for key in ("threads", "max_batch", "max_context", "cache_mb", "prefix_mb"):
        value = _whole(given, key)
        if value is not None:
            arguments += [f"--{key.replace('_', '-')}", str(value)]
    return tuple(arguments)


def _whole(given: Mapping[str, str], key: str) -> int | None:
    return options.whole(LocalEngine.name, given, key, None, least=0 if key == "prefix_mb" else 1)


def _logged(child: Child) -> str:
    return f"Exit code {child.exit_code}; the end of {str(child.log)!r}:\n{child.tail()}"
