"""What every output of a product is, number by number: one chain of multiplications and additions.

Knows: IEEE 754 arithmetic in whole numbers, the order of a chain. Does not know: kernels, layouts, vectors.

The order is that of the filters in memory: for ``Wx`` field row, column, channel; for ``W'y`` block, then its
neurons; for ``δx'`` images.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

import torch
from tests.kernels.operations import Dense, Pair
from torch import Tensor

from cotswold.geometry import BlockLocal

FORMATS = {torch.float32: (24, -126, 127), torch.float64: (53, -1022, 1023)}
"""Bits of the significand, the least and the greatest exponent."""


def rounded(value: Fraction, dtype: torch.dtype) -> float:
    """The nearest number of a type to one that is not 0, ties to even."""
    digits, least, greatest = FORMATS[dtype]
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, least) - digits + 1)
    whole = round(value / unit)  # to even
    if whole == 0:
        return math.copysign(0.0, -1 if value < 0 else 1)
    if abs(whole) * unit >= Fraction(2) ** (greatest + 1):
        return math.copysign(math.inf, whole)
    return float(whole * unit)


def multiply_add(a: float, b: float, c: float, dtype: torch.dtype) -> float:
    """``a b + c``, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total != 0:
        return rounded(total, dtype)
    negative = math.copysign(1, a) * math.copysign(1, b) < 0 and math.copysign(1, c) < 0
    return -0.0 if negative else 0.0


def chain(operation: str, layer: BlockLocal, pair: Pair) -> Tensor:
    """The result of an operation; NaN for weights that meet only padding."""
    first, second = pair
    dtype, images, neurons = first.dtype, first.shape[0], layer.neurons
    number = Dense.of(layer).number
    terms: dict[int, list[tuple[tuple[int, int], int, int]]] = defaultdict(list)
    for output, source in number.nonzero().tolist():
        weight = int(number[output, source]) - 1
        block, neuron = weight // (layer.fan_in * neurons), weight % neurons
        if operation == "product":
            terms[output].append(((block, weight), weight, source))
        elif operation == "adjoint":
            terms[source].append(((block, neuron), weight, output))
        else:
            terms[weight].append(((0, 0), output, source))
    values, others = first.reshape(images, -1).tolist(), second.flatten().tolist()
    if operation == "outer":
        others = second.reshape(images, -1).tolist()
        found = [math.nan] * layer.parameters
        for weight, ((_, output, source),) in terms.items():
            total = 0.0
            for image in range(images):
                total = multiply_add(others[image][source], values[image][output], total, dtype)
            found[weight] = total
        return torch.tensor(found, dtype=torch.float64).to(dtype).view(layer.filters_shape)
    shape = layer.output if operation == "product" else layer.input
    sums = [[0.0] * shape.size for _ in range(images)]
    for place, ordered in terms.items():
        for image in range(images):
            total = 0.0
            for _, weight, other in sorted(ordered):
                total = multiply_add(others[weight], values[image][other], total, dtype)
            sums[image][place] = total
    result = torch.tensor(sums, dtype=torch.float64).to(dtype)
    return result.view(images, shape.channels, shape.height, shape.width)
