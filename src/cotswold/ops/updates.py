"""Apply pushes to a shard of a parameter server: update rules, unit-norm rows, products of factors.

Knows: the backends: the library's kernels on CPUs, torch elsewhere, with the same bits on CPUs where torch
fuses multiply-adds. Does not know: the source of pushes, versions, rates.
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

from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import name_of

if TYPE_CHECKING:
    from cotswold.kernels.updates import BlockKind, ShardKind

BLOCK = 1 << 14
"""Elements that torch processes at a time: with their state they stay in the second-level cache."""
CHAINS = 32
"""Number of partial sums of a row's squares, the same as in `kernels.updates`."""

_first_byte: Callable[[Any], c_char] = c_char.from_buffer
Array = NDArray[Any]
Kind = Literal["add", "momentum", "adagrad"]
Push = tuple[float, Tensor]
"""A factor and a flat vector."""
FactorPush = tuple[float, Tensor, Tensor]
"""A factor, errors ``(sample, row)`` and activations ``(sample, column)``, contiguous."""


class Queue(NamedTuple):
    """A shard and its queued pushes, at least one: flat, contiguous, of one dtype.

    The vectors are NumPy arrays because the address of an array is faster to get than that of a tensor made
    from it.
    """

    update: UpdateRule
    weights: Array
    optimizer_state: Array | None
    factors: Sequence[float]
    """One factor for each push."""
    pushes: Sequence[Array]


@dataclass(frozen=True)
class UpdateRule:
    """The rule by which a push p with factor f changes weights w and the optimizer state.

    `add`: w ← w + f·p. `momentum`: v ← c·v − f·p, w ← w + v. `adagrad`: a ← a + p², w ← w − f·p/(√a + c).
    """

    kind: Kind
    constant: float = 0.0
    """The constant c of the rule."""
    columns: int = 1
    """Elements of a row, for factors and unit-norm rows."""
    unit_norm: bool = False
    """True if every row is divided by its norm afterwards; rows of zeros or with a norm not finite stay."""


@fallback_to_torch
def apply_pushes(
    update: UpdateRule, weights: Tensor, optimizer_state: Tensor | None, pushes: Sequence[Push]
) -> None:
    """Apply all pushes in order, in place, in one pass over weights and optimizer state.

    All vectors are flat and of one dtype; `optimizer_state` is None for `add`. The bits are those of one push
    after the other, for any number of threads. Rows are scaled once, after the last push, even without
    pushes. ValueError for vectors of other lengths or dtypes, or an incomplete row.

    >>> weights = torch.tensor([1.0, 2.0])
    >>> apply_pushes(UpdateRule("add"), weights, None, [(-0.5, torch.tensor([2.0, 0.0]))])
    >>> weights
    tensor([0., 2.])
    """
    _check(update, weights, optimizer_state, pushes)
    if not (pushes or update.unit_norm):
        return
    if not has_cpu_kernel(weights):
        _apply_with_torch(update, weights, optimizer_state, pushes)
        return
    from cotswold.kernels import updates

    updates.run(_shard(update, weights.numel(), weights.dtype), weights, optimizer_state, pushes)


@lru_cache(maxsize=256)
def _shard(update: UpdateRule, size: int, dtype: torch.dtype) -> ShardKind:
    from cotswold.kernels import updates

    columns = update.columns if update.unit_norm else 1
    return updates.ShardKind(update.kind, size, name_of(dtype), update.constant, columns, update.unit_norm)


@fallback_to_torch
def apply_queues(queues: Sequence[Queue]) -> None:
    """`apply_pushes` to many shards in one call, so that small shards cost little more than their bytes.

    All shards have one dtype, one kind of update and one constant. Raises ValueError for vectors of other
    lengths or dtypes.
    """
    if not queues:
        return
    for queue in queues:
        _check_queue(queue, queues[0])
    if not has_cpu_kernel(torch.from_numpy(queues[0].weights)):
        for update, weights, optimizer_state, factors, pushes in queues:
            state = None if optimizer_state is None else torch.from_numpy(optimizer_state)
            numbers = [torch.from_numpy(values) for values in pushes]
            _apply_with_torch(
                update, torch.from_numpy(weights), state, list(zip(factors, numbers, strict=True))
            )
        return
    from cotswold.kernels import updates

    every, dtype = updates.Queues(), getattr(torch, queues[0].weights.dtype.name)
    like, shard = queues[0].update, _shard(queues[0].update, queues[0].weights.size, dtype)
    for update, weights, optimizer_state, factors, pushes in queues:
        if update is not like or weights.size != shard.size:  # looking up a shard takes long
            like, shard = update, _shard(update, weights.size, dtype)
        if weights.size:
            own, *others = _addresses(
                [weights, *([] if optimizer_state is None else [optimizer_state]), *pushes]
            )
            state_address = 0 if optimizer_state is None else others.pop(0)
            every.add(shard, own, state_address, others, factors)
    every.run(shard)


def _addresses(vectors: Sequence[Array]) -> list[int]:
    """Addresses of the vectors; raises ValueError if one is not contiguous."""
    try:
        return [addressof(_first_byte(values)) for values in vectors]  # several times as fast as ``ctypes``
    except TypeError:  # some are read-only or not contiguous
        if not all(values.flags.c_contiguous for values in vectors):
            raise ValueError("a vector is not contiguous; pass contiguous vectors") from None
        return [values.ctypes.data for values in vectors]


@fallback_to_torch
def apply_factors(
    update: UpdateRule, weights: Tensor, optimizer_state: Tensor | None, pushes: Sequence[FactorPush]
) -> None:
    """`apply_pushes` of products of factors, without forming any product in memory.

    The gradient of a push is errorsᵀ · activations. ``update.columns`` is the number of columns of the
    weights. The update is in place, with the bits of one push after the other, for any number of threads;
    torch rounds products differently. Raises ValueError for factors of other shapes.
    """
    rows, rest = divmod(weights.numel(), max(1, update.columns))
    if rest:
        raise ValueError(f"{weights.numel()} weights do not divide into rows of {update.columns}")
    for _, errors, activations in pushes:
        examples = errors.shape[0]
        fit = examples > 0 and errors.shape[1:] == (rows,) and activations.shape == (examples, update.columns)
        if not fit or errors.dtype != weights.dtype or activations.dtype != weights.dtype:
            raise ValueError(
                f"errors {tuple(errors.shape)} and activations {tuple(activations.shape)} ({errors.dtype}, "
                f"{activations.dtype}) do not fit {rows} rows of {update.columns} weights"
            )
    _check(update, weights, optimizer_state, [])
    if not has_cpu_kernel(weights):
        products = [(factor, (errors.t() @ seen).view(-1)) for factor, errors, seen in pushes]
        apply_pushes(update, weights, optimizer_state, products)
        return
    from cotswold.kernels import updates

    updates.run_products(_block(update, rows, weights.dtype), weights, optimizer_state, pushes)


@lru_cache(maxsize=256)
def _block(update: UpdateRule, rows: int, dtype: torch.dtype) -> BlockKind:
    from cotswold.kernels import updates

    dtype_name, unit_norm = name_of(dtype), update.unit_norm
    return updates.BlockKind(update.kind, rows, update.columns, dtype_name, update.constant, unit_norm)


def _check(
    update: UpdateRule, weights: Tensor, optimizer_state: Tensor | None, pushes: Sequence[Push]
) -> None:
    _check_update(update, weights.numel(), has_state=optimizer_state is not None)
    for values in [
        *(values for _, values in pushes),
        *([] if optimizer_state is None else [optimizer_state]),
    ]:
        if values.shape != weights.shape or values.dtype != weights.dtype:
            raise ValueError(
                f"a push or optimizer state must be {tuple(weights.shape)} of {weights.dtype}, "
                f"got {tuple(values.shape)} of {values.dtype}"
            )


def _check_update(update: UpdateRule, size: int, *, has_state: bool) -> None:
    if has_state == (update.kind == "add"):
        raise ValueError(f"{update.kind} with{'' if has_state else 'out'} optimizer state")
    if update.unit_norm and (update.columns < 1 or size % update.columns):
        raise ValueError(f"{size} weights do not divide into rows of {update.columns}")


def _check_queue(queue: Queue, first: Queue) -> None:
    update, weights, optimizer_state, factors, pushes = queue
    if (update.kind, update.constant) != (first.update.kind, first.update.constant):
        raise ValueError(f"all queues need one rule, got {update} and {first.update}")
    if len(factors) != len(pushes):
        raise ValueError(f"{len(pushes)} pushes need one factor each, got {len(factors)}")
    size, dtype = weights.size, first.weights.dtype
    _check_update(update, size, has_state=optimizer_state is not None)
    for values in (weights, weights if optimizer_state is None else optimizer_state, *pushes):
        if values.size != size or values.dtype != dtype:
            raise ValueError(
                f"a vector has {values.size} elements of {values.dtype}, but the shard {size} of {dtype}"
            )


def _apply_with_torch(
    update: UpdateRule, weights: Tensor, optimizer_state: Tensor | None, pushes: Sequence[Push]
) -> None:
    for first in range(0, weights.numel(), BLOCK):
        block = slice(first, first + BLOCK)
        state = weights[:0] if optimizer_state is None else optimizer_state[block]
        for factor, values in pushes:
            _apply_rule(update, weights[block], state, factor, values[block])
    if update.unit_norm:
        _scale_to_one(weights.view(-1, update.columns))


def _apply_rule(
    update: UpdateRule, weights: Tensor, optimizer_state: Tensor, factor: float, push: Tensor
) -> None:
    if update.kind == "add":
        weights.add_(push, alpha=factor)
    elif update.kind == "momentum":
        weights.add_(optimizer_state.mul_(update.constant).add_(push, alpha=-factor))
    else:
        optimizer_state.addcmul_(push, push)
        weights.sub_((push * factor).div_(_root(optimizer_state).add_(update.constant)))


def _root(values: Tensor) -> Tensor:
    """Square root; on CPUs by NumPy, because torch's is not always correctly rounded."""
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
