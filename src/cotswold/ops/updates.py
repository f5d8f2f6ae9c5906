"""What a shard of a parameter server does with pushes, on tensors: rules, unit rows, products of factors.

Knows: which of the ways there are: kernels of our own on CPUs, torch elsewhere, with the same bits on CPUs
where torch fuses multiplications with additions. Does not know: where pushes come from, versions, rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.kernels.available import or_torch, usable
from cotswold.kernels.operands import name_of

if TYPE_CHECKING:
    from cotswold.kernels.updates import Block, Shard

BLOCK = 1 << 14
"""Numbers that torch works on at a time: with what is beside them they stay in the second cache."""
CHAINS = 32
"""Chains in which the squares of a row are summed, as `kernels.updates` has them."""

_first_byte: Callable[[Any], c_char] = c_char.from_buffer
Array = NDArray[Any]
Kind = Literal["add", "momentum", "adagrad"]
Push = tuple[float, Tensor]
"""A factor and numbers."""
FactorPush = tuple[float, Tensor, Tensor]
"""A factor, errors ``(example, row)``, activations ``(example, column)``, contiguous."""


class Queue(NamedTuple):
    """A shard and the pushes that wait for it, one at least: flat and contiguous, of one type.

    Arrays of NumPy: where one lies is known sooner than of a tensor that is made of it.
    """

    update: Update
    weights: Array
    kept: Array | None
    factors: Sequence[float]
    """Of the pushes."""
    pushes: Sequence[Array]


@dataclass(frozen=True)
class Update:
    """What pushes do to weights w, and to what is kept beside them; f is the factor of a push p.

    `add`: w ← w + f·p. `momentum`: v ← c·v − f·p, w ← w + v. `adagrad`: a ← a + p², w ← w − f·p/(√a + c).
    """

    kind: Kind
    constant: float = 0.0
    """c"""
    columns: int = 1
    """Numbers of a row, where rows matter: for factors, and for norms."""
    unit_norm: bool = False
    """Whether every row of ``columns`` numbers is divided by its norm afterwards. One of zeros, or of a norm
    that is not finite, stays as it is."""


@or_torch
def apply_pushes(update: Update, weights: Tensor, kept: Tensor | None, pushes: Sequence[Push]) -> None:
    """All pushes, in their order, in one pass over weights and what is kept: flat tensors of one type.

    In place, with the same bits as one push after the other, whatever threads there are; `kept` is None for
    `add`. Rows are scaled once, after the last push, also where there is none; they are as many as are whole.

    >>> weights = torch.tensor([1.0, 2.0])
    >>> apply_pushes(Update("add"), weights, None, [(-0.5, torch.tensor([2.0, 0.0]))])
    >>> weights
    tensor([0., 2.])
    """
    _check(update, weights, kept, pushes)
    if not (pushes or update.unit_norm):
        return
    if not usable(weights):
        _by_torch(update, weights, kept, pushes)
        return
    from cotswold.kernels import updates

    updates.run(_shard(update, weights.numel(), weights.dtype), weights, kept, pushes)


@lru_cache(maxsize=256)
def _shard(update: Update, size: int, dtype: torch.dtype) -> Shard:
    from cotswold.kernels import updates

    columns = update.columns if update.unit_norm else 1
    return updates.Shard(update.kind, size, name_of(dtype), update.constant, columns, update.unit_norm)


@or_torch
def apply_each(queues: Sequence[Queue]) -> None:
    """`apply_pushes` to many shards in one call: small ones cost about what their bytes do.

    All have one type, and updates of one kind and constant. Raises ValueError for vectors of other lengths or
    types.
    """
    if not queues:
        return
    for queue in queues:
        _check_queue(queue, queues[0])
    if not usable(torch.from_numpy(queues[0].weights)):
        for update, weights, kept, factors, pushes in queues:
            beside = None if kept is None else torch.from_numpy(kept)
            numbers = [torch.from_numpy(values) for values in pushes]
            _by_torch(update, torch.from_numpy(weights), beside, list(zip(factors, numbers, strict=True)))
        return
    from cotswold.kernels import updates

    every, dtype = updates.Queues(), getattr(torch, queues[0].weights.dtype.name)
    like, shard = queues[0].update, _shard(queues[0].update, queues[0].weights.size, dtype)
    for update, weights, kept, factors, pushes in queues:
        if update is not like or weights.size != shard.size:  # it takes long to look for
            like, shard = update, _shard(update, weights.size, dtype)
        if weights.size:
            own, *others = _addresses([weights, *([] if kept is None else [kept]), *pushes])
            beside_at = 0 if kept is None else others.pop(0)
            every.add(shard, own, beside_at, others, factors)
    every.run(shard)


def _addresses(vectors: Sequence[Array]) -> list[int]:
    """Where each lies; raises ValueError for one that is not contiguous."""
    try:
        return [addressof(_first_byte(values)) for values in vectors]  # several times as fast as ``ctypes``
    except TypeError:  # some are only to be read, or are not contiguous
        if not all(values.flags.c_contiguous for values in vectors):
            raise ValueError("a vector that is not contiguous") from None
        return [values.ctypes.data for values in vectors]


@or_torch
def apply_factors(update: Update, weights: Tensor, kept: Tensor | None, pushes: Sequence[FactorPush]) -> None:
    """As `apply_pushes` of the products of factors, none of which is ever in memory; `columns` are those of
    the weights.

    The gradient of a push is errorsᵀ · activations. In place, with the same bits as one push after the
    other, whatever threads there are; torch rounds products otherwise. Raises ValueError for factors of other
    shapes.
    """
    rows, rest = divmod(weights.numel(), max(1, update.columns))
    if rest:
        raise ValueError(f"{weights.numel()} weights are no whole rows of {update.columns}")
    for _, errors, activations in pushes:
        examples = errors.shape[0]
        fit = examples > 0 and errors.shape[1:] == (rows,) and activations.shape == (examples, update.columns)
        if not fit or errors.dtype != weights.dtype or activations.dtype != weights.dtype:
            raise ValueError(
                f"errors {tuple(errors.shape)} and activations {tuple(activations.shape)} ({errors.dtype}, "
                f"{activations.dtype}) are no factors of {rows} rows of {update.columns}"
            )
    _check(update, weights, kept, [])
    if not usable(weights):
        products = [(factor, (errors.t() @ seen).view(-1)) for factor, errors, seen in pushes]
        apply_pushes(update, weights, kept, products)
        return
    from cotswold.kernels import updates

    updates.run_products(_block(update, rows, weights.dtype), weights, kept, pushes)


@lru_cache(maxsize=256)
def _block(update: Update, rows: int, dtype: torch.dtype) -> Block:
    from cotswold.kernels import updates

    dtype_name, unit_norm = name_of(dtype), update.unit_norm
    return updates.Block(update.kind, rows, update.columns, dtype_name, update.constant, unit_norm)


def _check(update: Update, weights: Tensor, kept: Tensor | None, pushes: Sequence[Push]) -> None:
    _check_update(update, weights.numel(), has_kept=kept is not None)
    for values in [*(values for _, values in pushes), *([] if kept is None else [kept])]:
        if values.shape != weights.shape or values.dtype != weights.dtype:
            raise ValueError(
                f"{tuple(values.shape)} numbers of {values.dtype} for {tuple(weights.shape)} weights of "
                f"{weights.dtype}"
            )


def _check_update(update: Update, size: int, *, has_kept: bool) -> None:
    if has_kept == (update.kind == "add"):
        raise ValueError(f"{update.kind} with{'' if has_kept else 'out'} a vector beside the weights")
    if update.unit_norm and (update.columns < 1 or size % update.columns):
        raise ValueError(f"{size} weights are no whole rows of {update.columns}")


def _check_queue(queue: Queue, first: Queue) -> None:
    update, weights, kept, factors, pushes = queue
    if (update.kind, update.constant) != (first.update.kind, first.update.constant):
        raise ValueError(f"{update} among updates of {first.update.kind}")
    if len(factors) != len(pushes):
        raise ValueError(f"{len(factors)} factors of {len(pushes)} pushes")
    size, dtype = weights.size, first.weights.dtype
    _check_update(update, size, has_kept=kept is not None)
    for values in (weights, weights if kept is None else kept, *pushes):
        if values.size != size or values.dtype != dtype:
            raise ValueError(
                f"{values.size} numbers of {values.dtype} for {size} weights of {weights.dtype} ({dtype})"
            )


def _by_torch(update: Update, weights: Tensor, kept: Tensor | None, pushes: Sequence[Push]) -> None:
    for first in range(0, weights.numel(), BLOCK):
        block = slice(first, first + BLOCK)
        beside = weights[:0] if kept is None else kept[block]
        for factor, values in pushes:
            _move(update, weights[block], beside, factor, values[block])
    if update.unit_norm:
        _scale_to_one(weights.view(-1, update.columns))


def _move(update: Update, weights: Tensor, kept: Tensor, factor: float, push: Tensor) -> None:
    if update.kind == "add":
        weights.add_(push, alpha=factor)
    elif update.kind == "momentum":
        weights.add_(kept.mul_(update.constant).add_(push, alpha=-factor))
    else:
        kept.addcmul_(push, push)
        weights.sub_((push * factor).div_(_root(kept).add_(update.constant)))


def _root(values: Tensor) -> Tensor:
    """The square root; on CPUs by NumPy, for torch's is not always rounded to nearest."""
    if values.device.type != "cpu":
        return values.sqrt()
    import numpy as np

    return torch.from_numpy(np.sqrt(values.numpy()))


def _scale_to_one(rows: Tensor) -> None:
    wide = rows.double()
    chains = wide.new_zeros(len(rows), CHAINS)
    for first in range(0, rows.shape[1], CHAINS):
        some = wide[:, first : first + CHAINS]
        chains[:, : some.shape[1]].addcmul_(some, some)
    while chains.shape[1] > 1:
        half = chains.shape[1] // 2
        chains = chains[:, :half] + chains[:, half:]
    scalable = (chains > 0) & chains.isfinite()
    rows.copy_(torch.where(scalable, wide * _root(chains).reciprocal(), wide))
