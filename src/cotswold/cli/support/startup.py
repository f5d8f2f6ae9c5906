"""The start of a command: standard streams that accept all output, and a working directory that exists.

Knows: closed streams, encodings that lack a character, removed folders. Does not know: what the command does.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path

from cotswold.errors import UserError

_ERRORS = "cotswold.escaped"


def prepare_streams() -> None:
    """Open closed standard streams, and make output escape characters that its encoding lacks."""
    _open_standard_streams()
    codecs.register_error(_ERRORS, escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def escape(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode a character that an encoding lacks.

    Bytes of file names that are not text stay unchanged; other characters become `\\u03bb`.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if 0xDC80 <= ord(character) <= 0xDCFF:  # a byte of a name that is not text, as in PEP 383
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return character.encode("ascii", "backslashreplace"), error.start + 1


def unprintable(sentence: str) -> str:
    """Return a remedy for errors about names that the locale cannot express; empty for other errors."""
    if sentence.isascii() or sys.getfilesystemencoding() == "utf-8":
        return ""
    return "; this locale only supports names in ASCII: set LC_ALL=C.UTF-8 or PYTHONUTF8=1"


def _open_standard_streams() -> None:
    """Open all three streams, or a file opened later would take the number of a closed one (`2>&-`)."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(
                os.open(os.devnull, os.O_RDWR), True
            )  # it gets the smallest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def check_working_directory() -> None:
    """Raise UserError if the working directory was removed, before a library fails obscurely."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UserError("the working directory was removed; change to another one (cd) and repeat") from error
