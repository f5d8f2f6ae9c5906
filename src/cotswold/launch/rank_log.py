"""What this process says on a terminal, kept in its log as well where it has one.

Knows: the variable in which a parent names an open file. Does not know: who speaks, where the file lies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

VARIABLE = "COTSWOLD_LOG"


def handed(file: int) -> str:
    """The variable's value for a child that inherits this descriptor."""
    found = os.fstat(file)
    return f"{file} {found.st_dev} {found.st_ino}"


def keep(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Append lines to this process's log, if it has one; a log that cannot be written fails nobody."""
    if VARIABLE not in environ:
        return
    file, *place = map(int, environ[VARIABLE].split())
    try:
        found = os.fstat(file)
        # children inherit the variable, and may have another file under that number, or none
        if [found.st_dev, found.st_ino] == place:
            os.write(file, (text.rstrip("\n") + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        return


def say(sentence: str) -> None:
    """A sentence on standard error and in the log, from any thread; a terminal that is gone fails nobody."""
    line = f"cotswold: {sentence}\n"
    with suppress(OSError):
        os.write(2, line.encode("utf-8", "backslashreplace"))
    keep(line)
