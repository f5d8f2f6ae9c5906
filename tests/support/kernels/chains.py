"""Reference values of products, number by number: chains of multiplications and additions.

Knows: IEEE 754 arithmetic in whole numbers, the order of a chain. Does not know: kernels, layouts, vectors.

The order is that of the filters in memory: for ``Wx`` field row, column, channel; for ``W'y`` block, then its
neurons; for ``δx'`` images. A long sum consists of several chains (sections), which are added one after
another. Their rule is written here independently of the kernels' plans: a run of ``Wx`` is a row of the
field, a run of ``W'y`` a row of a block's neurons, a run of ``δx'`` all images.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from itertools import chain as joined

import torch
from tests.support.kernels.operations import Dense, Pair
from torch import Tensor

from cotswold.geometry import BlockLocal

FORMATS = {torch.float32: (24, -126, 127), torch.float64: (53, -1022, 1023)}
"""Bits of the significand, least and greatest exponent."""
TERMS_MOST, IMAGES_MOST = 256, 384
"""Most terms of a section, and the most if they are images."""
Term = tuple[int, int]
"""Positions of the two factors of a product; the first decides the order."""


def rounded(value: Fraction, dtype: torch.dtype) -> float:
    """Return the number of a type nearest to one that is not 0, ties to even."""
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
    """Return ``a b + c``, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total != 0:
        return rounded(total, dtype)
    negative = math.copysign(1, a) * math.copysign(1, b) < 0 and math.copysign(1, c) < 0
    return -0.0 if negative else 0.0


def parts(total: int, most: int) -> list[int]:
    """Return the lengths of the fewest parts of at most ``most``, as equal as possible, longer first."""
    count = -(-total // most)
    return [(total + count - 1 - i) // count for i in range(count)]


def sections(runs: list[list[Term]], whole: int, most: int) -> list[list[Term]]:
    """Return the terms of a sum in sections, from its runs, which are ``whole`` long without padding.

    A run is divided into parts. A section has the number of parts that fits into ``most``, if all were as
    long as the longest part of a whole run.
    """
    pieces = []
    for run in runs:
        first = 0
        for length in parts(len(run), most):
            pieces.append(run[first : first + length])
            first += length
    together = max(1, most // max(parts(whole, most), default=1))
    return [list(joined(*pieces[i : i + together])) for i in range(0, len(pieces), together)]


def summed(cut: list[list[tuple[float, float]]], dtype: torch.dtype) -> float:
    """Return the sum of products in sections: each is a chain from 0, added to the earlier ones."""
    total = 0.0
    for number, section in enumerate(cut):
        here = 0.0
        for a, b in section:
            here = multiply_add(a, b, here, dtype)
        total = multiply_add(1.0, total, here, dtype) if number else here
    return total


def chain(operation: str, layer: BlockLocal, pair: Pair) -> Tensor:
    """Return the result of an operation; NaN for weights that meet only padding."""
    first, second = pair
    dtype, images, neurons = first.dtype, first.shape[0], layer.neurons
    wide, row = layer.x.size * layer.input.channels, layer.columns * layer.depth
    # of every sum: its runs, and of each of them its terms
    terms: dict[int, dict[tuple[int, int], list[Term]]] = defaultdict(lambda: defaultdict(list))
    for output, source in Dense.of(layer).number.nonzero().tolist():
        weight = int(Dense.of(layer).number[output, source]) - 1
        place, neuron = weight // neurons, weight % neurons
        block = place // layer.fan_in
        if operation == "product":
            terms[output][0, place // wide].append((weight, source))
        elif operation == "adjoint":
            terms[source][block, neuron // row].append((weight, output))
        else:
            terms[weight][0, 0].append((output, source))
    values, others = first.reshape(images, -1).tolist(), second.flatten().tolist()
    if operation == "outer":
        inputs = second.reshape(images, -1).tolist()
        found = [math.nan] * layer.parameters
        for weight, runs in terms.items():
            (((output, source),),) = runs.values()
            each = [(image, image) for image in range(images)]
            found[weight] = summed(
                [
                    [(inputs[image][source], values[image][output]) for image, _ in section]
                    for section in sections([each], images, IMAGES_MOST)
                ],
                dtype,
            )
        return torch.tensor(found, dtype=torch.float64).to(dtype).view(layer.filters_shape)
    shape, whole = (layer.output, wide) if operation == "product" else (layer.input, row)
    sums = [[0.0] * shape.size for _ in range(images)]
    for place, runs in terms.items():
        cut = sections([sorted(runs[key]) for key in sorted(runs)], whole, TERMS_MOST)
        for image in range(images):
            sums[image][place] = summed(
                [[(others[weight], values[image][other]) for weight, other in section] for section in cut],
                dtype,
            )
    result = torch.tensor(sums, dtype=torch.float64).to(dtype)
    return result.view(images, shape.channels, shape.height, shape.width)
