"""Rates of the update of filters and of a stack's step on a CUDA device.

Knows: tiles of the update, the step with and without its kernel, kernel launches. Does not know: products,
tables, training runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from unittest.mock import patch

import torch

from cotswold import ops
from cotswold.bench.measure import Document, Spread
from cotswold.geometry import BlockLocal, Smoothing, StackGeometry
from cotswold.kernels import cuda
from cotswold.kernels.cuda import launch
from cotswold.kernels.cuda import updates as kernel
from cotswold.ops import bands, sgd_rule
from lib.device.products import measured, named, operands, precise, rate, seconds, synchronize

TILES = (
    {"NEURONS": 16, "PLACES": 128, "num_warps": 8},
    {"NEURONS": 16, "PLACES": 128, "num_warps": 4},
    {"NEURONS": 16, "PLACES": 256, "num_warps": 8},
    {"NEURONS": 8, "PLACES": 256, "num_warps": 8},
    {"NEURONS": 32, "PLACES": 64, "num_warps": 8},
    {"NEURONS": 32, "PLACES": 128, "num_warps": 8},
)
"""Tiles of the update tried here; `kernels.cuda.updates.TILE` is the one in use."""
RULE = ops.StepRule(rate=0.1)


def updates(device: torch.device, layers: Mapping[str, tuple[BlockLocal, int]]) -> Iterator[Document]:
    """Yield the bandwidth of one band's update: by the kernel in each tile, and by torch.

    Bytes are the least that an update moves: filters and momentum are read and written once, the gradient is
    read once, and narrow filters are written once.
    """
    name, (layer, _) = next(iter(layers.items()))
    blocks = next(bands.bands(layer, bands.BAND_ELEMENTS)).size
    shape = (blocks, *layer.filters_shape[2:])
    for narrow in (False, True):
        filters = torch.randn(shape, device=device)
        norms = filters.square().sum((1, 2)).sqrt()
        momentum = torch.zeros_like(filters)
        gradient = torch.randn(shape, device=device).to(torch.bfloat16 if narrow else torch.float32)
        rounded = filters.bfloat16() if narrow else None
        alpha = torch.ones((), device=device)
        constants = cuda.update_constants(filters, RULE.momentum, RULE.rate / layer.fan_in, RULE.longest)
        moved = filters.numel() * (16 + gradient.element_size() + (2 if narrow else 0))
        by_torch = partial(sgd_rule.filter_step, filters, norms, momentum, gradient.float(), alpha, RULE)
        by_kernel = partial(cuda.update, filters, norms, momentum, gradient, alpha, constants, rounded)
        row: Document = {"layer": name, "blocks": blocks, "dtype": "bfloat16" if narrow else "float32"}
        yield {**row, "by": "torch", "tile": "", **_bandwidth(moved, by_torch, device)}
        if device.type != "cuda" or not launch.available():
            continue
        for tile in TILES:
            with patch.dict(kernel.TILE, tile):
                row |= {"by": "Triton", "tile": str(tile)}
                try:
                    yield {**row, **_bandwidth(moved, by_kernel, device)}
                except Exception as failure:  # a compiler's error is a result here
                    yield {**row, "failure": f"{type(failure).__name__}: {failure}"[:300]}


def _bandwidth(moved: int, action: Callable[[], object], device: torch.device) -> Document:
    taken = seconds(action, device)
    spread = Spread.from_samples([moved / each / 1e12 for each in taken]).as_dict()
    return {"terabytes_per_second": spread, "milliseconds": rate(1.0, taken)["milliseconds"]}


def steps(device: torch.device, layers: Mapping[str, tuple[BlockLocal, int]]) -> Iterator[Document]:
    """Yield time, rate and launches of `ops.stack_step`, with the update's kernel and with torch's update."""
    for name, layer, images, dtype, precision in measured(layers):
        geometry = StackGeometry(layer, Smoothing(1, keep=False), Smoothing(5, keep=True))
        x, _, filters = operands(layer, images, dtype, device)
        filters /= filters.float().square().sum((2, 3), keepdim=True).sqrt()
        one = torch.ones((), device=device)
        masters = filters.float() if dtype == torch.bfloat16 else None
        momentum = torch.zeros_like(filters, dtype=torch.float32)
        norms = torch.ones(layer.norms_shape, device=device)
        state = ops.StackState(filters, norms, momentum, one, one.clone(), masters)
        objective = ops.StackObjective()
        run = partial(ops.stack_step, state, x, geometry, objective, RULE)
        row: Document = {"layer": name, "dtype": named(dtype, precision)}
        try:
            with precise(precision):
                ops.calibrate(state, x, geometry, objective)
                yield {**row, "update": "Triton", **_step(run, layer, images, device)}
                if precision != "tf32":
                    with patch.object(bands, "has_cuda_kernel", return_value=False):
                        yield {**row, "update": "torch", **_step(run, layer, images, device)}
        except Exception as failure:  # a missing kernel is a result here
            yield {**row, "failure": f"{type(failure).__name__}: {failure}"[:300]}


def _step(run: Callable[[], object], layer: BlockLocal, images: int, device: torch.device) -> Document:
    run()  # compiles
    launches = _launches(run, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found = rate(5.0 * images * layer.product_flops, seconds(run, device))
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    return {"launches": launches, "peak_gibibytes": round(peak, 2), **found}


def _launches(action: Callable[[], object], device: torch.device) -> int:
    """Count the kernels that a call launches."""
    from torch.profiler import ProfilerActivity, profile

    if device.type != "cuda":
        return 0
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        action()
        synchronize(device)
    return sum(event.count for event in found.key_averages() if "LaunchKernel" in event.key)
