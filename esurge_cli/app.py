"""The command `esurge`. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from esurge_cli.commands.bench import bench
from esurge_cli.commands.generate import generate
from esurge_cli.commands.inspect import inspect
from esurge_cli.errors import OutputClosed, RunFailed
from runner.errors import UserError

_EPILOG = "Every flag may also be set in the environment (ESURGE_MAX_NUM_SEQS for --max-num-seqs) or by --config FILE."

app = typer.Typer(
    name="esurge",
    help="A file of prompts in, a file of generations out.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (generate, bench, inspect):
    app.command(epilog=_EPILOG)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"esurge {version('esurge')}")
        raise typer.Exit


@app.callback()
def esurge(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """A file of prompts in, a file of generations out."""


def main() -> None:
    """Turn what ends a run before its end into a line and an exit status. Ctrl-C is Typer's: status 130."""
    try:
        app()
    except UserError as error:
        _exit_with(f"esurge: {error}", 2)
    except RunFailed as error:
        _exit_with(f"esurge: {error}", 1)
    except OutputClosed:
        # What is still buffered must not fail again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _exit_with(message: str, status: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(status)
