"""Entry point of the command: parses arguments, turns errors into one sentence and an exit code.

Knows: the list of commands and the exit codes. Does not know: what any command does (they load when called).
"""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cyclopts import App, CycloptsError
from rich.console import Console

from cotswold import __version__
from cotswold.api.threads import own_environment
from cotswold.cli.support import usage
from cotswold.cli.support.startup import check_working_directory, prepare_streams, unprintable
from cotswold.errors import CotswoldError, describe_exception
from cotswold.files import is_full
from cotswold.host.open_files import raise_descriptor_limit
from cotswold.launch import rank_log
from cotswold.ui.terminal import write_message

DEBUG = "COTSWOLD_DEBUG"
EPILOGUE = """\
Examples:

  cotswold train demo --run runs/demo                    a shipped recipe

  cotswold evaluate runs/demo                            measure its selectivity

  cotswold report runs/demo                              write an HTML report

  cotswold recipe show demo > mine.toml                  start your own recipe

  cotswold prepare table.npz stores/mine --labels file   store vectors

The same from Python: docs/python.md. All fields of a recipe: cotswold recipe explain.
"""

COMMANDS = {
    "train": ("train:train", "Train a recipe."),
    "cluster": ("cluster:app", "Long-running parameter servers: start, status, drain and more."),
    "serve": ("serve:app", "Serve parameters to your own training loops; serve data: samples."),
    "worker": ("worker:worker", "Add this machine to runs of strategies batch and downpour."),
    "prepare": ("prepare:prepare", "Prepare images, vectors or sequences of frames as a store."),
    "evaluate": ("evaluate:evaluate", "Measure the selectivity of a run's neurons, or its accuracy."),
    "features": ("features:features", "Write the responses of a layer to a file."),
    "predict": ("predict:predict", "Predict classes or regression targets with a supervised run."),
    "export": ("export:export", "Write a run's network to a file that runs without Cotswold."),
    "card": ("export:card", "Write a run's model card: a README.md for the Hugging Face hub."),
    "report": ("report:report", "Write a run's report: one HTML page."),
    "why": ("why:why", "Show what a run is doing now, and which process waits for which."),
    "verify": ("verify:verify", "Check every byte of a run or a store."),
    "info": ("info:info", "Show sizes, counts and times of a recipe, or a store's contents."),
    "simulate": ("simulate:simulate", "Predict the time of a step on a cluster that is not available."),
    "recipe": ("recipe:app", "Show shipped recipes, explain their fields."),
    "data": ("data:app", "Generate images to try commands with; show augmented ones."),
    "bench": ("bench:app", "Measure this machine."),
}


def build(called: str | None = None) -> App:
    """Return the application with every command registered by name, none loaded.

    The list of commands has a sentence for each. The command that is ``called`` shows its own help, with
    examples.
    """
    app = App(
        name="cotswold",
        console=Console(),  # or command groups would keep the first console that they make, with its width
        help="Train deep, locally connected networks on ordinary, unequal, unreliable machines.",
        help_epilogue="" if called in COMMANDS else EPILOGUE,
        version=__version__,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,  # or it would exit silently
    )
    for name, (place, sentence) in COMMANDS.items():
        app.command(f"cotswold.cli.{place}", name=name, help=None if name == called else sentence)
    if called in COMMANDS:
        module, _, name = COMMANDS[called][0].partition(":")
        _use_full_width(module)
        command = getattr(importlib.import_module(f"cotswold.cli.{module}"), name)
        if isinstance(command, App) and command.default_command is not None:
            command.help = None  # or the command would keep the list's sentence
    return app


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
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words or bool(os.environ.get(DEBUG))
    with _own_environment(debug):
        sys.exit(_run([word for word in words if word != "--debug"], debug))


@contextmanager
def _own_environment(debug: bool) -> Iterator[None]:
    """Restore environment variables that a command sets for itself and its ranks."""
    with own_environment():
        if debug:
            os.environ[DEBUG] = "1"
        yield


def _run(words: Sequence[str], debug: bool) -> int:
    """Return the exit code of a command; with ``debug`` raise its exceptions."""
    try:
        check_working_directory()
        status = build(words[0] if words else None)(
            words, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        if debug:
            rank_log.append(traceback.format_exc())
            raise
        write_message(usage.shortened(usage.sentence(error)))
        return 2
    except CotswoldError as error:
        if debug:
            rank_log.append(traceback.format_exc())
            raise
        write_message(f"{usage.shortened(str(error))}{unprintable(str(error))}")
        return error.exit_code
    except KeyboardInterrupt:
        write_message("stopped")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except Exception as error:
        if debug:
            rank_log.append(traceback.format_exc())
            raise
        sentence = usage.shortened(_sentence(error))
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            write_message(sentence)
            return 2
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            most = raise_descriptor_limit()
            write_message(
                f"{sentence}: this process may open {most} files; raise it (ulimit -n {max(1024, 2 * most)})"
            )
            return 1
        if isinstance(error, OSError) and is_full(error):
            place = error.filename or "the output"
            write_message(
                f"no space left to write {place} ({error.strerror}); free some and run the command again"
            )
            return 1
        write_message(f"{sentence} (unexpected; run the command again with --debug for the traceback)")
        return 1
    return status if isinstance(status, int) else 0


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}"
    return describe_exception(error)


if __name__ == "__main__":
    main()
