"""The user's home, which a container's user may not have.

Knows: `~` in paths, HOME. Does not know: what is kept in a home.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.errors import UserError


def home() -> Path | None:
    """The user's home; None for a user without one."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def expanded(path: str | Path) -> Path:
    """The path with `~` or `~user` replaced by that user's home, or as it is if there is no such user.

    Raises UserError for `~` of a user without a home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        if Path(path).parts[0] != "~":
            return Path(path)  # a file may have such a name
        raise UserError(
            f"{path} begins with ~, and this user has no home; set HOME, or write the path out"
        ) from None
