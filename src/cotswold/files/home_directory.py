"""The user's home directory, which a container's user may lack.

Knows: `~` in paths, HOME. Does not know: the files in a home.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.errors import UserError


def home() -> Path | None:
    """Return the user's home directory; None if the user has none."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def expanded(path: str | Path) -> Path:
    """Replace `~` or `~user` by that user's home directory; unchanged if there is no such user.

    Raises UserError for `~` if the user has no home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        if Path(path).parts[0] != "~":
            return Path(path)  # a file may have such a name
        raise UserError(
            f"{path} begins with ~, but this user has no home; set HOME, or write the full path"
        ) from None
