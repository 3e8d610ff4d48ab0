"""agentlightning's server as its command starts it, less the log lines for each request. Runs in its own environment."""

import logging
import sys

import structlog  # type: ignore[import-not-found]  # of its own environment
import uvicorn  # type: ignore[import-not-found]  # of its own environment
from agentlightning.server.app import create_app  # type: ignore[import-not-found]  # of its own environment

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
uvicorn.run(
    create_app(
        {
            "key": "",
            "default_proxy": {
                "model_name": "bench-model",
                "include_log_probs": True,
                "include_routed_experts": False,
                "train": {"temperature": 1},
                "val": {"temperature": 0.7},
            },
        }
    ),
    host="127.0.0.1",
    port=int(sys.argv[1]),
    workers=1,
    timeout_keep_alive=120,
    access_log=False,
)
