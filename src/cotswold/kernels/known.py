"""Small operations whose results are known: what NumPy gives, by sums written plainly.

Knows: the definitions of products, steps, pooling, normalisation; operands for which sums are exact. Does not
know: kernels. Every kernel does one of these before it does anything else in a process.

Maps are ``(y, x, channel, image)`` and filters ``(block_y, block_x, field_y, field_x * channel, neuron)``,
as they lie in memory; one position a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.geometry import BlockLocal

Array = NDArray[np.float64]
CURVES: dict[str, Callable[[Array], Array]] = {
    "identity": lambda y: y,
    "tanh": np.tanh,
    "sigmoid": lambda y: 1 / (1 + np.exp(-y)),
    "relu": lambda y: np.maximum(y, 0),
}


def numbers(*shape: int, seed: int = 0) -> Array:
    """-1, 0 and 1 without an obvious order: sums of some hundreds of their products are exact everywhere."""
    count = int(np.prod(shape))
    places = np.arange(1 + seed, 1 + seed + count, dtype=np.uint64)
    mixed = (places * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (mixed % np.uint64(3)).astype(np.float64).reshape(shape) - 1


def in_memory(values: Array, dtype: str) -> Tensor:
    """An array as a tensor of a type, on the CPU."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, dtype))


def as_map(values: Array, dtype: str) -> Tensor:
    """A map ``(image, channel, y, x)``, images last."""
    return in_memory(values, dtype).permute(3, 2, 0, 1)


def agrees(found: Tensor, expected: Array, error: float = 0.0) -> bool:
    """Whether every number of a result is what it should be, but for an error relative to the largest."""
    values = found.to(torch.float64).numpy()
    most = error * float(np.abs(expected).max(initial=0.0))
    return values.shape == expected.shape and bool((np.abs(values - expected) <= most).all())


def map_agrees(found: Tensor, expected: Array, error: float = 0.0) -> bool:
    """The same of a map ``(image, channel, y, x)``."""
    return agrees(found.permute(2, 3, 1, 0), expected, error)


@dataclass(frozen=True, eq=False)
class Products:
    """The products of a layer without padding, of one position a block."""

    layer: BlockLocal

    def _fields(self) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
        down, across = self.layer.grid
        for y in range(down):
            for x in range(across):
                first = y * self.layer.y.step, x * self.layer.x.step
                yield (
                    y,
                    x,
                    (
                        slice(first[0], first[0] + self.layer.y.size),
                        slice(first[1], first[1] + self.layer.x.size),
                    ),
                )

    def _matrix(self, x: Array, field: tuple[slice, slice]) -> Array:
        """The inputs of a field ``(field_y * field_x * channel, image)``."""
        return x[field].reshape(-1, x.shape[3])

    def product(self, x: Array, filters: Array) -> Array:
        """``Wx``."""
        out = np.empty((*self.layer.grid, self.layer.neurons, x.shape[3]))
        for by, bx, field in self._fields():
            out[by, bx] = filters[by, bx].reshape(-1, self.layer.neurons).T @ self._matrix(x, field)
        return out

    def adjoint(self, y: Array, filters: Array) -> Array:
        """``W'y``."""
        shape = self.layer.input
        out = np.zeros((shape.height, shape.width, shape.channels, y.shape[3]))
        for by, bx, field in self._fields():
            out[field] += (filters[by, bx] @ y[by, bx]).reshape(out[field].shape)
        return out

    def outer(self, delta: Array, x: Array) -> Array:
        """``δx'``."""
        out = np.empty(self.layer.filters_shape)
        for by, bx, field in self._fields():
            out[by, bx] = (self._matrix(x, field) @ delta[by, bx].T).reshape(out[by, bx].shape)
        return out


def moved(
    filters: Array, momentum: Array, gradient: Array, constants: tuple[float, float, float]
) -> tuple[Array, Array, Array]:
    """Filters, momentum and norms after a step: the rule of `ops.rule.move`."""
    kept, rate, longest = constants

    def norm(values: Array) -> Array:
        found: Array = np.sqrt((values**2).sum((2, 3), keepdims=True))
        return found

    norms = norm(filters)
    tangent = gradient - filters * (filters * gradient).sum((2, 3), keepdims=True) / norms**2
    momentum = kept * momentum - rate / norms * tangent
    momentum = momentum * np.minimum(longest * norms / norm(momentum), 1)
    filters = filters + momentum
    filters = filters / norm(filters)
    return filters, momentum, norm(filters)[:, :, 0, 0]


def windows(x: Array, size: int) -> Array:
    """The sum over every whole window ``(y, x, ...)`` of a size."""
    height, width = x.shape[0] - size + 1, x.shape[1] - size + 1
    total = np.zeros((height, width, *x.shape[2:]))
    for i in range(size):
        for j in range(size):
            total += x[i : i + height, j : j + width]
    return total


def spread(y: Array, size: int) -> Array:
    """The adjoint of ``windows``."""
    reach = size - 1
    return windows(np.pad(y, [(reach, reach)] * 2 + [(0, 0)] * 2), size)
