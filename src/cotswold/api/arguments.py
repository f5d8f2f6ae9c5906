"""Validation of arguments.

Knows: types of values, messages about wrong ones. Does not know: the use of the values.
"""

from __future__ import annotations

from numbers import Integral, Real
from os import PathLike

from cotswold.errors import UserError


def check_path(what: str, value: object) -> None:
    """Raise UserError for a value that is not a path, such as a tensor instead of a source."""
    if not isinstance(value, str | PathLike):
        raise UserError(
            f"{what} must be a path, not {_describe_value(value)}; save arrays as .npy or .npz and "
            "give the path of that file"
        )


def check_integer(what: str, value: object) -> None:
    """Raise UserError for a value that is neither an integer nor None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise UserError(f"{what} must be an integer, not {_describe_value(value)}")


def as_integer(what: str, value: object) -> int:
    """Return an integer, also from NumPy. Raises UserError for anything else."""
    if value is None:
        raise UserError(f"{what} must be an integer, not None")
    check_integer(what, value)
    return int(value)  # type: ignore[call-overload,no-any-return]  # checked above


def check_number(what: str, value: object) -> None:
    """Raise UserError for a value that is neither a number nor None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
        raise UserError(f"{what} must be a number, not {_describe_value(value)}")


def check_truth(what: str, value: object) -> None:
    """Raise UserError for a value that is neither a bool nor None."""
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{what} must be True or False, not {_describe_value(value)}")


def parse_ports(text: str | None) -> tuple[int, int] | None:
    """Return the first and last port of the option ``--ports``. Raises UserError for an invalid range."""
    from cotswold.recipe.schema.cluster import port_range

    try:
        return port_range(text)
    except ValueError as error:
        raise UserError(f"--ports {error}") from error


def check_text(what: str, value: object) -> None:
    """Raise UserError for a value that is neither None nor a str that can be encoded as UTF-8."""
    if value is None:
        return
    if not isinstance(value, str):
        raise UserError(f"{what} must be a str, not {_describe_value(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} {value!a:.60} contains a surrogate, which is not valid Unicode; remove it"
        ) from error


def _describe_value(value: object) -> str:
    """Return a short value itself, or the type of a long one."""
    if isinstance(value, str | int | float | tuple | list) and len(repr(value)) <= 40:
        return repr(value)
    return f"a {type(value).__name__}"
