"""`python -m lightning_core.litellm_engine`: serves a provider's models to the process that started it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import sys
from typing import Any

from aiohttp import web

from lightning_core.children import be_child, read_secret, say_error, say_ready
from lightning_core.errors import EngineError, LightningError
from lightning_core.litellm_engine.app import App
from lightning_core.litellm_engine.providers import (
    PROVIDERS,
    missing,
    provider_of,
    without_placeholders,
)


def main() -> int:
    """Import LiteLLM and serve until told to end."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_core.litellm_engine", description=__doc__
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--drop-params", action="store_true")
    parser.add_argument("--timeout", type=float, default=600.0)
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in ("aiohttp.access", "LiteLLM", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    key = read_secret()
    provider = PROVIDERS.get(provider_of(options.model) or "")
    secrets = provider.secrets if provider else _names_of_keys()
    without_placeholders(secrets)
    try:
        # What it prints must not be taken for what we say to our parent.
        with contextlib.redirect_stdout(sys.stderr):
            library = _library()
            _check(library, options.model)
    except LightningError as error:
        say_error(error)
        return 1
    app = App(
        library,
        options.model,
        key=key,
        secrets=secrets,
        drop_params=options.drop_params,
        timeout=options.timeout,
    )
    return be_child(_serve(app))


def _library() -> Any:
    """LiteLLM, which asks nobody but the provider, reads no `.env`, keeps no content and tries nothing twice."""
    os.environ |= {
        "LITELLM_OFFLINE_MODE": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
    }
    try:
        library: Any = importlib.import_module("litellm")
    except ImportError as error:
        raise EngineError(
            f'engine `litellm`: LiteLLM cannot be imported: {error}; run `pip install "lightning-core[litellm]"`'
        ) from error
    library.suppress_debug_info = True
    library.turn_off_message_logging = True
    library.drop_params = False
    library.modify_params = False
    library.aiohttp_trust_env = True
    return library


def _check(library: Any, model: str) -> None:
    """Refuse a model of no provider, and one without which variables it cannot be asked."""
    try:
        _, provider, _, _ = library.get_llm_provider(model=model)
    except library.BadRequestError:
        raise EngineError(
            f"engine `litellm`: model {model!r}: LiteLLM knows no such provider; its documentation lists them"
        ) from None
    if provider == "bedrock":
        found = importlib.import_module("botocore.session").get_session().get_credentials()
        if found is None and not os.environ.get("AWS_BEARER_TOKEN_BEDROCK"):
            raise missing(model, ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK"))
    elif provider_of(model) is None:
        told = library.validate_environment(model=model)["missing_keys"]
        if told:
            names = ", ".join(f"`{name}`" for name in told)
            raise EngineError(
                f"engine `litellm`: model {model!r}: not set: {names}; set what the provider needs of them"
            )


def _names_of_keys() -> tuple[str, ...]:
    return tuple(name for name in os.environ if name.endswith(("_KEY", "_TOKEN", "_SECRET")))


async def _serve(app: App) -> None:
    runner = web.AppRunner(app.application(), handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        say_ready(url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        sys.stdout = sys.stderr
        await asyncio.get_running_loop().create_future()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # There is nothing to keep, and to take LiteLLM's modules down in order takes seconds.
    os._exit(status)
