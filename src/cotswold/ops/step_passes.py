"""Passes over maps between the products of a step: scales, residual, sums, the penalty without pooling.

Knows: which passes have a kernel, the same passes by torch. Does not know: products, filters, the objective.
Maps are ``(image, channel, y, x)``; scales are ``(channel, y, x)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cotswold.geometry import MapShape
from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import accumulation_dtype, map_strides
from cotswold.ops.memory_format import empty_map
from cotswold.ops.pooling import workers

if TYPE_CHECKING:
    from cotswold.kernels.maps.elementwise import Pass


def _has_pass(*maps: Tensor) -> bool:
    return all(has_cpu_kernel(each) and map_strides(each) is not None for each in maps)


def _run(kind: Pass, maps: list[Tensor], scales: list[Tensor], numbers: list[float]) -> Tensor:
    from cotswold.kernels.maps import elementwise

    rows = [each.permute(1, 2, 0).contiguous() for each in scales]
    return elementwise.run(kind, maps, rows, numbers, workers(maps[0]))


@fallback_to_torch
def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return ``<a, b>`` of two maps in float64; the order of the sum does not depend on threads."""
    if _has_pass(a, b):
        from cotswold.kernels.maps.elementwise import DOT

        return _run(DOT, [a, b], [], [])[0]
    wide = accumulation_dtype(a.dtype)
    rows = (x.permute(2, 3, 1, 0).flatten(1).to(wide) for x in (a, b))
    product: Tensor = torch.linalg.vecdot(*rows).sum(dtype=torch.float64)
    return product


@fallback_to_torch
def total(a: Tensor) -> Tensor:
    """Return the sum of a map in float64, as `dot` adds."""
    if _has_pass(a):
        from cotswold.kernels.maps.elementwise import TOTAL

        return _run(TOTAL, [a], [], [])[0]
    rows = a.permute(2, 3, 1, 0).flatten(1).sum(1, dtype=accumulation_dtype(a.dtype))
    return rows.sum(dtype=torch.float64)


@fallback_to_torch
def subtract(decoded: Tensor, batch: Tensor, gain: Tensor, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``<d, x>``, ``<d, d>`` and ``<r, r>`` of ``r = d - gain x``; overwrite d with ``factor r``."""
    if _has_pass(decoded, batch):
        from cotswold.kernels.maps.elementwise import SUBTRACT

        overlap, energy, error = _run(SUBTRACT, [decoded, batch], [], [float(gain), factor])
        return overlap, energy, error
    overlap, energy = dot(decoded, batch), dot(decoded, decoded)
    decoded.addcmul_(batch, gain.to(decoded.dtype), value=-1)
    error = dot(decoded, decoded)
    decoded.mul_(factor)
    return overlap, energy, error


@fallback_to_torch
def scale(y: Tensor, scales: Tensor, units: Tensor) -> Tensor:
    """Overwrite y with ``z = scales y``, and return ``units z``."""
    scales, units = scales.to(y.dtype), units.to(y.dtype)
    if _has_pass(y):
        from cotswold.kernels.maps.elementwise import SCALE

        out = empty_map(y, y.shape[0], MapShape(*y.shape[1:]))
        _run(SCALE, [y, out], [scales, units], [])
        return out
    return y.mul_(scales) * units


@fallback_to_torch
def add_scaled(to_z: Tensor, product: Tensor, units: Tensor, factor: Tensor | None = None) -> None:
    """Overwrite ``to_z`` with ``factor (to_z + units product)``; the product may change, too [factor 1]."""
    units = units.to(to_z.dtype)
    if _has_pass(to_z, product):
        from cotswold.kernels.maps.elementwise import GRADIENT

        _run(GRADIENT, [to_z, product], [units], [1.0 if factor is None else float(factor)])
        return
    to_z.add_(product.mul_(units))
    if factor is not None:
        to_z.mul_(factor.to(to_z.dtype))


@fallback_to_torch
def penalty(z: Tensor, epsilon: float, weight: float) -> tuple[Tensor, Tensor]:
    """Return the sum of ``p = sqrt(z² + epsilon)``, and ``weight z / p``."""
    if _has_pass(z):
        from cotswold.kernels.maps.elementwise import PENALTY

        out = empty_map(z, z.shape[0], MapShape(*z.shape[1:]))
        (found,) = _run(PENALTY, [z, out], [], [epsilon, weight])
        return found, out
    wide = z.to(accumulation_dtype(z.dtype))
    pooled = (wide * wide).add_(epsilon).sqrt_()
    return total(pooled), (weight / pooled).mul_(wide).to(z.dtype)
