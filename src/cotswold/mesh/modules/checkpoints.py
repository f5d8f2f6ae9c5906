"""``torch.utils.checkpoint`` inside of partitioned modules, of both kinds.

Knows: where torch calls a function again during backward. Does not know: how parameters become local.

Backward runs outside of the module's forward, where parameters are DTensors. The functions of torch that
remember what to call again get a function that makes them local. A reentrant checkpoint of distributed
tensors is computed as the other kind, which has the same gradients: its autograd.Function would need whole
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import local
from typing import Any, Protocol, cast

import torch
from torch.utils import checkpoint as of_torch

from cotswold.mesh.maps.distributed_tensor import DistributedTensor
from cotswold.mesh.ranks.mesh import Mesh


class Recomputing(Protocol):
    """A partitioned module that can call a part of its forward again."""

    _mesh_of_maps: Mesh

    def _recompute(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function of the forward with local parameters."""


class _Running(local):
    """The partitioned modules whose forward runs in a thread, the innermost last."""

    def __init__(self) -> None:
        self.roots: list[Recomputing] = []


_RUNNING = _Running()


@contextmanager
def running(root: Recomputing) -> Iterator[None]:
    """Let checkpoints in a block call functions again with the parameters of ``root``.

    Ranks call whole functions again: stopping early, each after its own last saved tensor, they would send
    different messages.
    """
    _RUNNING.roots.append(root)
    try:
        with of_torch.set_checkpoint_early_stop(False):
            yield
    finally:
        _RUNNING.roots.pop()


def _again(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that the backward pass can call; unchanged outside of partitioned modules."""
    if not _RUNNING.roots:
        return function
    root = _RUNNING.roots[-1]
    gathered = root._mesh_of_maps.gathered

    def call(*args: Any, **kwargs: Any) -> Any:
        if root in _RUNNING.roots:  # still in its forward
            return function(*args, **kwargs)
        root._mesh_of_maps.gathered = gathered
        return root._recompute(function, args, kwargs)

    return call


@cache
def watch() -> None:
    """Make torch.utils.checkpoint work inside of partitioned modules, from now on."""
    reentrant = of_torch.CheckpointFunction.apply
    remember = of_torch._checkpoint_without_reentrant_generator

    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if not any(isinstance(one, DistributedTensor) for one in args):
            return reentrant(_again(function), preserve_rng_state, *args)  # type: ignore[no-untyped-call]  # torch's
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
            return of_torch.checkpoint(
                function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state
            )
        of_torch.check_backward_validity(args)  # which warns
        with torch.no_grad():
            return function(*args)

    def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return remember(_again(function), *args, **kwargs)

    cast(Any, of_torch.CheckpointFunction).apply = staticmethod(apply)
    cast(Any, of_torch)._checkpoint_without_reentrant_generator = generator
