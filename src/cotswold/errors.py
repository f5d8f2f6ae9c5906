"""One hierarchy of errors.

Knows: whose mistake an error is, and so the exit code of the command. Does not know: anything else of
Cotswold; every package may import this module.

A message is one sentence that names the culprit and the remedy. `cotswold` prints it alone and shows the
traceback only with ``--debug``.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path

ANOTHER_RANK_EXIT = 75
"""Exit code of a rank that ends because another has died, failed or hung: EX_TEMPFAIL of sysexits.h, "try
again". The one at fault ends with a code of its own, 1 or 2 or a signal's."""


RESUME = "resume the run"
"""What errors tell to do where training goes on from the last checkpoint."""


INSTALL = "pip install '.[{}]'"
"""The command that installs an extra, in a checkout: no package index has Cotswold yet."""


def install(extra: str) -> str:
    """How to install an extra, as errors say it."""
    return f"{INSTALL.format(extra)} in a checkout of Cotswold"


class CotswoldError(Exception):
    """Anything that Cotswold raises on purpose. ``exit_code`` is what the command returns for it."""

    exit_code = 1


class UserError(CotswoldError):
    """The caller asked for something impossible or misspelt; exit code 2."""

    exit_code = 2


class RecipeError(UserError):
    """A recipe that does not parse, has an unknown key, or contradicts itself."""


class UnknownStrategyError(RecipeError):
    """A recipe whose strategy nobody has: misspelt, or of a package that is not installed or broken."""


class GeometryError(UserError, ValueError):
    """Windows, steps, blocks or maps that do not fit each other."""


class SourceError(UserError):
    """A data source that is missing, empty, of an unknown format, or without one readable picture."""


class UnlabelledError(SourceError):
    """A source without the labels that are asked for."""

    def __init__(self, said: str, remedy: str) -> None:
        """``remedy``: what helps whoever needs labels, in words."""
        super().__init__(f'{said}; {remedy} or use labels = "none"')
        self.needing_labels = f"{said}; {remedy.removesuffix(',')}"
        """What it says to somebody who cannot do without."""


class RunError(UserError):
    """A run directory that does not suit the command: missing, of another recipe, or already there."""


class FormatError(UserError):
    """Something that a newer Cotswold wrote, in words that this one does not know."""


class LaunchError(UserError):
    """Ranks that cannot become one run: a launcher that says too little, ranks that do not agree."""


class ClusterError(UserError):
    """A described cluster that does not parse, contradicts itself, or does not suit what is asked of it."""


class ForwardModeError(UserError, RuntimeError):
    """Forward-mode differentiation of an operation that has only a reverse mode."""


class ExportError(UserError, RuntimeError):
    """Export of an operation to a format that has none like it."""


class MachineError(CotswoldError):
    """The machine or its files failed; exit code 1."""


class StoreError(MachineError):
    """A store that is truncated, corrupted or incomplete; the message names the chunk."""


class CheckpointError(MachineError):
    """A checkpoint that cannot be read or written; the message names the file."""


class MismatchError(CheckpointError):
    """A sound checkpoint, of another network than the one that is to be filled from it."""


class DiskFullError(MachineError):
    """No room left where a file was to be written."""


class MemoryLimitError(MachineError):
    """A job that would not fit in memory, found before anything is allocated."""


class BusyError(MachineError):
    """Another process is working in the same directory."""


class RankError(MachineError):
    """A rank that did not arrive, died or failed; the message names it and its host."""


class DivergedError(MachineError):
    """The objective became NaN or infinite; the last good checkpoint is intact."""


class MissingExtraError(MachineError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


def place_of(error: BaseException, module: str) -> str:
    """The innermost line of the package that ``module`` is of where an exception came through: `in
    package/file.py, line 3, function`; empty where it came through none."""
    package = module.partition(".")[0]
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        name, code = str(frame.f_globals.get("__name__")), frame.f_code
        if package and name.partition(".")[0] == package:
            file = "/".join(Path(code.co_filename).parts[-1 - ("." in name) :])
            return f"in {file}, line {line}, {code.co_name}"
    return ""


def own_place_of(error: BaseException, package: str) -> str:
    """The innermost line of a program's own that ``package`` called, where an exception came through: `in
    FILE, line 3, function`; empty where there is none. What is installed, and Python's own library, is
    nobody's own."""
    installed = tuple(sysconfig.get_path(each) + os.sep for each in ("stdlib", "purelib", "platlib"))
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            return ""
        if not code.co_filename.startswith((*installed, "<")):
            return f"in {code.co_filename}, line {line}, {code.co_name}"
    return ""


def told(error: BaseException, module: str = "") -> str:
    """An exception in words: its kind, its text, what was noted at it, and its place: in a
    program's own code that the package which ``module`` is of called, else in that package."""
    words = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    package = module.partition(".")[0]
    place = (package and own_place_of(error, package)) or place_of(error, module)
    return ", ".join(filter(None, [words, *getattr(error, "__notes__", ()), place]))


def outside_level(*packages: str) -> int:
    """The ``stacklevel`` with which the caller's `warnings.warn` names the innermost line outside of some
    packages: the user's own."""
    frame, level = sys._getframe(1), 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in packages:
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]  # None at the outermost frame
    return level
