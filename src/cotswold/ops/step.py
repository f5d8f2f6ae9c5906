"""One training step of a stack without autograd: objective, gradient, momentum, step and normalisation.

Knows: objective (1) of Coates et al. 2013 and its gradient; that only a few blocks of the gradient exist at a
time. Does not know: the update rule of filters (`sgd_rule`), modules, several processes (`mesh.stacks.step`).
``passes`` reach filters that are not in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import BlockLocal, MapShape, StackGeometry
from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import accumulation_dtype, map_strides
from cotswold.ops import sgd_rule as rules
from cotswold.ops.bands import can_move_by_bands, move_by_bands
from cotswold.ops.batched import block_filters, outer_run
from cotswold.ops.contrast import FLOOR, contrast_norm_backward
from cotswold.ops.filters import filter_norms
from cotswold.ops.local import check_map, check_same_dtype_and_device
from cotswold.ops.memory_format import images_last_no_grad, neurons_to_map
from cotswold.ops.pooling import check_epsilon, pooled_values, pooling_gradient
from cotswold.ops.products import adjoint, product
from cotswold.ops.runs import BlockRun, row_runs
from cotswold.ops.state import Factors, StackObjective, StackReport, StackState, StepRule
from cotswold.ops.step_passes import add_scaled, dot, penalty, scale, subtract, total

GRADIENT_ELEMENTS = 1 << 19
"""Elements of the gradient held at a time (at least one block): 2 MiB of float32, to stay in cache."""


def inverse_norms(state: StackState, layer: BlockLocal) -> Tensor:
    """Scales that turn responses into those of unit filters, ``(depth, y, x)``; 0 for a filter of zeros."""
    return neurons_to_map(rules.reciprocal(state.norms), layer)


def respond(state: StackState, batch: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``αWx``, where x is the batch times the gain."""
    scale = (inverse_norms(state, layer) * (state.alpha * state.gain)).to(batch.dtype)
    return product(batch, state.filters, layer).mul_(scale)


def decode(z: Tensor, state: StackState, layer: BlockLocal) -> Tensor:
    """Return ``W'z``."""
    return adjoint(z * inverse_norms(state, layer).to(z.dtype), state.filters, layer)


class FilterAccess(Protocol):
    """Passes of a step over a stack's filters, implemented by the owner of the filters."""

    def measure(self) -> None:
        """Recompute the norms of the filters."""
        ...

    def decode(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``αWx`` and its reconstruction ``W'αWx``; x is the batch times the gain."""
        ...

    def move(self, decoding: Factors, encoding: Factors, rule: StepRule, encode: bool) -> Tensor | None:
        """Add W times the residual to the responses' gradient, then update filters, momentum and norms.

        ``decoding`` is ``(αWx, residual)``, ``encoding`` is ``(gradient of αWx so far, batch)``; the gradient
        is overwritten. If ``encode``, return W' times the whole gradient, computed before the update.
        """
        ...


@dataclass
class InMemoryFilterAccess:
    """Passes over filters in memory, whole or some rows of blocks."""

    state: StackState
    layer: BlockLocal
    _unit: Tensor | None = field(default=None, init=False)
    """`inverse_norms`, until the norms change."""

    @property
    def unit(self) -> Tensor:
        """Scales that turn responses into those of unit filters; see `inverse_norms`."""
        if self._unit is None:
            self._unit = inverse_norms(self.state, self.layer)
        return self._unit

    def measure(self) -> None:
        """Recompute the norms of the filters."""
        self._unit = None
        self.state.norms.copy_(filter_norms(self.state.filters))

    def decode(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``αWx`` and ``W'αWx``."""
        state, unit = self.state, self.unit
        z = product(batch, state.filters, self.layer)
        return z, adjoint(scale(z, unit * (state.alpha * state.gain), unit), state.filters, self.layer)

    def add_residual(self, to_z: Tensor, residual: Tensor, factor: Tensor | None = None) -> None:
        """Add W times the residual to the responses' gradient, then multiply it by a factor [1]."""
        seen = product(residual, self.state.filters, self.layer)
        add_scaled(to_z, seen, self.unit, factor)

    def step(self, decoding: Factors, encoding: Factors, rule: StepRule) -> None:
        """Update filters, momentum and norms by a complete gradient, times α and the gain."""
        self._unit = None
        _move_filters(self.state, self.layer, decoding, encoding, rule)

    def move(self, decoding: Factors, encoding: Factors, rule: StepRule, encode: bool) -> Tensor | None:
        """See `FilterAccess.move`."""
        (_, residual), (to_z, _), whole = decoding, encoding, self.state.alpha * self.state.gain
        self.add_residual(to_z, residual, None if encode else whole)
        encoded = None
        if encode:
            encoded = decode(to_z, self.state, self.layer)
            to_z.mul_(whole.to(to_z.dtype))
        self.step(decoding, encoding, rule)
        return encoded


def _chunks(layer: BlockLocal, y: int) -> Iterator[BlockRun]:
    """Yield the runs of a block row, cut so that the gradient of one stays in cache."""
    most = max(1, GRADIENT_ELEMENTS // (layer.fan_in * layer.neurons))
    for run in row_runs(layer, y):
        for first in range(0, run.blocks, most):
            yield replace(run, x=run.x + first, blocks=min(most, run.blocks - first))


@dataclass(frozen=True)
class _Shapes:
    """Required shapes of a stack's tensors."""

    input: MapShape
    filters: tuple[int, ...]
    norms: tuple[int, ...]


@lru_cache(maxsize=256)
def _shapes(geometry: StackGeometry) -> _Shapes:
    return _Shapes(geometry.input, geometry.filters.filters_shape, geometry.filters.norms_shape)


def _checked(state: StackState, batch: Tensor, geometry: StackGeometry) -> Tensor:
    """Return the batch with images last; raise if a tensor does not fit the stack."""
    shapes = _shapes(geometry)
    check_map("a stack", batch, shapes.input)
    _check_held("filters", state.filters, shapes.filters)
    if batch.shape[0] == 0:
        raise UserError("the batch of a stack must have at least one image, got 0; skip empty batches")
    check_same_dtype_and_device("a stack", batch, state.filters)
    _check_held("norms", state.norms, shapes.norms)
    return images_last_no_grad(batch)


def _check_held(name: str, held: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(held.shape) != shape:
        raise GeometryError(f"a stack needs {name} of shape {shape}, got {tuple(held.shape)}")


def _check_masters(state: StackState) -> None:
    """Raise UserError if filters are too narrow to add small steps and have no float32 copy."""
    wide = accumulation_dtype(state.filters.dtype)
    if state.filters.dtype == wide:
        return
    if state.master_filters is None or state.master_filters.dtype != wide:
        raise UserError(
            f"filters of {state.filters.dtype} are too narrow: training steps are smaller than their "
            "precision; use StackState(master_filters=filters.float()) with float32 momentum, or wider "
            "filters"
        )
    _check_held("master_filters", state.master_filters, tuple(state.filters.shape))


@torch.no_grad()
def calibrate(
    state: StackState,
    batch: Tensor,
    geometry: StackGeometry,
    objective: StackObjective,
    passes: FilterAccess | None = None,
) -> None:
    """Set gain, norms and α in place from a batch: inputs of RMS 1, the α that minimises the objective.

    Args:
        state: State of the stack, changed in place.
        batch: Maps ``(image, channel, y, x)``.
        geometry: Shapes of the stack.
        objective: λ and ε.
        passes: Passes over filters that are not in memory [in memory].

    Raises:
        GeometryError: Shapes do not fit the stack.
        UserError: An empty batch, or dtypes or devices that differ.
    """
    batch = _checked(state, batch, geometry)
    passes = passes or InMemoryFilterAccess(state, geometry.filters)
    power = dot(batch, batch) / batch.numel()
    state.gain.copy_(torch.where(power > 0, power.rsqrt(), 1.0))
    passes.measure()
    state.alpha.fill_(1.0)
    z, decoded = passes.decode(batch)
    overlap, energy = state.gain * dot(decoded, batch), dot(decoded, decoded)
    penalised = objective.sparsity * total(pooled_values(z, geometry.pool, objective.epsilon))
    state.alpha.copy_(rules.floored_scale(overlap, energy, penalised).clamp(*rules.ALPHA_RANGE))


@torch.no_grad()
def stack_step(
    state: StackState,
    batch: Tensor,
    geometry: StackGeometry,
    objective: StackObjective,
    rule: StepRule,
    *,
    upstream: Tensor | None = None,
    input_gradient: bool = False,
    passes: FilterAccess | None = None,
) -> StackReport:
    """Run one training step on a batch: change ``state`` in place and return the losses.

    The objective is a mean over the images. Memory in addition to the state: the maps of the stack and the
    gradient of a few blocks.

    Args:
        state: State of the stack, changed in place. With ``passes`` only the shape of its filters is used.
        batch: Maps ``(image, channel, y, x)``.
        geometry: Shapes of the stack.
        objective: λ and ε.
        rule: Constants of the update.
        upstream: Gradient of further losses with respect to the stack's output, of its shape.
        input_gradient: Return the gradient with respect to the batch.
        passes: Passes over filters that are not in memory [in memory].

    Returns:
        The losses and, if requested, the input gradient, as they were before the step; and α after the step.

    Raises:
        GeometryError: Shapes do not fit the stack.
        UserError: An empty batch, operands of different dtypes or devices, or bfloat16 or float16 filters
            without ``state.master_filters``.

    Source:
        Coates et al. 2013, section 3.
    """
    batch = _checked(state, batch, geometry)
    _check_held("momentum", state.momentum, _shapes(geometry).filters)
    images, dtype = batch.shape[0], batch.dtype
    alpha, gain = state.alpha, state.gain
    passes = passes or InMemoryFilterAccess(state, geometry.filters)

    z, decoded = passes.decode(batch)
    sums = subtract(decoded, batch, gain, 2 / images)  # decoded becomes its own gradient
    weight = objective.sparsity / images
    summed, to_z = _pooled_gradient(z, geometry, objective.epsilon, weight, upstream)
    sums = torch.cat([sums, summed.view(1)])
    encoded = passes.move((z, decoded), (to_z, batch), rule, input_gradient)

    to_batch = None
    if encoded is not None:
        to_batch = encoded.mul_(alpha.to(dtype)).sub_(decoded).mul_(gain.to(dtype))
    return report(state, sums, images, objective, rule, to_batch)


def report(
    state: StackState,
    sums: Tensor,
    images: int,
    objective: StackObjective,
    rule: StepRule,
    to_batch: Tensor | None,
) -> StackReport:
    """Take the step of α, and return the losses before the step.

    ``sums`` are those of `step_passes.subtract`, followed by the sum of the pooled map.
    """
    overlap, energy, error, pooled = sums.unbind()
    penalised = objective.sparsity * pooled
    rules.alpha_step(state.alpha, state.gain * overlap, energy, penalised, rule)
    error, penalised = error / images, penalised / images
    return StackReport(error + penalised, error, penalised, state.alpha.clone(), to_batch)


def _pooled_gradient(
    z: Tensor, geometry: StackGeometry, epsilon: float, weight: float, upstream: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the sum of the pooled map, and the gradient by z of its weighted sum and of further losses."""
    if upstream is None and geometry.pool.size == 1:
        check_epsilon(epsilon, z.dtype)
        return penalty(z, epsilon, weight)
    pooled = pooled_values(z, geometry.pool, epsilon)
    above = None if upstream is None else _loss_gradient(pooled, geometry, upstream)
    return total(pooled), pooling_gradient(z, pooled, geometry.pool, above, weight)


def _loss_gradient(pooled: Tensor, geometry: StackGeometry, upstream: Tensor) -> Tensor:
    """Gradient of further losses by the pooled map."""
    check_map("the upstream gradient", upstream, geometry.output)
    if upstream.shape[0] != pooled.shape[0]:
        raise GeometryError(
            f"the upstream gradient has {upstream.shape[0]} images, but the batch has {pooled.shape[0]}"
        )
    check_same_dtype_and_device("a stack", upstream, pooled)
    above = images_last_no_grad(upstream)
    return above if geometry.norm.size == 1 else contrast_norm_backward(above, pooled, geometry.norm, FLOOR)


@fallback_to_torch
def _move_filters(
    state: StackState, layer: BlockLocal, decoding: Factors, encoding: Factors, rule: StepRule
) -> None:
    """Compute gradient and step, some neurons at a time: ``δx'`` of decoding plus ``δx'`` of encoding."""
    _check_masters(state)
    if has_cpu_kernel(state.filters) and _same_layout(state):
        from cotswold.kernels import products as kernels

        (z, residual), (to_z, batch) = decoding, encoding
        if map_strides(batch) != map_strides(residual):
            batch, whole = batch.new_empty_strided(batch.shape, residual.stride()), batch
            batch.copy_(whole)
        rate = rule.rate / (float(state.alpha) * layer.fan_in)
        constants = torch.tensor([rule.momentum, rate, rule.longest], dtype=torch.float64, device="cpu")
        kernels.step(
            (z, residual),
            (to_z, batch),
            layer,
            (state.filters, state.momentum, state.norms),
            constants,
        )
    elif can_move_by_bands(state):
        move_by_bands(state, layer, decoding, encoding, rule)
    else:
        _move_plainly(state, layer, decoding, encoding, rule)


def _same_layout(state: StackState) -> bool:
    """True if filters, momentum and norms have the kernels' layout and one dtype."""
    tensors = (state.filters, state.momentum, state.norms)
    return state.master_filters is None and all(
        one.is_contiguous() and one.dtype == state.filters.dtype for one in tensors
    )


def _move_plainly(
    state: StackState, layer: BlockLocal, decoding: Factors, encoding: Factors, rule: StepRule
) -> None:
    """The same by torch, some blocks at a time."""
    wide = accumulation_dtype(state.filters.dtype)
    moved = state.filters if state.master_filters is None else state.master_filters
    for y in range(layer.grid[0]):
        for run in _chunks(layer, y):
            blocks = slice(run.x, run.x + run.blocks)
            gradient = state.filters.new_zeros((run.blocks, *layer.filters_shape[2:]), dtype=wide)
            inside = block_filters(gradient[None], replace(run, y=0, x=0), layer)
            outer_run(inside, *decoding, run, layer, beta=0)
            outer_run(inside, *encoding, run, layer, beta=1)
            rules.filter_step(
                moved[y, blocks],
                state.norms[y, blocks],
                state.momentum[y, blocks],
                gradient,
                state.alpha,
                rule,
            )
            if moved is not state.filters:
                state.filters[y, blocks] = moved[y, blocks]
