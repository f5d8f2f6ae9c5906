"""Tensor-like objects that hold one rank's part, and dispatch torch functions via ``__torch_function__``.

Knows: how calls reach ``__torch_function__``, what autograd must not do. Does not know: the meaning of the
parts, the functions' results.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

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
    """Name of a function without the underscores of operators and of in-place variants."""
    name: str = function.__name__
    return name.strip("_") if name.startswith("__") else name.rstrip("_")


def in_place(function: Callable[..., Any]) -> bool:
    """True if a function changes its first operand."""
    name: str = function.__name__
    if name.startswith("__"):
        return name.strip("_") in _CHANGING
    return name.endswith("_")


def shares_memory(a: Any, b: Any) -> bool:
    """True if two tensors share memory."""
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.numel() * b.numel() > 0
        and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    )


def version_of(values: Tensor) -> int:
    """Number of in-place changes of a tensor or of its memory; inference mode does not count them."""
    return 0 if values.is_inference() else values._version


class AliasGuard:
    """Gathered copies of a distributed tensor that torch semantics would make views.

    A change in place of the tensor or of a copy cannot reach the other, so `check` raises an error.
    """

    def __init__(self) -> None:
        self._found: list[tuple[Tensor, int]] = []
        self._of_copies: list[tuple[AliasGuard, int]] = []
        self._changes = 0

    def add(self, copy: Tensor, version: int) -> None:
        """Watch a copy, and all tensors that share its memory, for changes since its ``version_of``."""
        self._found.append((copy, version))

    def add_distributed(self, copy: DistributedTensor, local: Tensor) -> None:
        """Watch a distributed copy with this part, its own copies, and the views of each."""
        self.add(local, version_of(local))
        self._of_copies.append((copy.copies, copy.copies._changes))

    def _is_outdated(self) -> bool:
        """True if a copy, or a copy of a copy, was changed."""
        return any(version_of(copy) != version for copy, version in self._found) or any(
            guard._changes != changes or guard._is_outdated() for guard, changes in self._of_copies
        )

    def check(self, name: str, called: str, changes: bool = False) -> None:
        """Raise UserError if a copy was changed, or if its source is about to be changed (``changes``)."""
        if (changes and self._found) or self._is_outdated():
            raise UserError(
                f"{name} of {called} works in place on a tensor that has a view, or follows such a change; "
                "over ranks that view is a copy, so use functions that return new tensors"
            )
        self._changes += changes


def refuse_gradient(_: Tensor) -> Tensor:
    """Reject a gradient of autograd for a whole map, which no rank holds."""
    raise UserError(
        "an autograd.Function received a distributed tensor, and would lose its gradient: a custom "
        "function, a backward hook of a module, or a reentrant torch.utils.checkpoint around a partitioned "
        "module; write the function as a cotswold.mesh.SpatialLayer, remove the hook, or use checkpoints "
        "inside of the module"
    )


_HOOKS: dict[int, Callable[[Tensor], Tensor | None]] = OrderedDict({0: refuse_gradient})
"""Backward hooks of all distributed tensors."""


class DistributedTensor(Tensor):
    """Base of distributed tensors; subclasses implement ``__torch_function__``.

    It stands for a whole tensor of ``shape``: a tensor for ``isinstance``, without memory. Autograd knows it
    as a leaf only to detect that an `autograd.Function` received it.
    """

    called: ClassVar[str]
    """Name of the class in error messages."""
    copies: AliasGuard
    """Copies of the tensor that torch would make views."""

    @classmethod
    def without_memory(cls, shape: Sequence[int], like: Tensor) -> Self:
        """Create a tensor of a shape, with the type, device and ``requires_grad`` of ``like``."""
        out: Self = Tensor._make_wrapper_subclass(
            cls, shape, dtype=like.dtype, device=like.device, requires_grad=like.requires_grad
        )
        if like.requires_grad:
            with torch._C.DisableTorchFunctionSubclass():
                out._backward_hooks = _HOOKS
        return out

    def check_gradient(self) -> None:
        """Raise UserError for the output of an `autograd.Function`, which has no gradient for its parts."""
        if _grad_fn(self) is not None:
            refuse_gradient(self)

    def saved(self) -> Self | None:
        """Return a copy that shares the values and needs gradients alike, without their history."""
        return None

    @abstractmethod
    def _part(self) -> Tensor:
        """This rank's values, without a message."""

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def ndim(self) -> int:  # type: ignore[override]  # these are attributes in torch's stubs
        """Number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of values of the whole."""
        return self.shape.numel()

    nelement, ndimension = numel, dim

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]  # as above
        """Type of the values."""
        return self._part().dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # as above
        """Device of this rank's part."""
        return self._part().device

    @property
    def requires_grad(self) -> bool:
        """True if gradients flow into the values."""
        return self._part().requires_grad

    @requires_grad.setter
    def requires_grad(self, _: bool) -> None:
        refuse_gradient(self)

    def is_floating_point(self) -> bool:
        """Return True if the values are floating-point numbers."""
        return self._part().is_floating_point()

    @abstractmethod
    def full_tensor(self) -> Tensor:
        """Gather the whole on every rank, as an ordinary tensor; differentiable."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Handle a torch function; NotImplemented unless a subclass overrides it."""
        return NotImplemented

    @classmethod
    def __torch_dispatch__(cls, function: Any, *given: Any) -> Any:
        """Reject calls of torch's operators that bypass ``__torch_function__``.

        Autograd detaches what a checkpoint inside of another saves for the second call.
        """
        if function is torch.ops.aten.detach.default and (kept := given[1][0].saved()) is not None:
            return kept
        raise UserError(
            f"{function} received {cls.called} as an ordinary tensor, perhaps in an autograd.Function or a "
            "hook; call full_tensor() on it first, or write the function as a cotswold.mesh.SpatialLayer"
        )

    def size(self, dim: int | None = None) -> Any:
        """Return the shape of the whole, or one extent of it."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def __hash__(self) -> int:
        return id(self)

    def __format__(self, _: str) -> str:
        return repr(self)


def register_part_hook(part: Tensor, hook: Callable[[Any], Any], wrap: Callable[[Tensor], Any]) -> Any:
    """Register a hook on a part that receives the gradient as a distributed tensor.

    The hook may return another gradient.
    """

    def call(grad: Tensor) -> Tensor | None:
        found = hook(wrap(grad))
        return None if found is None else found.local

    return part.register_hook(call)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _grad_fn(x: Tensor) -> object:
    with torch._C.DisableTorchFunctionSubclass():
        return x.grad_fn


def attribute_of(function: Callable[..., Any]) -> str | None:
    """Name of the attribute that a function reads or sets; None for other functions."""
    if function.__name__ not in ("__get__", "__set__", "__delete__"):
        return None
    name: str = function.__self__.__name__  # type: ignore[attr-defined]  # a method of a descriptor
    return name


_ALIKE = """
    is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_quantized is_sparse
    is_sparse_csr is_vulkan is_xla is_xpu is_complex is_conj is_contiguous is_floating_point is_inference
    is_leaf is_neg is_signed itemsize element_size layout get_device grad_fn _version
"""
ALIKE = frozenset(_ALIKE.split())
"""Attributes and methods that are equal for a part and for the whole."""


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, name)

    def apply(self: DistributedTensor, *others: Any) -> Any:
        return self.__torch_function__(method, (), (self, *others))

    apply.__name__ = name
    return apply


for _short in _NAMES.split():
    setattr(DistributedTensor, f"__{_short}__", _operator(f"__{_short}__"))
