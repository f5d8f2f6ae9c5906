"""Distributed features: vectors ``(..., feature)`` of which each rank holds some features.

Knows: the features of each rank, operations that keep them distributed, when to gather. Does not know:
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from cotswold.errors import UserError
from cotswold.mesh.maps.distributed_tensor import (
    ALIKE,
    AliasGuard,
    DistributedTensor,
    attribute_of,
    base_name,
    in_place,
    register_part_hook,
    shares_memory,
    version_of,
)
from cotswold.mesh.modules.parameters import two_level_chunk_bounds
from cotswold.mesh.ranks.collectives import all_gather, all_reduce_backward
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.rules.registry import POINTWISE
from cotswold.ops.layers.dropout import dropout_mask

DRAWING = frozenset(
    (
        "alpha_dropout",
        "bernoulli",
        "feature_alpha_dropout",
        "feature_dropout",
        "gumbel_softmax",
        "multinomial",
        "rand_like",
        "randn_like",
        "rrelu",
    )
)
"""Functions that draw random numbers, which must be equal on all ranks."""


class DistributedFeatures(DistributedTensor):
    """Values ``(..., feature)`` of which each rank holds some features; torch's functions accept it.

    Pointwise operations keep it distributed; every other function gets the gathered values on every rank.
    """

    called = "a vector of distributed features"

    def __new__(cls, local: Tensor, features: int, mesh: Mesh) -> Self:
        """Create a tensor with the shape of the whole."""
        return cls.without_memory((*local.shape[:-1], features), local)

    def __init__(self, local: Tensor, features: int, mesh: Mesh) -> None:
        self.local, self.features, self.mesh, self.copies = local, features, mesh, AliasGuard()

    @property
    def local_slice(self) -> slice:
        """Features that this rank holds."""
        cuts = two_level_chunk_bounds(self.features, self.mesh.grid)
        return slice(cuts[self.mesh.rank], cuts[self.mesh.rank + 1])

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]  # an attribute in torch's stubs
        """Shape of the whole."""
        return torch.Size((*self.local.shape[:-1], self.features))

    def _part(self) -> Tensor:
        """This rank's values, without a message."""
        return self.local

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """Register a function of the gradient, which is distributed like these features."""
        return register_part_hook(
            self.local, hook, lambda grad: DistributedFeatures(grad, self.features, self.mesh)
        )

    def full_tensor(self) -> Tensor:
        """Gather all features on every rank; differentiable."""
        self.check_gradient()
        cuts = two_level_chunk_bounds(self.features, self.mesh.grid)
        places = [(..., slice(a, b)) for a, b in pairwise(cuts)]
        return all_gather(self.local, self.mesh, self.shape, places)  # type: ignore[arg-type]  # ... is a place

    def saved(self) -> Self:
        """Return a copy that shares the values and needs gradients alike, without their history."""
        local = self.local.detach().requires_grad_(self.local.requires_grad)
        return type(self)(local, self.features, self.mesh)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Handle a torch function that has distributed features among its arguments."""
        kwargs = dict(kwargs or {})
        given = (*args, *kwargs.values())
        first = next((one for one in given if isinstance(one, cls)), None)
        if first is not None and args and first is args[0]:
            attribute = attribute_of(function)
            if attribute in ALIKE or function.__name__ in ALIKE:
                found = getattr(first.local, attribute or function.__name__)
                return found if attribute else found(*args[1:], **kwargs)
            if function.__name__ in ("requires_grad_", "retain_grad"):
                raise UserError(
                    f"{function.__name__} of {cls.called} has no effect; use register_hook, or parameters"
                )
            if attribute and function.__name__ != "__get__":
                raise UserError(
                    f"{attribute} of {cls.called} cannot be set; use functions that return new tensors"
                )
        name, changes = base_name(function), in_place(function) or bool(kwargs.get("inplace"))
        parts = first is not None and (
            name == "dropout" or (name in POINTWISE and all(map(first._is_compatible, given)))
        )
        if changes and args and not isinstance(args[0], cls):
            raise UserError(
                f"{name} in place would change a replicated tensor by distributed features; use the "
                "out-of-place function"
            )
        for one in given:
            if isinstance(one, cls):
                one.check_gradient()
                one.copies.check(name, one.called, changes and one is args[0])
        if first is None or not parts:
            return _call_on_wholes(function, args, kwargs)
        if name == "dropout":
            return first._dropped(*args[1:], **kwargs)
        out = function(
            *map(first._local_operand, args),
            **{key: first._local_operand(value) for key, value in kwargs.items()},
        )
        return first if out is first.local else cls(out, first.features, first.mesh)

    def _is_compatible(self, value: Any) -> bool:
        if isinstance(value, DistributedFeatures):
            return value.shape == self.shape
        if isinstance(value, DistributedTensor):
            return False
        return not isinstance(value, Tensor) or (
            value.dim() <= self.dim() and (value.dim() == 0 or value.shape[-1] in (1, self.features))
        )

    def _local_operand(self, value: Any) -> Any:
        if isinstance(value, DistributedFeatures):
            return value.local
        if not isinstance(value, Tensor):
            return value
        value = all_reduce_backward(value, self.mesh)
        return value[..., self.local_slice] if value.dim() and value.shape[-1] == self.features else value

    def _dropped(
        self, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
    ) -> DistributedFeatures:
        """Apply this rank's part of the mask that one process would draw."""
        if not training or not train or p == 0:
            return self
        self.mesh.consistency_checks.check_rng(self.device.type)
        whole = dropout_mask(self.local.new_ones(self.shape), p)
        mask = whole[..., self.local_slice].clone()  # frees the rest
        if inplace:
            self.local.mul_(mask)
            return self
        return DistributedFeatures(self.local * mask, self.features, self.mesh)

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes contents
        return f"DistributedFeatures({tuple(self.shape)}, {self.dtype} on {self.mesh})"


def _call_on_wholes(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function with gathered features on every rank; watch views of them, and changes in place."""
    given = [one for one in (*args, *kwargs.values()) if isinstance(one, DistributedFeatures)]
    if given and base_name(function) in DRAWING:
        given[0].mesh.consistency_checks.check_rng(given[0].device.type)
    wholes = {id(one): one.full_tensor() for one in given}
    versions = {key: version_of(whole) for key, whole in wholes.items()}

    def whole(value: Any) -> Any:
        return wholes[id(value)] if id(value) in wholes else full_tensor_of(value)

    out = function(*map(whole, args), **{key: whole(value) for key, value in kwargs.items()})
    for one in given:
        copy, version = wholes[id(one)], versions[id(one)]
        viewed = any(shares_memory(copy, each) for each in tree_leaves(out))
        if one.mesh.size > 1 and (viewed or version_of(copy) != version):
            one.copies.add(copy, version)
    return out


def full_tensor_of(value: Any) -> Any:
    """Gather distributed features in a value, tuple or list; leave other values as they are."""
    if isinstance(value, DistributedFeatures):
        return value.full_tensor()
    if isinstance(value, tuple | list):
        return type(value)(map(full_tensor_of, value))
    return value
