"""`python -m lightning_verl.trainer`: runs verl's trainer; reads the job from standard input, reports on standard output."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import traceback
from typing import Any, BinaryIO, Final

import msgspec

from lightning_core.children import read_opening, take_lifeline, take_stdout
from lightning_core.errors import LightningError
from lightning_core.plugins import installed
from lightning_verl.addresses import why_unreached
from lightning_verl.job import Done, Failed, Job, Platform, Progress, Report

_GRACE: Final = 15.0
_LONGEST: Final = 4000
_CONNECT_SECONDS: Final = 10.0


class _Stop(BaseException):
    """We are to end."""


def main() -> int:
    """Train; the exit status."""
    reports = take_stdout()
    job = read_opening(Job)
    _end_with_parent()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        _train(job, reports)
    except _Stop:
        return 1
    except Exception as error:
        if not isinstance(error, LightningError):
            traceback.print_exc()
        _report(reports, Failed(message=explain(error)))
        return 1
    finally:
        _end_ray()
    _report(reports, Done())
    return 0


def _train(job: Job, reports: BinaryIO) -> None:
    _report(reports, Progress(text="loading verl"))
    from lightning_verl.trainer import private, task_runner

    private.check()
    # A credit rule of a plugin has to be here too.
    job.learning.rules(0, installed().credit())
    if job.platform is Platform.CPU:
        _check_platform()
    config = _config(job)
    check_ray(config.ray_kwargs.ray_init.get("address"))
    from verl.trainer.main_ppo import run_ppo

    _report(reports, Progress(text="starting Ray, the trainer and vLLM"))
    runner = task_runner.Runner(job)
    try:
        run_ppo(config, task_runner_class=runner)
    except Exception as error:
        if fault := runner.fault():
            raise LightningError(fault) from error
        raise


def check_ray(address: str | None) -> None:
    """Refuse a Ray that nothing answers at, for which Ray itself would wait for minutes.

    Raises:
        LightningError: it cannot be reached.
    """
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdigit():
        return  # `local`, `auto`, or a form of Ray's that it checks itself.
    if (why := why_unreached(f"{host}:{port}", _CONNECT_SECONDS)) is not None:
        raise LightningError(
            f"no Ray at {address}: {why}; expected the head's address as `ray start --head` prints it, in"
            " `--set +ray_kwargs.ray_init.address=HOST:PORT`; without it the trainer starts a Ray of its own"
        )


def _config(job: Job) -> Any:
    """verl's configuration, checked by verl.

    Raises:
        LightningError: verl has no such key, or refuses a combination.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from lightning_verl.trainer import private

    try:
        with initialize_config_dir(config_dir=private.config_folder(), version_base=None):
            config = compose(config_name="ppo_trainer", overrides=list(job.overrides))
        validate_config(
            config=config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
    except (HydraException, ValueError, AssertionError) as error:
        raise LightningError(
            f"verl refuses its configuration: {error}; a key that verl does not have in its files is given as"
            " `--set +KEY=VALUE`"
        ) from error
    return config


def _check_platform() -> None:
    from verl.plugin.platform import get_platform

    if get_platform().device_name != "cpu":
        raise LightningError(
            f"platform `cpu`: verl took `{get_platform().device_name}`; its entry points are turned off by"
            " `VERL_USE_EXTERNAL_PLUGINS`, or `lightning-verl` is not installed in the verl environment"
        )


_HINTS: Final = (
    (
        "running low on memory",
        "this machine's memory ran out, and Ray ended a process; take a smaller model or fewer rollouts a step, end other"
        " programs, or take a larger machine",
    ),
    (
        "out of memory",
        "the device's memory ran out; lower `actor_rollout_ref.rollout.gpu_memory_utilization` or"
        " `actor_rollout_ref.actor.ppo_max_token_len_per_gpu`, or offload with"
        " `actor_rollout_ref.actor.fsdp_config.param_offload=true`",
    ),
    (
        "EngineDeadError",
        "vLLM died; the log above says of what",
    ),
)
"""What an error's text holds, and what to do about it; the first that fits."""


def explain(error: Exception) -> str:
    """An error for a person, with the next step where it is known."""
    # Ray's hold the whole remote traceback, and what was raised there as `cause`.
    inner = getattr(error, "cause", None) or error
    text = (
        str(inner)
        if isinstance(inner, LightningError)
        else f"{type(inner).__name__}: {inner}".strip()
    )
    if len(text) > _LONGEST:
        text = "… " + text[-_LONGEST:]
    whole = f"{type(inner).__name__} {error}"
    hints = (hint for sign, hint in _HINTS if sign in whole)
    return "\n".join([text, *itertools.islice(hints, 1)])


def _end_with_parent() -> None:
    """Watch our standard input, which closes when the parent ends."""
    lifeline = take_lifeline()

    def watch() -> None:
        while os.read(lifeline, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_GRACE)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise _Stop


def _end_ray() -> None:
    """Leave Ray: one that we started ends with it, one that we joined loses our actors."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()


def _report(reports: BinaryIO, report: Report) -> None:
    # The parent may be gone, and with it the pipe; the lifeline then ends this process.
    with contextlib.suppress(BrokenPipeError):
        reports.write(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
