"""The command `python -m lightning_local.serve`."""

from __future__ import annotations

import argparse
import asyncio
import io
import ipaddress
import json
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from lightning_local.models import Loaded

KEY_VARIABLE = "LIGHTNING_CORE_ENGINE_KEY"
"""Where a server started by hand finds the key that it asks for."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lightning_local.serve",
        description="Serve a model on this machine behind an OpenAI-compatible address.",
    )
    parser.add_argument(
        "--model",
        required=True,
        help="smollm2, a hub id org/name, or a folder: a Hugging Face model, a LoRA adapter, a policy.pt",
    )
    parser.add_argument("--name", help="the name that clients ask for; by default from --model")
    parser.add_argument("--host", default="127.0.0.1", help="other than loopback needs a key")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--threads", type=int, help="threads of torch; by default one is left free")
    parser.add_argument("--max-batch", type=int, default=64, help="most requests decoded at once")
    parser.add_argument("--max-context", type=int, help="most tokens of prompt and completion")
    parser.add_argument("--cache-mb", type=int, default=2048, help="memory of the running batch")
    parser.add_argument(
        "--prefix-mb", type=int, default=512, help="memory for known prompts; 0 off"
    )
    parser.add_argument(
        "--logprobs",
        default="raw",
        choices=("raw", "processed"),
        help="log-probabilities of the model itself, or of the distribution sampled from",
    )
    parser.add_argument(
        "--child",
        action="store_true",
        help="started by an engine: read the key from standard input, end when it closes",
    )
    return parser


def main() -> None:
    """Load the model, serve until told to stop."""
    options = _parser().parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    key = os.environ.get(KEY_VARIABLE) or None
    ready = sys.stdout
    if options.child:
        # Unbuffered: a thread that waits in a buffered reader keeps the interpreter from ending in order.
        pipe = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - open as long as we run
        key = json.loads(pipe.readline())["api_key"]
        # Libraries that print, in Python or C, must not get between us and the engine.
        ready = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        threading.Thread(target=_end_with_parent, args=(pipe, os.getppid()), daemon=True).start()
    if key is None and not _is_loopback(options.host):
        sys.exit(
            f"`--host {options.host}` can be reached by others, so it needs a key: set `{KEY_VARIABLE}`"
        )
    threads = options.threads or int(os.environ.get("OMP_NUM_THREADS") or max(1, _cores() - 1))
    # Before torch is imported: idle threads that spin take the core from the agents and the gateway.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TQDM_DISABLE", "1")

    import torch

    from lightning_core.errors import LightningError
    from lightning_local import models

    began = time.monotonic()
    try:
        loaded = models.load(options.model, device=options.device, dtype=options.dtype)
    except LightningError as error:
        sys.exit(f"error: {error}")
    logging.info(
        "loaded %s in %.1f s, %d threads", options.model, time.monotonic() - began, threads
    )
    torch.set_num_threads(threads)
    name = options.name or models.served_name(options.model)
    asyncio.run(_serve(options, loaded, name=name, key=key, ready=ready))


async def _serve(
    options: argparse.Namespace, loaded: Loaded, *, name: str, key: str | None, ready: TextIO
) -> None:
    from aiohttp import web

    from lightning_local.serve.app import Server
    from lightning_local.serve.limits import limits
    from lightning_local.serve.sampling import Logprobs

    loop = asyncio.get_running_loop()
    bounds = limits(
        loaded,
        max_batch=options.max_batch,
        max_context=options.max_context,
        cache_mb=options.cache_mb,
        prefix_mb=options.prefix_mb,
    )
    server = Server(
        loaded,
        name=name,
        limits=bounds,
        api_key=key,
        loop=loop,
        logprobs=Logprobs(options.logprobs),
    )
    server.scheduler.start()
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port).start()
    except OSError as error:
        sys.exit(f"error: cannot listen on {options.host}:{options.port}: {error}; try `--port 0`")
    port = runner.addresses[0][1]
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if options.child:
        print(json.dumps({"port": port, "model": name}), file=ready, flush=True)
    else:
        print(f"{name} at http://{options.host}:{port}/v1", flush=True)
    await stopped.wait()
    await runner.cleanup()
    server.scheduler.stop()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _end_with_parent(pipe: io.RawIOBase, parent: int) -> None:
    """End this process when the engine's has ended, however it ended.

    Its end of our standard input closes with it. Where another process has inherited that end, the change of
    our parent tells.
    """
    closed = threading.Event()

    def drain() -> None:
        while pipe.read(4096):
            pass
        closed.set()

    threading.Thread(target=drain, daemon=True).start()
    while not closed.wait(1.0):
        if os.getppid() != parent:
            break
    logging.info("the engine has gone; ending")
    os._exit(0)


if __name__ == "__main__":
    main()
