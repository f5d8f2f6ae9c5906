"""One training step of a stack whose maps and filters are distributed over ranks.

Knows: objective (1) of Coates et al. 2013, how products and messages overlap. Does not know: modules, files.
It computes what `ops.step` computes in one process. Sums over ranks are added in another order, so the
bits differ, except on a grid of one rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.geometry import Smoothing
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.stacks.share import RankShare, Responses
from cotswold.ops import StackObjective, StackReport, StackState, StepRule
from cotswold.ops import sgd_rule as rules
from cotswold.ops.contrast import FLOOR, contrast_norm_backward
from cotswold.ops.filters import filter_norms
from cotswold.ops.pooling import pooling_gradient
from cotswold.ops.step import InMemoryFilterAccess
from cotswold.ops.step_passes import add_scaled, dot, subtract, total


def responses(share: RankShare, state: StackState, x: Tensor) -> tuple[Responses, Tensor]:
    """Return ``αWx`` of own neurons, with x scaled by its gain, and the input on this rank's window."""
    z, window = share.product(share.enter(x), share.near, state.filters)
    scale = share.scales(state.norms) * (state.alpha * state.gain)
    z.own.mul_(scale.to(window.dtype))
    return z, window


def decoded(share: RankShare, state: StackState, z: Tensor) -> Tensor:
    """Return ``W'z`` on own pixels of this rank's window."""
    return share.decode(z * share.scales(state.norms).to(z.dtype), state.filters)


@torch.no_grad()
def output(share: RankShare, state: StackState, x: Tensor, epsilon: float) -> Tensor:
    """Return this rank's part of the stack's output."""
    z, _ = responses(share, state, x)
    pooled = share.pool(share.gather(z).finish(), epsilon)
    return share.normalise(share.normalisation.start(pooled).finish())


@torch.no_grad()
def objective_parts(
    share: RankShare, state: StackState, x: Tensor, objective: StackObjective
) -> tuple[Tensor, Tensor]:
    """Return squared error and penalty, means over images, equal on every rank."""
    images = x.shape[0]
    z, window = responses(share, state, x)
    pooling = share.gather(z)
    back = decoded(share, state, z.own)
    _, _, squared = subtract(share.own_of(back), share.own_of(window), state.gain, 1.0)
    pooled = share.pool(pooling.finish(), objective.epsilon)
    error, penalty = share.total([squared, objective.sparsity * total(pooled)])
    return error / images, penalty / images


@torch.no_grad()
def calibrate(share: RankShare, state: StackState, x: Tensor, objective: StackObjective) -> None:
    """Set gain, norms and α in place from a batch.

    The gain scales inputs to RMS 1; α minimises the objective.
    """
    _check(x)
    window = share.enter(x).finish()
    own = share.own_of(window)
    (power,) = share.total([dot(own, own)]) / (x.shape[0] * share.partition.geometry.input.size)
    state.gain.copy_(torch.where(power > 0, power.rsqrt(), 1.0))
    if state.filters.numel():
        state.norms.copy_(filter_norms(state.filters))
    state.alpha.fill_(1.0)
    z, window = responses(share, state, x)
    pooling = share.gather(z)
    back = share.own_of(decoded(share, state, z.own))
    pooled = share.pool(pooling.finish(), objective.epsilon)
    overlap, energy, penalty = share.total(
        [dot(back, share.own_of(window)), dot(back, back), objective.sparsity * total(pooled)]
    )
    state.alpha.copy_(rules.floored_scale(state.gain * overlap, energy, penalty).clamp(*rules.ALPHA_RANGE))


@torch.no_grad()
def step(
    share: RankShare,
    state: StackState,
    x: Tensor,
    objective: StackObjective,
    rule: StepRule,
    *,
    upstream: Tensor | None = None,
    input_gradient: bool = False,
) -> StackReport:
    """Take a step as `ops.step` does, by all ranks together; the report is equal on every rank.

    ``x`` is this rank's part of the map below, or its window of the images; ``upstream`` is the gradient with
    respect to its part of the output; `StackReport.input_gradient` is that with respect to its part of the
    map below.
    """
    _check(x)
    images, gain = x.shape[0], state.gain
    z, batch = responses(share, state, x)
    pooling = share.gather(z)
    window = decoded(share, state, z.own)
    back, seen = share.own_of(window), share.own_of(batch)
    terms = [*subtract(back, seen, gain, 2 / images)]  # back becomes the gradient by the decoded map
    fetched = share.pixels.start(back, into=window)

    around = pooling.finish()
    pooled = share.pool(around, objective.epsilon)
    terms.append(objective.sparsity * total(pooled))
    above = None if upstream is None else _normalisation_backward(share, pooled, upstream)
    slopes = share.scatter(_pool_backward(share, around, pooled, above, objective.sparsity / images))
    unit, whole = share.scales(state.norms).to(window.dtype), state.alpha * gain
    encoded = share.product(fetched, share.own, state.filters)[0].own
    to_z = slopes.finish()
    to_batch = None
    if input_gradient:
        add_scaled(to_z, encoded, unit)
        to_batch = _input_gradient(share, state, to_z * unit, back)
        to_z.mul_(whole.to(to_z.dtype))
    else:
        add_scaled(to_z, encoded, unit, whole)
    if share.layer is not None:
        InMemoryFilterAccess(state, share.layer).step((z.own, window), (to_z, batch), rule)
    overlap, energy, error, penalty = share.total(terms)
    rules.alpha_step(state.alpha, gain * overlap, energy, penalty, rule)
    error, penalty = error / images, penalty / images
    return StackReport(error + penalty, error, penalty, state.alpha.clone(), to_batch)


def _check(x: Tensor) -> None:
    if x.shape[0] == 0:
        raise UserError("a stack cannot learn from an empty batch; skip it")


def _normalisation_backward(share: RankShare, pooled: Tensor, upstream: Tensor) -> Tensor:
    """Gradient of losses above the stack with respect to own pooling units."""
    norm = share.partition.geometry.norm
    if norm.size == 1:
        return upstream
    around = share.normalisation.start(pooled).finish()
    back = torch.zeros_like(around)
    if share.outputs.size:
        above = upstream
        if norm.keep:
            above = torch.zeros_like(around)
            crop(above, share.outputs, share.normalisation.window).copy_(upstream)
        back = contrast_norm_backward(above, around, norm, FLOOR)
    return share.normalisation.adjoint.start(back).finish()


def _pool_backward(
    share: RankShare, around: Tensor, pooled: Tensor, above: Tensor | None, weight: float
) -> Tensor:
    """Gradient with respect to the responses that own pooling units read."""
    if not pooled.numel():
        return torch.zeros_like(around)
    return pooling_gradient(around, pooled, Smoothing(share.partition.geometry.pool.size), above, weight)


def _input_gradient(share: RankShare, state: StackState, scaled: Tensor, residual: Tensor) -> Tensor:
    """Gradient with respect to this rank's part of the map below."""
    window = share.decode(scaled, state.filters)
    gradient = share.own_of(window).mul_(state.alpha.to(window.dtype)).sub_(residual)
    gradient = gradient.mul_(state.gain.to(window.dtype))
    return gradient if share.entry is None else share.descent.start(gradient).finish()
