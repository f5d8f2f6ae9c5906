"""Which way a dense network is computed.

Knows: the ways there are. Does not know: how they work, what operands must look like.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.ops.dense import library
from cotswold.ops.dense.spec import DenseSpec


@torch.no_grad()
def dense_add(
    spec: DenseSpec,
    parameters: Tensor,
    inputs: Tensor,
    targets: Tensor,
    gradient: Tensor | None,
    deterministic: bool,
) -> tuple[float, int]:
    """The sum of losses and how many are right; adds the gradient. See `nn.DenseNetwork.add`."""
    return library.add(spec, parameters, inputs, targets, gradient)


@torch.no_grad()
def dense_outputs(spec: DenseSpec, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Outputs ``(outputs, patterns)``."""
    return library.outputs(spec, parameters, inputs)
