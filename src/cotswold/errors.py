"""The hierarchy of Cotswold's errors.

Knows: whether the user or the machine is at fault, and so the exit code. Does not know: anything else of
Cotswold; every package may import this module.

A message is one sentence that names the cause and the remedy. `cotswold` prints only the message; with
``--debug`` it adds the traceback.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path

ANOTHER_RANK_EXIT = 75
"""Exit code of a rank that ends because another has died, failed or hung: EX_TEMPFAIL of sysexits.h.

The rank at fault ends with another code: 1, 2 or a signal's.
"""


RESUME = "resume the run"
"""Remedy in errors after which training resumes from the last checkpoint."""


INSTALL = "pip install '.[{}]'"
"""Command that installs an extra, in a checkout: no package index has Cotswold yet."""


def install(extra: str) -> str:
    """Describe how to install an extra, for error messages."""
    return f"{INSTALL.format(extra)} in a checkout of Cotswold"


class CotswoldError(Exception):
    """Base class of all errors that Cotswold raises deliberately.

    Attributes:
        exit_code: Exit code of the command for this error.
    """

    exit_code = 1


class UserError(CotswoldError):
    """An impossible or misspelt request by the caller; exit code 2."""

    exit_code = 2


class RecipeError(UserError):
    """A recipe that does not parse, has an unknown key, or contradicts itself."""


class UnknownStrategyError(RecipeError):
    """A recipe with an unknown strategy: misspelt, or from a package that is missing or broken."""


class GeometryError(UserError, ValueError):
    """Windows, steps, blocks or maps that do not fit each other."""


class SourceError(UserError):
    """A data source that is missing, empty, of an unknown format, or without one readable sample."""


class UnlabelledError(SourceError):
    """A source without the requested labels."""

    def __init__(self, said: str, remedy: str) -> None:
        """Create the error; ``remedy`` is a phrase that tells how to provide labels."""
        super().__init__(f'{said}; {remedy} or use labels = "none"')
        self.message_with_remedy = f"{said}; {remedy.removesuffix(',')}"
        """Message for tasks that cannot run without labels."""


class RunError(UserError):
    """A run directory that does not suit the command: missing, of another recipe, or existing already."""


class FormatError(UserError):
    """A file that a newer Cotswold wrote in a format that this one does not know."""


class LaunchError(UserError):
    """Ranks that cannot form one run: incomplete variables of a launcher, or ranks that disagree."""


class ClusterError(UserError):
    """A cluster description that does not parse, contradicts itself, or does not suit the request."""


class ForwardModeError(UserError, RuntimeError):
    """Forward-mode differentiation of an operation that supports only reverse mode."""


class ExportError(UserError, RuntimeError):
    """Export of an operation to a format that has no equivalent."""


class MachineError(CotswoldError):
    """A failure of the machine or its files; exit code 1.

    Attributes:
        remedy: Advice at the end of the message, after a semicolon.
    """

    def __init__(self, *cause: object, remedy: str = "") -> None:
        """Create the error.

        Args:
            cause: The message without the remedy.
            remedy: Advice at the end of the message [none].
        """
        super().__init__(*cause)
        self.remedy = remedy

    @property
    def cause(self) -> str:
        """The message without the remedy."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause


class ResumableError(MachineError):
    """A failure after which training resumes from the last checkpoint; the remedy ends with `RESUME`."""

    def __init__(self, *cause: object, remedy: str = RESUME) -> None:
        """Create the error.

        Args:
            cause: The message without the remedy.
            remedy: Advice at the end of the message [`RESUME`].
        """
        super().__init__(*cause, remedy=remedy)


class StoreError(MachineError):
    """A store that is truncated, corrupted or incomplete; the message names the chunk."""


class CheckpointError(MachineError):
    """A checkpoint that cannot be read or written; the message names the file."""


class MismatchError(CheckpointError):
    """An undamaged checkpoint whose network differs from the one to be loaded."""


class DiskFullError(MachineError):
    """No room left on the disk for a file."""


class MemoryLimitError(MachineError):
    """A job that would not fit in memory, detected before allocation."""


class BusyError(MachineError):
    """A directory in which another process is working."""


class RankError(MachineError):
    """A rank that did not arrive, died or failed; the message names it and its host."""


class DivergedError(MachineError):
    """An objective that became NaN or infinite; the last good checkpoint is intact."""


class MissingExtraError(MachineError, ImportError):
    """An optional dependency that is not installed; the message names the extra to install."""


def frame_of(error: BaseException, module: str) -> str:
    """Describe the innermost frame of a package in a traceback: `in package/file.py, line 3, function`.

    ``module`` is a module of that package. Empty if the traceback has none of its frames.
    """
    package = module.partition(".")[0]
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        name, code = str(frame.f_globals.get("__name__")), frame.f_code
        if package and name.partition(".")[0] == package:
            file = "/".join(Path(code.co_filename).parts[-1 - ("." in name) :])
            return f"in {file}, line {line}, {code.co_name}"
    return ""


def user_frame_of(error: BaseException, package: str) -> str:
    """Describe the innermost user frame, called by ``package``, in a traceback; empty without one.

    The form is `in FILE, line 3, function`. Installed packages and Python's library are not the user's code.
    """
    installed = tuple(sysconfig.get_path(each) + os.sep for each in ("stdlib", "purelib", "platlib"))
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            return ""
        if not code.co_filename.startswith((*installed, "<")):
            return f"in {code.co_filename}, line {line}, {code.co_name}"
    return ""


def describe_exception(error: BaseException, module: str = "") -> str:
    """Describe an exception: type, text, notes, and location.

    The location is in user code called by the package of ``module``, otherwise in that package.
    """
    words = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    package = module.partition(".")[0]
    place = (package and user_frame_of(error, package)) or frame_of(error, module)
    return ", ".join(filter(None, [words, *getattr(error, "__notes__", ()), place]))


def outside_level(*packages: str) -> int:
    """Return the ``stacklevel`` with which `warnings.warn` names the innermost line outside ``packages``."""
    frame, level = sys._getframe(1), 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in packages:
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]  # None at the outermost frame
    return level
