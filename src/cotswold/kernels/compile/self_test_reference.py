"""Small operations with known results, for the self-test that every kernel runs before its first use.

Knows: plain NumPy definitions of products, steps, pooling, normalisation; operands for which sums are exact.
Does not know: kernels.

Maps are ``(y, x, channel, image)`` and filters ``(block_y, block_x, field_y, field_x * channel, neuron)``, as
they are in memory; a block has one position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.geometry import BlockLocal, Window

Array = NDArray[np.float64]
ROUNDING = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.0, "float16": 0.0}
"""Error allowed in a result that is not an integer, relative to the largest value."""
CURVES: dict[str, Callable[[Array], Array]] = {
    "identity": lambda y: y,
    "tanh": np.tanh,
    "sigmoid": lambda y: 1 / (1 + np.exp(-y)),
    "relu": lambda y: np.maximum(y, 0),
}


def sample_values(*shape: int, seed: int = 0) -> Array:
    """Pseudo-random -1, 0 and 1: sums of a few hundred of their products are exact in every dtype."""
    count = int(np.prod(shape))
    places = np.arange(1 + seed, 1 + seed + count, dtype=np.uint64)
    mixed = (places * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    found: Array = (mixed % np.uint64(3)).astype(np.float64).reshape(shape) - 1
    return found


def weights(size: int, seed: int) -> Array:
    """Weights of a weighted mean over a window, all different."""
    found = np.arange(1.0, 1 + size) + seed
    shares: Array = found / found.sum()
    return shares


def as_tensor(values: Array, dtype: str) -> Tensor:
    """Return an array as a tensor of a dtype, in memory of torch that starts at a cache line."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, dtype), copy=True)


def as_map(values: Array, dtype: str) -> Tensor:
    """Return an array as a map ``(image, channel, y, x)``, images last."""
    return as_tensor(values, dtype).permute(3, 2, 0, 1)


def is_close(found: Tensor, expected: Array, error: float = 0.0) -> bool:
    """True if every element is as expected, up to an error relative to the largest."""
    values = found.to(torch.float64).numpy()
    most = error * float(np.abs(expected).max(initial=0.0))
    return values.shape == expected.shape and bool((np.abs(values - expected) <= most).all())


def map_agrees(found: Tensor, expected: Array, error: float = 0.0) -> bool:
    """`is_close` for a map ``(image, channel, y, x)``."""
    return is_close(found.permute(2, 3, 1, 0), expected, error)


@dataclass(frozen=True, eq=False)
class Products:
    """Products of a layer without padding and with blocks of one position."""

    layer: BlockLocal

    def _fields(self) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
        down, across = self.layer.grid
        for y in range(down):
            for x in range(across):
                top, left = y * self.layer.y.stride, x * self.layer.x.stride
                yield y, x, (slice(top, top + self.layer.y.size), slice(left, left + self.layer.x.size))

    def _matrix(self, x: Array, field: tuple[slice, slice]) -> Array:
        """Inputs of a field, ``(field_y * field_x * channel, image)``."""
        return x[field].reshape(-1, x.shape[3])

    def product(self, x: Array, filters: Array) -> Array:
        """Return ``Wx``."""
        out = np.empty((*self.layer.grid, self.layer.neurons, x.shape[3]))
        for by, bx, field in self._fields():
            out[by, bx] = filters[by, bx].reshape(-1, self.layer.neurons).T @ self._matrix(x, field)
        return out

    def adjoint(self, y: Array, filters: Array) -> Array:
        """Return ``W'y``."""
        shape = self.layer.input
        out = np.zeros((shape.height, shape.width, shape.channels, y.shape[3]))
        for by, bx, field in self._fields():
            out[field] += (filters[by, bx] @ y[by, bx]).reshape(out[field].shape)
        return out

    def outer(self, delta: Array, x: Array) -> Array:
        """Return ``δx'``."""
        out = np.empty(self.layer.filters_shape)
        for by, bx, field in self._fields():
            out[by, bx] = (self._matrix(x, field) @ delta[by, bx].T).reshape(out[by, bx].shape)
        return out


def filter_step(
    filters: Array, momentum: Array, gradient: Array, constants: tuple[float, float, float]
) -> tuple[Array, Array, Array]:
    """Return filters, momentum and norms after a step, by the rule of `ops.sgd_rule.filter_step`."""
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


def smooth(x: Array, along_y: Array, along_x: Array) -> Array:
    """Return weighted sums over every whole window of ``(y, x, ...)``, with weights along each axis."""
    total = np.zeros((x.shape[0] - len(along_y) + 1, x.shape[1] - len(along_x) + 1, *x.shape[2:]))
    for i, first in enumerate(along_y):
        for j, second in enumerate(along_x):
            total += first * second * x[i : i + total.shape[0], j : j + total.shape[1]]
    return total


def smooth_adjoint(y: Array, along_y: Array, along_x: Array) -> Array:
    """Adjoint of ``smooth``."""
    reach = [(len(one) - 1, len(one) - 1) for one in (along_y, along_x)]
    return smooth(np.pad(y, [*reach, (0, 0), (0, 0)]), along_y[::-1], along_x[::-1])


@dataclass(frozen=True, eq=False)
class Normalised:
    """Contrast normalisation of maps ``h``, as `ops.contrast` defines it, with no window beyond the map."""

    h: Array
    first: tuple[Array, Array]
    """Weights along y and x of the subtracted mean."""
    second: tuple[Array, Array]
    """Weights along y and x of the mean of squares."""
    floor: float

    @property
    def _margin(self) -> tuple[int, int]:
        """Positions that a window removes before and after."""
        window = Window.same_padding(len(self.first[0]))
        return window.pad_before, window.pad_after

    def _crop(self, x: Array) -> Array:
        low, high = self._margin
        return x[low : x.shape[0] - high, low : x.shape[1] - high]

    def _uncrop(self, x: Array) -> Array:
        return np.pad(x, [self._margin, self._margin, (0, 0), (0, 0)])

    @property
    def mean(self) -> Array:
        """Subtracted mean, of one channel."""
        return smooth(self.h.mean(2, keepdims=True), *self.first)

    @property
    def _centred(self) -> Array:
        return self._crop(self.h) - self.mean

    @property
    def power(self) -> Array:
        """Mean of squares, of one channel."""
        return smooth((self._centred**2).mean(2, keepdims=True), *self.second)

    @property
    def _divisor(self) -> Array:
        return np.maximum(np.sqrt(self.power), self.floor)

    def output(self) -> Array:
        """Return the normalised maps."""
        return self._crop(self._centred) / self._divisor

    def gradient(self, grad: Array) -> Array:
        """Return the gradient with respect to ``h``, given that of the output."""
        channels, over = self.h.shape[2], grad / self._divisor
        slope = (over * self._crop(self._centred)).sum(2, keepdims=True) / self._divisor**2
        slope = np.where(self.power > self.floor**2, slope, 0)
        inner = self._uncrop(over) - self._centred * smooth_adjoint(slope, *self.second) / channels
        back: Array = (
            self._uncrop(inner) - smooth_adjoint(inner.sum(2, keepdims=True), *self.first) / channels
        )
        return back
