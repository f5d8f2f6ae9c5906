"""Entry point of the command: parses arguments, turns errors into one sentence and an exit code.

Knows: the list of commands, the options of every command, the exit codes. Does not know: what any command
does (they load when called).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Group, Parameter
from rich.console import Console

from cotswold import __version__
from cotswold.api.threads import own_environment
from cotswold.cli.support import usage
from cotswold.cli.support.failures import failure_of
from cotswold.cli.support.json_output import print_json, wants_json
from cotswold.cli.support.output_amount import output_amount
from cotswold.cli.support.startup import check_working_directory, prepare_streams
from cotswold.host.open_files import raise_descriptor_limit
from cotswold.launch import rank_log
from cotswold.ui.terminal import write_message

DEBUG = "COTSWOLD_DEBUG"
HELP = (
    "Train PyTorch models across a handful of ordinary, unequal, unreliable machines: prepare data, train, "
    "look at runs, serve parameters and samples to your own loops."
)
EPILOGUE = """\
Examples:

  cotswold train demo --run runs/demo                    a shipped recipe

  cotswold evaluate runs/demo                            measure its selectivity

  cotswold report runs/demo                              write an HTML report

  cotswold recipe show demo > mine.toml                  start your own recipe

  cotswold prepare table.npz stores/mine --labels file   store vectors

  cotswold doctor                                        check this machine

  cotswold help train                                    explain a command

The same from Python: docs/python.md. All fields of a recipe: cotswold recipe explain.
"""

COMMANDS = {
    "prepare": ("prepare:prepare", "Prepare images, vectors or sequences of frames as a store."),
    "recipe": ("recipe:app", "Show shipped recipes, explain their fields."),
    "train": ("train:train", "Train a recipe."),
    "why": ("why:why", "Show what a run is doing now, and which process waits for which."),
    "evaluate": ("evaluate:evaluate", "Measure the selectivity of a run's neurons, or its accuracy."),
    "predict": ("predict:predict", "Predict classes or regression targets with a supervised run."),
    "features": ("features:features", "Write the responses of a layer to a file."),
    "report": ("report:report", "Write a run's report: one HTML page."),
    "card": ("export:card", "Write a run's model card: a README.md for the Hugging Face hub."),
    "export": ("export:export", "Write a run's network to a file that runs without Cotswold."),
    "verify": ("verify:verify", "Check every byte of a run or a store."),
    "serve": ("serve:app", "Serve parameters to your own training loops; serve data: samples."),
    "cluster": ("cluster:app", "Long-running parameter servers: start, status, drain and more."),
    "worker": ("worker:worker", "Add this machine to runs of strategies batch and downpour."),
    "doctor": ("doctor:doctor", "Show what this machine has, what is missing, and how to get it."),
    "info": ("info:info", "Show sizes, counts and times of a recipe, or a store's contents."),
    "simulate": ("simulate:simulate", "Predict the time of a step on a cluster that is not available."),
    "bench": ("bench:app", "Measure this machine."),
    "data": ("data:app", "Generate images to try commands with; show augmented ones."),
    "completion": ("completion:completion", "Print a shell's completion script: bash, zsh or fish."),
    "help": ("help:help_", "Explain a command."),
}
GROUPS = {
    "Train": ("prepare", "recipe", "train"),
    "Look at a run": ("why", "evaluate", "predict", "features", "report", "card", "export", "verify"),
    "Serve": ("serve", "cluster", "worker"),
    "Tools": ("doctor", "info", "simulate", "bench", "data", "completion", "help"),
}
"""Headings of the list of commands, in the order of the help."""
_OPTIONS = Group("Options of every command", sort_key=len(GROUPS))
_Flag = Annotated[bool, Parameter(negative=(), group=_OPTIONS, show_default=False)]


class _Console(Console):
    """A console whose closed pipe is handled as that of `print`; by default it exits with status 1."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError


def build(called: str | None = None) -> App:
    """Return the application with every command registered by name, none loaded.

    The list of commands has a sentence for each. The command that is ``called`` shows its own help, with
    examples. The application's ``meta`` takes the options of every command in addition.
    """
    app = App(
        name="cotswold",
        console=_Console(),  # or command groups would keep the first console that they make, with its width
        help=HELP,
        help_epilogue="" if called in COMMANDS else EPILOGUE,
        version=__version__,
        version_flags=("--version", "-V"),
        help_format="plaintext",
        suppress_keyboard_interrupt=False,  # or it would exit silently
    )
    for number, (heading, names) in enumerate(GROUPS.items()):
        group = Group(heading, sort_key=number)
        for place, name in enumerate(names):
            path, sentence = COMMANDS[name]
            app.command(
                f"cotswold.cli.{path}",
                name=name,
                help=None if name == called else sentence,
                group=group,
                sort_key=place,
            )
    for flags in (app.help_flags, app.version_flags):
        app[flags[0]].group = _OPTIONS
    if called in COMMANDS:
        module, _, name = COMMANDS[called][0].partition(":")
        _use_full_width(module)
        command = getattr(importlib.import_module(f"cotswold.cli.{module}"), name)
        if isinstance(command, App) and command.default_command is not None:
            command.help = None  # or the command would keep the list's sentence
        usage.set_usages(app[called], ("cotswold", called))
    _add_options(app)
    return app


def _add_options(app: App) -> None:
    """Let the application's ``meta`` take the options of every command, and call the application."""

    def launch(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        verbose: Annotated[_Flag, Parameter(name=("--verbose", "-v"))] = False,
        quiet: Annotated[_Flag, Parameter(name=("--quiet", "-q"))] = False,
        debug: _Flag = False,
    ) -> object:
        """Run a command.

        Parameters
        ----------
        verbose
            Show progress every second, log records, versions, time and memory.
        quiet
            Show results, warnings and errors only: no progress and no notes.
        debug
            Show the traceback of an error.
        """
        if debug:
            os.environ[DEBUG] = "1"
        named = app.parse_commands(words)[0]
        with output_amount(" ".join(named) or "cotswold", quiet=quiet, verbose=verbose):
            return app(words, exit_on_error=False, print_error=False, result_action="return_value")

    app.meta.suppress_keyboard_interrupt = False
    app.meta.default(launch)


def called_command(words: Sequence[str]) -> str | None:
    """Return the first word of a command line that is not an option.

    >>> called_command(["-v", "train", "demo"]), called_command(["-V"])
    ('train', None)
    """
    return next((word for word in words if not word.startswith("-")), None)


def _use_full_width(module: str) -> None:
    """Let the help of a module's commands fill the width of the terminal."""
    for each in vars(importlib.import_module(f"cotswold.cli.{module}")).values():
        if inspect.isfunction(each) and "Parameters\n" in (each.__doc__ or ""):
            each.__doc__ = usage.flowing(each.__doc__ or "")


def main(words: Sequence[str] | None = None) -> None:
    """Run the command.

    Exits with 0; 2 for a user's mistake; 1 for a failure of the machine; 75 for a rank that ended because of
    another; 128 + a signal's number.
    """
    prepare_streams()
    raise_descriptor_limit()
    with own_environment():  # commands set variables for themselves and their ranks
        sys.exit(_run(list(sys.argv[1:] if words is None else words)))


def _run(words: Sequence[str]) -> int:
    """Return the exit code of a command; with --debug raise its exceptions."""
    try:
        check_working_directory()
        called = called_command(words)
        app = build(called)
        if called is not None and called not in COMMANDS:
            words = [word for word in words if word not in app.help_flags]  # the parser refuses the command
        status = app.meta(words, exit_on_error=False, print_error=False, result_action="return_value")
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get(DEBUG) and not isinstance(error, KeyboardInterrupt):
            rank_log.append(traceback.format_exc())
            raise
        failure = failure_of(error)
        if wants_json(words):
            print_json("error", {"error": failure.as_dict()})
        write_message(failure.message)
        return failure.exit_code
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    main()
