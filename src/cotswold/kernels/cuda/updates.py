"""The update of filters on CUDA: the launch of its kernel, and the tile of one program.

Knows: operands, the sides of a tile. Does not know: gradients, how the kernel is compiled. Nothing is tuned,
because the tile decides the order of sums: the same call gives the same bits in every process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.kernels.cuda.launch import DTYPES, TunedKernel, arithmetic, check_types
from cotswold.kernels.cuda.tiles import power_of_two

TILE = {"NEURONS": 32, "PLACES": 128, "num_warps": 8}
"""Neurons and field places of one turn; a program reads its filters three times, mostly from the L2 cache."""
_UPDATE = TunedKernel("update", (), ())


def update_constants(like: Tensor, momentum: float, rate: float, longest: float) -> Tensor:
    """Return the constants of an update as a float64 tensor, without waiting for the device.

    ``momentum`` is the fraction of the last step that is kept, ``rate`` is multiplied with the gradient and
    divided by α, and ``longest`` is the maximum step as a fraction of the filter's norm.
    """
    constants = torch.full((3,), momentum, dtype=torch.float64, device=like.device)
    constants[1].fill_(rate)
    constants[2].fill_(longest)
    return constants


def update(
    filters: Tensor,
    norms: Tensor,
    momentum: Tensor,
    gradient: Tensor,
    alpha: Tensor,
    constants: Tensor,
    narrow: Tensor | None = None,
) -> None:
    """Update filters, norms and momentum of some blocks in place, by the rule of `ops.sgd_rule.filter_step`.

    ``filters``, ``momentum`` and ``gradient`` are ``(block, field_y, field_x * channel, neuron)``, ``norms``
    is ``(block, neuron)``, all contiguous. ``gradient`` may have a narrower dtype, and is not changed. If
    ``narrow`` is given, it receives the rounded filters. ``constants`` are those of `update_constants`.
    Raises GeometryError for operands that do not fit, and MissingExtraError without Triton.
    """
    check_types((filters, momentum))
    rounded = filters if narrow is None else narrow
    for name, one, shape in (
        ("filters", filters, filters.shape),
        ("momentum", momentum, filters.shape),
        ("gradient", gradient, filters.shape),
        ("narrow", rounded, filters.shape),
        ("norms", norms, (filters.shape[0], filters.shape[-1])),
        ("alpha", alpha, ()),
        ("constants", constants, (3,)),
    ):
        _check(name, one, tuple(shape), filters.device)
    neurons = filters.shape[-1]
    fan_in = filters[0].numel() // max(neurons, 1) if len(filters) else 0
    sides = _sides(fan_in, neurons)
    _UPDATE.start(
        (filters, norms, momentum, gradient, alpha, constants, rounded),
        (),
        {"NEURONS": neurons},
        filters.shape[0],
        {
            "fan_in": fan_in,
            "neurons": neurons,
            "NARROW": narrow is not None,
            "SUM": arithmetic(filters.dtype)["SUM"],
            **sides,
        },
    )


def _sides(fan_in: int, neurons: int) -> dict[str, Any]:
    """Tile of a layer: no side above the power of two that holds the extent."""
    narrow = min(TILE["NEURONS"], power_of_two(neurons))
    places = min(TILE["PLACES"] * TILE["NEURONS"] // narrow, power_of_two(fan_in))
    warps = max(1, min(TILE["num_warps"], narrow * places // 256))
    return {"NEURONS": narrow, "PLACES": places, "num_warps": warps}


def _check(name: str, one: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    if tuple(one.shape) != shape or not one.is_contiguous() or one.device != device:
        raise GeometryError(
            f"an update needs contiguous {name} of shape {shape} on {device}, got shape {tuple(one.shape)}, "
            f"strides {one.stride()} on {one.device}"
        )
    if one.dtype not in DTYPES:
        raise GeometryError(f"an update needs {name} of float32, float64 or bfloat16, got {one.dtype}")
