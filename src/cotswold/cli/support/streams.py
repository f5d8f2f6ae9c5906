"""Standard streams that take whatever a command prints.

Knows: closed streams, encodings that lack a character. Does not know: what is printed.
"""

from __future__ import annotations

import codecs
import io
import os
import sys

_ERRORS = "cotswold.escaped"


def prepare_streams() -> None:
    """Open standard streams that are closed, and have output escape what its encoding lacks."""
    _open_closed()
    codecs.register_error(_ERRORS, escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """The bytes of a character that an encoding lacks: those of a file's name as they are, others as
    `\\u03bb`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if 0xDC80 <= ord(character) <= 0xDCFF:  # a byte of a name that is not text, as PEP 383 keeps it
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return character.encode("ascii", "backslashreplace"), error.start + 1


def unprintable(sentence: str) -> str:
    """A remedy to append to an error about names that the locale cannot express; empty for others."""
    if sentence.isascii() or sys.getfilesystemencoding() == "utf-8":
        return ""
    return "; this locale knows no names with other letters than ASCII: set LC_ALL=C.UTF-8 or PYTHONUTF8=1"


def _open_closed() -> None:
    """Have all three be open, or the first file that is opened would be taken for one of them (`2>&-`)."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(
                os.open(os.devnull, os.O_RDWR), True
            )  # it gets the least free number, this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
