"""The directory in which a command runs.

Knows: that it may be gone. Does not know: what the command reads there.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.errors import UserError


def check_working_directory() -> None:
    """Raise UserError if the working directory is gone: libraries would end the process with a message of
    their own."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UserError("the working directory was removed; change to another one (cd) and repeat") from error
