"""What is no tensor and of which each rank has a part, but torch's functions, methods and operators take it.

Knows: how calls reach ``__torch_function__``. Does not know: what is in parts, what a function does to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from cotswold.errors import UserError

_NAMES = """
    add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv pow rpow floordiv mod neg pos
    abs invert and or xor eq ne lt le gt ge getitem setitem
"""


_CHANGING = frozenset(
    ("iadd", "isub", "imul", "itruediv", "iand", "ior", "ixor", "ipow", "imod", "ifloordiv", "setitem")
)
"""Operators that change their first operand."""


def base_name(function: Callable[..., Any]) -> str:
    """The name of a function without the marks of operators and of work in place."""
    name: str = function.__name__
    return name.strip("_") if name.startswith("__") else name.rstrip("_")


def in_place(function: Callable[..., Any]) -> bool:
    """Whether a function changes its first operand."""
    name: str = function.__name__
    if name.startswith("__"):
        return name.strip("_") in _CHANGING
    return name.endswith("_")


def shares_memory(a: Any, b: Any) -> bool:
    """Whether two tensors lie in the same memory."""
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.numel() * b.numel() > 0
        and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    )


def version_of(values: Tensor) -> int:
    """How often a tensor or what shares its memory was changed in place; inference mode does not count."""
    return 0 if values.is_inference() else values._version


class Copies:
    """Gathered copies of what is in parts, which torch's functions would have as views of it.

    Neither can follow where the other is changed in place.
    """

    def __init__(self) -> None:
        self._found: list[tuple[Tensor, int]] = []

    def add(self, copy: Tensor, version: int) -> None:
        """Watch a copy, and all that shares its memory, for changes since its ``version_of``."""
        self._found.append((copy, version))

    def check(self, name: str, called: str, changes: bool = False) -> None:
        """Raise UserError where a copy was changed, or what it is a copy of is about to be (``changes``)."""
        if (changes and self._found) or any(version_of(copy) != version for copy, version in self._found):
            raise UserError(
                f"{name} of {called} is work in place on what has a view elsewhere, or comes after it; over "
                "ranks that view is a copy, so use functions that give new tensors"
            )


class InParts:
    """Stands for a whole tensor of ``shape``; what it does is in ``__torch_function__`` of its kind."""

    called: ClassVar[str]
    """What its kind is called in errors."""

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole."""
        raise AttributeError(f"{self.called} has no shape")

    if TYPE_CHECKING:  # installed below
        __add__: Callable[[Any], Any]
        __radd__: Callable[[Any], Any]
        __sub__: Callable[[Any], Any]
        __rsub__: Callable[[Any], Any]
        __mul__: Callable[[Any], Any]
        __rmul__: Callable[[Any], Any]
        __truediv__: Callable[[Any], Any]
        __rtruediv__: Callable[[Any], Any]
        __pow__: Callable[[Any], Any]
        __neg__: Callable[[], Any]
        __getitem__: Callable[[Any], Any]
        __setitem__: Callable[[Any, Any], None]

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What torch calls instead of its own function; torch's own answer to a kind that it cannot take."""
        return NotImplemented

    def size(self, dim: int | None = None) -> Any:
        """The shape of the whole, or one extent of it."""
        return self.shape if dim is None else self.shape[dim]

    def __getattr__(self, name: str) -> Any:
        method = None if name.startswith("_") else getattr(torch.Tensor, name, None)
        if not callable(method):
            raise AttributeError(f"{self.called} has no attribute {name!r}")

        def applied(*args: Any, **kwargs: Any) -> Any:
            return self.__torch_function__(method, (), (self, *args), kwargs)

        return applied

    def __len__(self) -> int:
        return self.shape[0]

    def __hash__(self) -> int:
        return id(self)


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, name)

    def apply(self: InParts, *others: Any) -> Any:
        return self.__torch_function__(method, (), (self, *others))

    apply.__name__ = name
    return apply


for _short in _NAMES.split():
    setattr(InParts, f"__{_short}__", _operator(f"__{_short}__"))
