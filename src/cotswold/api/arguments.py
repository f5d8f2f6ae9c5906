"""What a caller gave, looked at before it is used.

Knows: kinds of values, the sentence about a wrong one. Does not know: what they are for.
"""

from __future__ import annotations

from numbers import Integral, Real
from os import PathLike

from cotswold.errors import UserError


def check_path(what: str, value: object) -> None:
    """Raise UserError for what is no path, such as a tensor in the place of a source of samples."""
    if not isinstance(value, str | PathLike):
        raise UserError(
            f"{what} must be a path, not {_shown(value)}; save arrays as .npy or .npz and give the path of "
            "that file"
        )


def check_whole(what: str, value: object) -> None:
    """Raise UserError for what is no whole number; None says nothing."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise UserError(f"{what} must be a whole number, not {_shown(value)}")


def whole(what: str, value: object) -> int:
    """The whole number that was given, NumPy's too; raises UserError for anything else."""
    if value is None:
        raise UserError(f"{what} must be a whole number, not None")
    check_whole(what, value)
    return int(value)  # type: ignore[call-overload,no-any-return]  # as was checked


def check_number(what: str, value: object) -> None:
    """Raise UserError for what is no number; None says nothing."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
        raise UserError(f"{what} must be a number, not {_shown(value)}")


def check_truth(what: str, value: object) -> None:
    """Raise UserError for what is neither True nor False; None says nothing."""
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{what} must be True or False, not {_shown(value)}")


def check_text(what: str, value: object) -> None:
    """Raise UserError for what is no text, or has surrogates, which no message can carry; None says
    nothing."""
    if value is None:
        return
    if not isinstance(value, str):
        raise UserError(f"{what} must be a str, not {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} {value!a:.60} has a character that is no text (a surrogate): name it in Unicode"
        ) from error


def _shown(value: object) -> str:
    """A short value as it is, the type of any other."""
    if isinstance(value, str | int | float | tuple | list) and len(repr(value)) <= 40:
        return repr(value)
    return f"a {type(value).__name__}"
