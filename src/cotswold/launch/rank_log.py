"""Copy this process's terminal messages to its log file.

Knows: the variable in which a parent passes an open file. Does not know: the callers, the file's path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

VARIABLE = "COTSWOLD_LOG"


def variable_value(file: int) -> str:
    """Return the variable's value for a child that inherits this descriptor."""
    found = os.fstat(file)
    return f"{file} {found.st_dev} {found.st_ino}"


def stack_descriptor(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the descriptor of the log of a rank that Cotswold started; None for other processes."""
    if VARIABLE in environ:
        return _descriptor(environ)
    return 2 if "COTSWOLD_PARENT" in environ else None


def _descriptor(environ: Mapping[str, str]) -> int | None:
    """Return the descriptor that the variable names; None if the file behind it is another one."""
    file, *place = map(int, environ[VARIABLE].split())
    try:
        found = os.fstat(file)
    except OSError:
        return None
    # Children inherit the variable; the descriptor may be closed or refer to another file there.
    return file if [found.st_dev, found.st_ino] == place else None


def append(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Append lines to this process's log, if it has one; write errors are ignored."""
    if VARIABLE not in environ:
        return
    file = _descriptor(environ)
    if file is not None:
        with suppress(OSError):
            os.write(file, (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace"))


def log_message(sentence: str) -> None:
    """Print a sentence on standard error and append it to the log, from any thread.

    A closed terminal is ignored.
    """
    line = f"cotswold: {sentence}\n"
    with suppress(OSError):
        os.write(2, line.encode("utf-8", "backslashreplace"))
    append(line)
