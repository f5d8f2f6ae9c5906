"""The directory in which a command runs.

Knows: it may have been removed. Does not know: what the command reads there.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.errors import UserError


def check_working_directory() -> None:
    """Raise UserError if the working directory was removed, before a library fails obscurely."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UserError("the working directory was removed; change to another one (cd) and repeat") from error
