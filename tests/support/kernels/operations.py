"""The three products on forced kernels, and the same sums as dense matrix products.

Knows: layouts of operands, poisoned results. Does not know: the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from tests.support.kernels.processors import narrower
from tests.support.ops import reference
from tests.support.ops.layers import random_map, random_weights
from torch import Tensor

from cotswold.geometry import BlockLocal
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.microkernels.half_units import Units
from cotswold.kernels.microkernels.kinds import AMX_TILE, Tile
from cotswold.kernels.products import run as kernels
from cotswold.kernels.products.autotune import TuningKey
from cotswold.kernels.products.problem import NO_OVERRIDES, Overrides
from cotswold.ops import images_last
from cotswold.ops.memory_format import empty_map

OPERATIONS = ["product", "adjoint", "outer"]
KERNELS: list[tuple[str, bool | None]] = [
    ("product", False),
    ("product", True),
    ("adjoint", None),
    ("outer", None),
]
"""An operation, and ``Overrides.small_batch``."""
DTYPES = [torch.float32, torch.float64]
Pair = tuple[Tensor, Tensor]


def processors() -> list[Processor]:
    """Return this processor, and its version with narrower vectors if it has both."""
    return [one for one in (this_processor(), narrower()) if one is not None]


def tuning_class(narrow: bool = False, dtype: str = "float32", rows: int = 64, entry: int = 64) -> TuningKey:
    """Return a class of shapes of the product."""
    return TuningKey.from_shape("product", dtype, rows, 1024, entry, narrow)


def amx_tiles(processor: Processor) -> list[tuple[int, int]]:
    """Return the tile of AMX if a processor has it; with it bfloat16 is multiplied by AMX."""
    has_amx = Units.for_dtype("bfloat16", processor, AMX_TILE).amx
    return [(AMX_TILE.rows, AMX_TILE.vectors)] if has_amx else []


def forced(
    rows: int,
    vectors: int,
    threads: int = 1,
    processor: Processor | None = None,
    few: bool | None = None,
) -> Overrides:
    """Return overrides that fix every choice of a kernel."""
    return Overrides(processor, Tile(rows, vectors), threads, few)


def operands(operation: str, layer: BlockLocal, images: int, dtype: torch.dtype, seed: int = 0) -> Pair:
    """Return the inputs of an operation: its map (two for ``outer``) and filters."""
    x = images_last(random_map(layer.input, images, seed, dtype))
    y = images_last(random_map(layer.output, images, seed + 1, dtype))
    filters = random_weights(layer, seed + 2, dtype)
    return {"product": (x, filters), "adjoint": (y, filters), "outer": (y, x)}[operation]


def poisoned(operation: str, layer: BlockLocal, like: Tensor) -> Tensor:
    """Return the output of an operation, NaN everywhere."""
    if operation == "outer":
        return torch.full(layer.filters_shape, float("nan"), dtype=like.dtype)
    shape = layer.output if operation == "product" else layer.input
    return empty_map(like, like.shape[0], shape).fill_(float("nan"))


def run(
    operation: str, layer: BlockLocal, pair: Pair, free: Overrides = NO_OVERRIDES, out: Tensor | None = None
) -> Tensor:
    """Return the result of an operation; weights that meet only padding stay NaN."""
    first, second = pair
    out = poisoned(operation, layer, first) if out is None else out
    if operation == "product":
        kernels.product(first, second, layer, out, free)
    elif operation == "adjoint":
        kernels.adjoint(first, second, layer, out, free)
    else:
        kernels.outer(first, second, layer, out, free)
    return out


def bits(x: Tensor) -> Tensor:
    """Return numbers as integers, so that signs of zeros count; NaN lose sign and payload."""
    if not x.is_floating_point():
        return x
    kind = {torch.float32: torch.int32, torch.float64: torch.int64}[x.dtype]
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), x).contiguous().view(kind)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if two results are the same to the last bit."""
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


@dataclass(frozen=True, eq=False)
class Dense:
    """A layer as a dense matrix of positions in the filters, counted from 1; 0 for none."""

    layer: BlockLocal
    number: Tensor

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, layer: BlockLocal) -> Dense:
        """Make it from the reference's matrix of numbered filters."""
        counted = torch.arange(1, layer.parameters + 1, dtype=torch.float64).view(layer.filters_shape)
        return cls(layer, reference.matrix(counted, layer).to(torch.int64))

    def matrix(self, filters: Tensor) -> Tensor:
        """Return W, ``(depth * y * x of the output, channel * y * x of the input)``."""
        return torch.cat([filters.new_zeros(1), filters.flatten()])[self.number]

    def product(self, operation: str, pair: Pair) -> Tensor:
        """Return the sums of an operation by torch.mm in their own type; NaN for weights that meet only
        padding."""
        first, second = pair
        layer, flat = self.layer, first.reshape(first.shape[0], -1)
        if operation == "outer":
            out = torch.full((1 + layer.parameters,), float("nan"), dtype=first.dtype)
            out[self.number] = torch.mm(flat.T.contiguous(), second.reshape(second.shape[0], -1))
            return out[1:].view(layer.filters_shape)
        matrix, shape = self.matrix(second), layer.input
        if operation == "product":
            matrix, shape = matrix.T.contiguous(), layer.output
        values = torch.mm(flat, matrix)
        return values.view(-1, shape.channels, shape.height, shape.width)


def error(values: Tensor, expected: Tensor) -> float:
    """Return the largest error; NaN must be in the same places."""
    assert torch.equal(values.isnan(), expected.isnan())
    return float((values.to(torch.float64) - expected).nan_to_num().abs().max())
