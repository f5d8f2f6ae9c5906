"""Exceptions as one sentence and an exit code.

Knows: the errors of the parser, of Cotswold and of the system. Does not know: any command, streams.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from cyclopts import CycloptsError

from cotswold.cli.support import usage
from cotswold.cli.support.startup import unprintable
from cotswold.errors import CotswoldError, describe_exception
from cotswold.files import is_full
from cotswold.host.open_files import raise_descriptor_limit

INTERRUPTED_EXIT = 130
_USAGE_EXIT = 2


@dataclass(frozen=True)
class CommandFailure:
    """The end of a command by an exception."""

    kind: str
    """Name of the exception's class; `UsageError` for arguments that the parser refuses."""
    message: str
    """One sentence with cause and remedy."""
    exit_code: int

    def as_dict(self) -> dict[str, object]:
        """Return the fields for JSON."""
        return {"kind": self.kind, "message": self.message, "exit_code": self.exit_code}


def failure_of(error: BaseException) -> CommandFailure:
    """Return the sentence and the exit code for an exception."""
    kind = type(error).__name__
    match error:
        case CycloptsError():
            return CommandFailure("UsageError", usage.shortened(usage.sentence(error)), _USAGE_EXIT)
        case CotswoldError():
            said = str(error)
            return CommandFailure(kind, f"{usage.shortened(said)}{unprintable(said)}", error.exit_code)
        case KeyboardInterrupt():
            return CommandFailure(kind, "stopped", INTERRUPTED_EXIT)
        case OSError():
            return _system_failure(error, kind)
    return CommandFailure(kind, _unexpected(usage.shortened(describe_exception(error))), 1)


def _system_failure(error: OSError, kind: str) -> CommandFailure:
    """Return the failure for an error of the operating system."""
    place = f"{error.filename}: " if error.filename else ""
    said = usage.shortened(f"{place}{error.strerror}" if error.strerror else describe_exception(error))
    if error.errno == errno.ENAMETOOLONG:
        return CommandFailure(kind, said, _USAGE_EXIT)
    if error.errno == errno.EMFILE:
        most = raise_descriptor_limit()
        remedy = f"this process may open {most} files; raise it (ulimit -n {max(1024, 2 * most)})"
        return CommandFailure(kind, f"{said}: {remedy}", 1)
    if is_full(error):
        where = error.filename or "the output"
        remedy = "free some and run the command again"
        return CommandFailure(kind, f"no space left to write {where} ({error.strerror}); {remedy}", 1)
    return CommandFailure(kind, _unexpected(said), 1)


def _unexpected(said: str) -> str:
    return f"{said} (unexpected; run the command again with --debug for the traceback)"
