"""`python -m lightning_core.server`: a server for the process that started it; ends when standard input closes."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from lightning_core.children import be_child, say_ready, tune_interpreter
from lightning_core.server.app import Server, ServerConfig


async def _serve(config: ServerConfig) -> None:
    async with Server(config) as server:
        tune_interpreter()
        say_ready(url=server.url)
        raise await server.failure()


def main() -> int:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m lightning_core.server", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return be_child(
        _serve(ServerConfig(folder=options.folder, host=options.host, port=options.port))
    )


if __name__ == "__main__":
    sys.exit(main())
