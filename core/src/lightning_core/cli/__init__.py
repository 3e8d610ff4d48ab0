"""The command `lightning-core`. Each command is a module of its own, imported when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import click

from lightning_core import __version__
from lightning_core.errors import LightningError

_COMMANDS: Final = {
    "run": "Run an agent on tasks; record every model call, score every rollout.",
    "optimize": "Make an agent better: rollouts, rewards, and a backend that learns from them.",
    "trace": "Run any program unchanged and show its model calls as a tree.",
    "show": "Show a run, or one of its rollouts.",
    "samples": "Show what is learnt from a run or a rollout, token by token.",
    "prompts": "List an agent's prompts, as found in what it sent.",
    "diff": "Show what changed from one strategy file to another.",
    "export": "Write what an optimisation ended in, in the format that you need.",
    "infer": "Run the flow of a strategy file on a task.",
    "serve": "Serve: store, gateway and API, for runs and workers elsewhere.",
    "work": "Work for a server: lease attempts and run the agent.",
    "plugins": "List the plugins, their hooks and the frameworks that they need.",
    "doctor": "Check this machine, and say what to do about what is missing.",
    "new-plugin": "Write a plugin of your own: an adapter or a backend that works, to change.",
    "setup": "Make the environment in which a backend's trainer runs.",
}


class _Lazy(click.Group):
    """Knows the commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = cmd_name.replace("-", "_")
        command: click.Command = importlib.import_module(f"{__name__}.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


class AgentCommand(click.Command):
    """A command whose agent may be a command line after `--`, kept whole in `params["command_line"]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set aside what stands after the first `--`, which is another program's."""
        line: tuple[str, ...] = ()
        if "--" in args:
            at = args.index("--")
            args, line = args[:at], tuple(args[at + 1 :])
        rest = super().parse_args(ctx, args)
        ctx.params["command_line"] = line
        return rest


def pairs(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Turn repeated `KEY=VALUE` options into a dict."""
    found: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"expected KEY=VALUE but got {value!r}", param=parameter)
        found[key] = text
    return found


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lightning-core")
def group() -> None:
    """Make any existing LLM agent better without changing its code."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line. An error of ours is one message and exit status 1; Ctrl+C is 130."""
    try:
        return group.main(args=arguments, standalone_mode=False) or 0
    except click.exceptions.Abort:
        click.echo("stopped", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        return 130
    except LightningError as error:
        click.echo(f"error: {error}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
