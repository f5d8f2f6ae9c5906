"""Explanations: the kernel that runs for a shape, and the reason.

Knows: backends, processors, choices of tiles. Does not know: baselines, tables.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from cotswold.bench.kernels.baselines import PRODUCTS
from cotswold.bench.kernels.shapes import Shape
from cotswold.bench.measure import rounded
from cotswold.errors import UserError
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels import available
from cotswold.ops.memory_format import empty_map

LAYER_WORDS = "C,H,W,FIELD,STRIDE,ROWS,COLUMNS,DEPTH"


@dataclass(frozen=True)
class Explanation:
    """A product of a shape: its kernel, its tile, and the reason for the choice."""

    shape: str
    images: int
    product: str
    backend: str
    kind: str
    tile: str
    reason: str
    milliseconds: dict[str, float]
    """Milliseconds of each measured candidate; empty if none was measured."""
    lanes_filled: float | None
    """Fraction of the lanes of vectors that compute results; None for torch. The lanes of `Wx` and `W'x` are
    images (neurons in the kernel for small batches), those of `δx'` are neurons.
    """


@dataclass(frozen=True)
class BackendReport:
    """The implementation of products on this processor."""

    name: str
    reason: str
    processor: str
    vector: str
    cache: str


def backend() -> BackendReport:
    """The chosen backend with its reason, the processor, and the folder of compiled kernels."""
    from cotswold.kernels.compile import code_cache

    name, variable = available.backend(), os.environ.get(available.VARIABLE, "")
    if name == "torch":
        why = f"{available.VARIABLE} says so" if variable == "torch" else str(available.unavailable_reason())
        return BackendReport(name, why, "unknown", "chosen by torch", "none")
    from cotswold.kernels.machine.processor import WIDTHS, this_processor

    here = this_processor()
    assert here is not None, "llvm is chosen only where the processor is known"
    asked = f", and {available.VARIABLE} says so" if variable else ""
    return BackendReport(
        name,
        f"llvmlite works, and the processor has fused multiply-add{asked}",
        here.cpu,
        f"{here.isa}, {WIDTHS[here.isa]} bits, {here.lanes('float32')} float32"
        + (", bfloat16 by AMX" if here.has_amx else ""),
        str(code_cache.trusted() or "nowhere, see the warning"),
    )


def explained(shape: Shape) -> list[Explanation]:
    """The three products of a shape, with torch's number of threads; measures if no choice is known."""
    if available.backend() == "torch":
        kind, why = "torch.bmm", "our own kernels are off"
        return [
            Explanation(shape.name, shape.images, product, "torch", kind, "", why, {}, None)
            for product in PRODUCTS
        ]
    from cotswold.kernels.microkernels.kinds import ADJOINT, OUTER, PRODUCT, PRODUCT_SMALL_BATCH
    from cotswold.kernels.products import run
    from cotswold.kernels.products.cuts import round_up
    from cotswold.kernels.products.problem import lanes_of, processor_of

    layer, like = shape.layer, torch.ones(1)
    x, y = (empty_map(like, shape.images, part).fill_(1) for part in (layer.input, layer.output))
    filters = torch.ones(layer.filters_shape)
    kinds = {"Wx": PRODUCT, "W'x": ADJOINT, "δx'": OUTER}
    found = []
    for product in PRODUCTS:
        problem, choice = run.tuned_choice(kinds[product], layer, x, y, filters)
        taken = {name: rounded(1e3 * seconds) for name, seconds in choice.seconds.items()}
        runs_as, lanes = problem.kind, lanes_of(processor_of(), problem.dtype)
        count = layer.neurons if runs_as in (OUTER, PRODUCT_SMALL_BATCH) else shape.images
        filled = rounded(count / round_up(count, lanes))
        tile, why = str(choice.tile), choice.reason
        found.append(
            Explanation(shape.name, shape.images, product, "llvm", runs_as.name, tile, why, taken, filled)
        )
    return found


def described(words: str, images: int) -> Shape:
    """The shape of a layer from eight integers: channels, height, width, field, step, rows, columns, depth.

    Raises UserError for other words, GeometryError for an invalid layer.
    """
    numbers = [word.strip() for word in words.split(",")]
    if len(numbers) != len(LAYER_WORDS.split(",")) or not all(number.isdigit() for number in numbers):
        raise UserError(f"--layer {words} is not a layer; write {LAYER_WORDS} as in 3,60,60,20,4,4,4,8")
    channels, height, width, field, step, rows, columns, depth = map(int, numbers)
    window = Window(field, step)
    layer = BlockLocal(MapShape(channels, height, width), window, window, rows, columns, depth)
    return Shape(f"layer {words}", "asked", layer, images)
