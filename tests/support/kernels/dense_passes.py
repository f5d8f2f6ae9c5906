"""Passes over random layers of dense networks, with their inputs and outputs.

Knows: the operands of a pass, their sizes. Does not know: the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.kernels.dense import Layer, Operand, Operation, padded_lanes, partials_of

ACTIVATIONS = ("tanh", "sigmoid", "relu", "identity")
PASSES = [
    *(Operation(step, name) for step in ("activate", "slope") for name in ACTIVATIONS),
    *(
        Operation("squared", name, values, slopes)
        for name in ("tanh", "sigmoid", "identity")
        for values in (False, True)
        for slopes in (False, True)
    ),
    Operation("softmax", slopes=False),
    Operation("softmax"),
    Operation("softmax_slopes"),
]


def layer(rows: int, lanes: int, apart: int) -> Layer:
    """Return a layer with ``apart`` extra numbers between its rows."""
    return Layer(rows, lanes, lanes + apart, lanes + apart, -0.9, 0.8)


def operands(of: Layer, seed: int) -> dict[Operand, Tensor]:
    """Return random operands, with NaN between rows."""
    generator = torch.Generator().manual_seed(seed)

    def rows() -> Tensor:
        found = torch.full((of.rows, of.pitch), torch.nan)
        found[:, : of.lanes] = torch.randn(of.rows, of.lanes, generator=generator)
        return found

    classes = torch.full((padded_lanes(of.lanes),), -1, dtype=torch.int32)
    classes[: of.lanes] = torch.randint(of.rows, (of.lanes,), generator=generator)
    return {
        "sums": rows(),
        "other": rows().tanh(),
        "biases": torch.randn(of.rows, generator=generator),
        "bias_gradient": torch.randn(of.rows, generator=generator),
        "classes": classes,
        "partials": torch.rand(partials_of(of).shape, generator=generator),
    }
