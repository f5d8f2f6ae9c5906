"""Errors and rates of a block-local layer's products on a CUDA device.

Knows: layers, dtypes, the products by the fastest backend and by torch. Does not know: steps of a stack
(`updates`), tables, training runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cotswold import ops
from cotswold.bench.measure import Document, Spread, rounded
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.cuda import launch
from cotswold.kernels.cuda import products as kernels
from cotswold.kernels.cuda.tiles import ProgramTile
from cotswold.nn import LocallyConnected2d
from cotswold.ops import batched

ROUNDS = 5
FEW_TILES = {
    "_PRODUCT": (
        ProgramTile({"NEURONS": 128, "IMAGES": 128, "DEPTH": 16}, 8, 3),
        ProgramTile({"NEURONS": 128, "IMAGES": 128, "DEPTH": 64}, 8, 3),
        ProgramTile({"NEURONS": 128, "IMAGES": 32, "DEPTH": 32}, 4, 4),
        ProgramTile({"NEURONS": 128, "IMAGES": 32, "DEPTH": 64}, 4, 4),
        ProgramTile({"NEURONS": 32, "IMAGES": 128, "DEPTH": 32}, 4, 3),
        ProgramTile({"NEURONS": 16, "IMAGES": 16, "DEPTH": 32}, 1, 4),
    ),
    "_ADJOINT": (
        ProgramTile({"IMAGES": 128, "DEPTH": 16}, 8, 3),
        ProgramTile({"IMAGES": 128, "DEPTH": 64}, 4, 4),
        ProgramTile({"IMAGES": 64, "DEPTH": 32}, 8, 3),
        ProgramTile({"IMAGES": 32, "DEPTH": 64}, 4, 4),
        ProgramTile({"IMAGES": 16, "DEPTH": 16}, 2, 4),
    ),
    "_OUTER": (
        ProgramTile({"PLACES": 128, "NEURONS": 128, "DEPTH": 16}, 8, 3),
        ProgramTile({"PLACES": 128, "NEURONS": 128, "DEPTH": 64}, 8, 3),
        ProgramTile({"PLACES": 64, "NEURONS": 128, "DEPTH": 64}, 4, 3),
        ProgramTile({"PLACES": 64, "NEURONS": 32, "DEPTH": 32}, 4, 3),
        ProgramTile({"PLACES": 16, "NEURONS": 16, "DEPTH": 16}, 1, 4),
    ),
}
"""Tiles tried here: each takes about a second to compile, once for every layer, dtype and precision."""
ONE_TILE = {
    "_PRODUCT": (ProgramTile({"NEURONS": 64, "IMAGES": 32, "DEPTH": 32}, 4, 3),),
    "_ADJOINT": (ProgramTile({"IMAGES": 32, "DEPTH": 32}, 4, 3),),
    "_OUTER": (ProgramTile({"PLACES": 64, "NEURONS": 32, "DEPTH": 32}, 4, 3),),
}
"""Tiles of `errors`, which tunes nothing."""
PRECISIONS = ((torch.float32, "ieee"), (torch.float32, "tf32"), (torch.bfloat16, ""))
"""The first layer is measured in all of them, the others without TensorFloat-32."""


def _paper(channels: int, size: int, field: int, depth: int) -> BlockLocal:
    return BlockLocal(MapShape(channels, size, size), Window(field, 4), Window(field, 4), 4, 4, depth)


LAYERS = {
    "paper, stack 1": (_paper(3, 200, 20, 8), 96),
    "paper, stack 2": (_paper(8, 184, 20, 8), 96),
    "faces, stack 1": (BlockLocal(MapShape(3, 48, 48), Window(8, 4), Window(8, 4), 2, 2, 8), 96),
}
TINY = {"tiny": (BlockLocal(MapShape(3, 20, 20), Window(8, 4), Window(8, 4), 2, 2, 2), 5)}
ODD = {
    "odd": (BlockLocal(MapShape(3, 31, 27), Window(5, 2, 1, 2), Window(4, 3, 2, 1), 2, 3, 5), 37),
    "one image": (BlockLocal(MapShape(2, 12, 12), Window(3), Window(3), 1, 1, 4), 1),
}
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2.0**-7}


def synchronize(device: torch.device) -> None:
    """Wait for a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(action: Callable[[], object], device: torch.device) -> list[float]:
    """Seconds of a call, in rounds of some 60 ms each, after two calls that are not counted."""
    action()
    synchronize(device)
    began = time.perf_counter()
    action()
    synchronize(device)
    repeats = max(2, min(50, round(0.06 / max(time.perf_counter() - began, 1e-5))))
    found = []
    for _ in range(ROUNDS):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(repeats):
            action()
        synchronize(device)
        found.append((time.perf_counter() - began) / repeats)
    return found


def rate(flops: float, taken: list[float]) -> Document:
    """Return the rate of calls and the median of their time."""
    spread = Spread.from_samples([flops / each / 1e12 for each in taken]).as_dict()
    return {"teraflops": spread, "milliseconds": rounded(1e3 * sorted(taken)[len(taken) // 2])}


def ceilings(device: torch.device, size: int = 8192) -> Iterator[Document]:
    """Yield rates of cuBLAS on square matrices, and the bandwidth of ``y += 1``."""
    for dtype, precision in PRECISIONS:
        with precise(precision):
            one = torch.randn(size, size, device=device, dtype=dtype)
            taken = seconds(partial(torch.mm, one, one), device)
        yield {"what": f"cuBLAS {named(dtype, precision)}", **rate(2.0 * size**3, taken)}
    values = torch.empty(size * size * 4, device=device)
    taken = seconds(lambda: values.add_(1), device)
    bandwidth = [8e-12 * values.numel() / each for each in taken]
    yield {"what": "y += 1", "terabytes_per_second": Spread.from_samples(bandwidth).as_dict()}


def named(dtype: torch.dtype, precision: str) -> str:
    """Return the name of a dtype and a precision."""
    return f"{str(dtype).removeprefix('torch.')} {precision}".strip()


@contextmanager
def precise(precision: str) -> Iterator[None]:
    """Set the precision of torch's float32 products for a block."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def only_tiles(choices: Mapping[str, tuple[ProgramTile, ...]]) -> Iterator[None]:
    """Let the tuner try some tiles alone for a block."""
    before = {name: getattr(kernels, name) for name in choices}
    for name, tiles in choices.items():
        setattr(kernels, name, replace(before[name], tiles=tiles))
    try:
        yield
    finally:
        for name, kernel in before.items():
            setattr(kernels, name, kernel)


def operands(
    layer: BlockLocal, images: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random maps of inputs and outputs, images last, and filters."""

    def drawn(shape: MapShape) -> Tensor:
        found = torch.randn(shape.height, shape.width, shape.channels, images, device=device)
        return found.to(dtype).permute(3, 2, 0, 1)

    filters = torch.randn(layer.filters_shape, device=device).to(dtype)
    return drawn(layer.input), drawn(layer.output), filters


def _products(
    module: object, x: Tensor, y: Tensor, filters: Tensor, layer: BlockLocal
) -> dict[str, Callable[[], Tensor]]:
    product, adjoint, outer = (
        (ops.local_product, ops.local_adjoint, ops.local_outer)
        if module is ops
        else (batched.product, batched.adjoint, batched.outer)
    )
    return {
        "Wx": lambda: product(x, filters, layer),
        "W'y": lambda: adjoint(y, filters, layer),
        "dx'": lambda: outer(y, x, layer),
    }


def errors(device: torch.device) -> Iterator[Document]:
    """Yield the largest error of each product, relative to the largest element, compared with float64."""
    for name, (layer, images) in ODD.items():
        for dtype, tolerance in TOLERANCES.items():
            x, y, filters = operands(layer, images, dtype, device)
            found = _products(ops, x, y, filters, layer)
            right = _products(batched, x.double(), y.double(), filters.double(), layer)
            for what, action in found.items():
                row: Document = {"layer": name, "dtype": named(dtype, ""), "product": what}
                try:
                    wanted = right[what]()
                    with only_tiles(ONE_TILE):
                        computed = action()
                    error = float((computed.double() - wanted).abs().max() / wanted.abs().max())
                    yield {**row, "error": rounded(error), "is_right": error <= 4 * tolerance}
                except Exception as failure:  # a compiler's error is a result here
                    yield {**row, "failure": f"{type(failure).__name__}: {failure}"[:300], "is_right": False}


def measured(
    layers: Mapping[str, tuple[BlockLocal, int]],
) -> Iterator[tuple[str, BlockLocal, int, torch.dtype, str]]:
    """Yield what is measured: name, layer, images, dtype and precision; see `PRECISIONS`."""
    for number, (name, (layer, images)) in enumerate(layers.items()):
        for dtype, precision in PRECISIONS:
            if number == 0 or precision != "tf32":
                yield name, layer, images, dtype, precision


def rates(device: torch.device, layers: Mapping[str, tuple[BlockLocal, int]]) -> Iterator[Document]:
    """Yield the rate of each product, and the tile that the tuner chose."""
    for name, layer, images, dtype, precision in measured(layers):
        for what, action in _products(ops, *operands(layer, images, dtype, device), layer).items():
            row: Document = {"layer": name, "dtype": named(dtype, precision), "product": what}
            try:
                with precise(precision):
                    began = time.perf_counter()
                    action()
                    synchronize(device)
                    row["first_call_seconds"] = rounded(time.perf_counter() - began)
                    taken = seconds(action, device)
                row["tile"] = _tile(what) if device.type == "cuda" else ""
                yield {**row, **rate(float(images * layer.product_flops), taken)}
            except Exception as failure:  # a compiler's error is a result here
                yield {**row, "failure": f"{type(failure).__name__}: {failure}"[:300]}


def _tile(what: str) -> str:
    program = {"Wx": kernels._PRODUCT, "W'y": kernels._ADJOINT, "dx'": kernels._OUTER}[what]
    best = getattr(launch._kernel(program), "best_config", None)
    return str(best) if best else ""


def own_layer(device: torch.device) -> Iterator[Document]:
    """Yield the rate of `LocallyConnected2d`, forward and backward by autograd."""
    layer = LocallyConnected2d(32, 32, 24, 3).to(device)

    def run(x: Tensor, dtype: torch.dtype) -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            layer(x).float().sum().backward()

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(128, 32, 24, 24, device=device, requires_grad=True)

        row: Document = {"layer": "LocallyConnected2d(32, 32, 24, 3)", "dtype": named(dtype, "")}
        try:
            taken = seconds(partial(run, x, dtype), device)
            yield {**row, **rate(3.0 * 128 * layer.geometry.product_flops, taken)}
        except Exception as failure:  # a missing kernel is a result here
            yield {**row, "failure": f"{type(failure).__name__}: {failure}"[:300]}
