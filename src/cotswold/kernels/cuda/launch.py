"""Compilation, tuning and launch of Triton kernels.

Knows: Triton, its interpreter and its tuner; dtypes and precision. Does not know: layers, what is computed.

With ``TRITON_INTERPRET=1`` in the environment before Triton is first imported, kernels run on the CPU,
slowly, with small tiles. Machines without a device test them that way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from inspect import signature
from math import prod
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import GeometryError, MissingExtraError, install
from cotswold.kernels.cuda.tiles import ProgramTile, deepest, fitting_tiles
from cotswold.kernels.operands import check_cuda_tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
"""Dtypes supported by the kernels; bfloat16 is summed in float32."""
INTERPRETER_TILE = {"NEURONS": 16, "IMAGES": 16, "PLACES": 16, "DEPTH": 16}
"""Tile in Triton's interpreter."""


def is_interpreted() -> bool:
    """True if Triton's interpreter was requested; Triton reads the variable when it is first imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def available() -> bool:
    """True if the kernels can run: Triton is installed, and there is a CUDA device or the interpreter."""
    return find_spec("triton") is not None and (is_interpreted() or torch.cuda.is_available())


@dataclass(frozen=True)
class TunedKernel:
    """A kernel of ``triton_kernels``: its tiles, the tuning key, and the extent that each side covers."""

    name: str
    tiles: tuple[ProgramTile, ...]
    key: tuple[str, ...]

    def start(
        self,
        tensors: Sequence[Tensor],
        numbers: Sequence[int],
        extents: Mapping[str, int],
        others: int,
        fixed: Mapping[str, Any],
    ) -> None:
        """Launch one program for each tile of ``extents`` (by side), times ``others`` (blocks, cells).

        ``fixed`` are compile-time constants, including the whole tile if there is no choice of tiles. Raises
        MissingExtraError without Triton, UserError for a tensor without memory.
        """
        kernel = _kernel(self)
        for one in tensors:
            check_cuda_tensor(one)

        def grid(meta: Mapping[str, Any]) -> tuple[int]:
            return (others * prod(-(-extent // meta[side]) for side, extent in extents.items()),)

        place = torch.cuda.device(tensors[0].device) if tensors[0].is_cuda else nullcontext()
        with place:
            kernel[grid](*tensors, *numbers, **fixed, **self._sides(fixed), enable_fp_fusion=True)

    def _sides(self, fixed: Mapping[str, Any]) -> dict[str, int]:
        """Tile to use if the tuner does not choose one."""
        if not is_interpreted() or not self.tiles:
            return {}
        return {side: INTERPRETER_TILE[side] for side in self.tiles[0].sides if side not in fixed}


def check_types(tensors: Sequence[Tensor]) -> None:
    """Raise GeometryError for operands of different or unsupported dtypes or on an unsupported device."""
    first = tensors[0]
    if first.dtype not in DTYPES:
        raise GeometryError(
            f"CUDA kernels support float32, float64 or bfloat16, got {first.dtype}; convert first"
        )
    for other in tensors[1:]:
        if (other.dtype, other.device) != (first.dtype, first.device):
            raise GeometryError(
                f"operands of a product must have one dtype and device, got {first.dtype} on {first.device} "
                f"and {other.dtype} on {other.device}; convert one of them"
            )
    if not first.is_cuda and not is_interpreted():
        raise GeometryError(
            f"CUDA kernels cannot access a tensor on {first.device}; move it to a CUDA device"
        )


def arithmetic(dtype: torch.dtype) -> dict[str, Any]:
    """Compile-time constants: accumulation dtype, operand dtype, precision of float32 products.

    TensorFloat-32 is used only if torch's products use it: ``torch.backends.cuda.matmul.fp32_precision``, or
    ``allow_tf32`` before torch 2.9.
    """
    tl = _triton().language
    wide = tl.float64 if dtype == torch.float64 else tl.float32
    # Triton's interpreter multiplies the bit patterns of bfloat16 as integers
    narrow = tl.bfloat16 if dtype == torch.bfloat16 and not is_interpreted() else wide
    coarse = dtype == torch.float32 and _coarse_products()
    return {"SUM": wide, "FACTOR": narrow, "PRECISION": "tf32" if coarse else "ieee"}


def _coarse_products() -> bool:
    """True if torch multiplies float32 as TensorFloat-32; `allow_tf32` raises after the newer one is set."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if precision is None:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    return bool(precision == "tf32")


@cache
def _triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise MissingExtraError(
            f"CUDA kernels need Triton, which is not installed; run {install('cuda')}"
        ) from error
    return triton


@cache
def _kernel(program: TunedKernel) -> Any:
    """Return the kernel, compiled on first launch; unless interpreted, tuned once per ``key`` and dtype.

    Triton keeps the choice of a tile in its cache on the disk, by kernel, tiles, ``key``, dtypes,
    architecture and version.
    """
    triton = _triton()
    from cotswold.kernels.cuda import triton_kernels

    kernel = triton.jit(getattr(triton_kernels, program.name))
    if is_interpreted() or not program.tiles:
        return kernel
    configurations = {
        tile: triton.Config(dict(tile.sides), num_warps=tile.warps, num_stages=tile.stages)
        for tile in program.tiles
    }

    def smaller(_: object, named: Mapping[str, Any], **fixed: Any) -> list[Any]:
        first: Tensor = next(iter(named.values()))
        extents = {
            "DEPTH": deepest(first.dtype.itemsize),
            "NEURONS": fixed["rows"] * fixed["columns"] * fixed["depth"],
            "IMAGES": fixed["image_class"],
            "PLACES": fixed["field_y"] * fixed["field_x"] * fixed["channels"],
        }
        sides = {side: extents[side] for side in program.tiles[0].sides if side in extents}
        return [configurations[tile] for tile in fitting_tiles(program.tiles, sides)]

    # older versions of Triton keep no choice on the disk: each process tunes again
    kept = {"cache_results": True} if "cache_results" in signature(triton.autotune).parameters else {}
    return triton.autotune(
        configs=list(configurations.values()),
        key=list(program.key),
        prune_configs_by={"early_config_prune": smaller},
        do_bench=partial(triton.testing.do_bench, warmup=5, rep=20),
        **kept,
    )(kernel)
