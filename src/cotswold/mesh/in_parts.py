"""What is no tensor and of which each rank has a part, but torch's functions, methods and operators take it.

Knows: how calls reach ``__torch_function__``. Does not know: what is in parts, what a function does to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

_NAMES = """
    add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv pow rpow floordiv mod neg pos
    abs invert and or xor eq ne lt le gt ge getitem
"""


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
