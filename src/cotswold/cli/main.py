"""The command's entry: parses words, turns errors into one sentence and an exit code.

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
from cotswold.cli.support.streams import prepare_streams, unprintable
from cotswold.cli.support.working_directory import check_working_directory
from cotswold.errors import CotswoldError, told
from cotswold.files import is_full
from cotswold.host.open_files import allow_descriptors
from cotswold.launch import rank_log as own_log
from cotswold.ui.progress import say

DEBUG = "COTSWOLD_DEBUG"
EPILOGUE = """\
Examples:

  cotswold train demo --run runs/demo                    a shipped recipe

  cotswold evaluate runs/demo                            how selective it is

  cotswold report runs/demo                              one page to look at

  cotswold recipe show demo > mine.toml                  to begin your own

  cotswold prepare table.npz stores/mine --labels file   vectors to a store

The same from Python: docs/python.md. All fields of a recipe: cotswold recipe explain.
"""

COMMANDS = {
    "train": ("train:train", "Train a recipe."),
    "cluster": ("cluster:app", "Parameter servers that outlive runs: start, status, drain and more."),
    "serve": ("serve:app", "Serve parameters to training loops of your own; serve data: samples."),
    "worker": ("worker:worker", "Lend this machine to runs of strategies batch and downpour."),
    "prepare": ("prepare:prepare", "Turn pictures, vectors or sequences of frames into a store."),
    "evaluate": ("evaluate:evaluate", "Measure how selective a run's neurons are."),
    "features": ("features:features", "Write the responses of a layer to a file."),
    "predict": ("predict:predict", "Classes of samples, or numbers, by a supervised run."),
    "report": ("report:report", "Write a run's report: one HTML page."),
    "why": ("why:why", "What a run does now, and who waits for whom."),
    "verify": ("verify:verify", "Check every byte of a run or a store."),
    "info": ("info:info", "Sizes, counts and times of a recipe; what a store holds."),
    "simulate": ("simulate:simulate", "Predict an update on a cluster that is not at hand."),
    "recipe": ("recipe:app", "Show shipped recipes, explain their fields."),
    "data": ("data:app", "Make pictures to try commands on; look at augmented ones."),
    "bench": ("bench:app", "Measure this machine."),
}


def build(called: str | None = None) -> App:
    """The application with every command registered by name, none loaded.

    The list of commands has a sentence for each; the one that is ``called`` speaks for itself, with examples.
    """
    app = App(
        name="cotswold",
        console=Console(),  # groups of commands would keep the first that they make, as wide as it was then
        help="Train deep, locally connected networks on the machines that you have.",
        help_epilogue="" if called in COMMANDS else EPILOGUE,
        version=__version__,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,  # or it would exit without a word
    )
    for name, (place, sentence) in COMMANDS.items():
        app.command(f"cotswold.cli.{place}", name=name, help=None if name == called else sentence)
    if called in COMMANDS:
        module, _, name = COMMANDS[called][0].partition(":")
        _let_flow(module)
        command = getattr(importlib.import_module(f"cotswold.cli.{module}"), name)
        if isinstance(command, App) and command.default_command is not None:
            command.help = None  # or it would keep the sentence of a list that was written before
    return app


def _let_flow(module: str) -> None:
    """Have the help of a module's commands fill the lines of a terminal."""
    for each in vars(importlib.import_module(f"cotswold.cli.{module}")).values():
        if inspect.isfunction(each) and "Parameters\n" in (each.__doc__ or ""):
            each.__doc__ = usage.flowing(each.__doc__ or "")


def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exits 0, 2 for the user's mistake, 1 for the machine's, 75 for a rank that ends
    because of another, 128 + a signal's number."""
    prepare_streams()
    allow_descriptors()
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words or bool(os.environ.get(DEBUG))
    with _own_environment(debug):
        sys.exit(_run([word for word in words if word != "--debug"], debug))


@contextmanager
def _own_environment(debug: bool) -> Iterator[None]:
    """What a command sets for itself and for ranks that it starts ends with it: tracebacks, threads, and how
    they wait."""
    with own_environment():
        if debug:
            os.environ[DEBUG] = "1"
        yield


def _run(words: Sequence[str], debug: bool) -> int:
    """The exit code of a command; with ``debug`` its exceptions are raised."""
    try:
        check_working_directory()
        status = build(words[0] if words else None)(
            words, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        if debug:
            own_log.keep(traceback.format_exc())
            raise
        say(usage.shortened(usage.sentence(error)))
        return 2
    except CotswoldError as error:
        if debug:
            own_log.keep(traceback.format_exc())
            raise
        say(f"{usage.shortened(str(error))}{unprintable(str(error))}")
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except Exception as error:
        if debug:
            own_log.keep(traceback.format_exc())
            raise
        sentence = usage.shortened(_sentence(error))
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            say(sentence)
            return 2
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            most = allow_descriptors()
            say(f"{sentence}: this process may have {most}; allow more (ulimit -n {max(1024, 2 * most)})")
            return 1
        if isinstance(error, OSError) and is_full(error):
            place = error.filename or "what the command prints"
            say(f"no room left to write {place} ({error.strerror}); free some and run the command again")
            return 1
        say(f"{sentence} (not foreseen; run the command again with --debug for the traceback)")
        return 1
    return status if isinstance(status, int) else 0


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}"
    return told(error)


if __name__ == "__main__":
    main()
