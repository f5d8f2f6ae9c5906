"""Fully connected networks: value and gradient of a sum over patterns, in one call on flat parameters.

Knows: how parameters lie in one vector, what operands must look like. Does not know: how products are
computed, where patterns come from, optimisers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from cotswold.errors import GeometryError, UserError
from cotswold.ops.dense import (
    ACTIVATIONS,
    LOSSES,
    OUTPUTS,
    DenseActivation,
    DenseLoss,
    DenseOutput,
    DenseSpec,
    dense_add,
    dense_outputs,
)

_CONVERTED = (torch.uint8, torch.float16, torch.float32, torch.float64)
"""Types that inputs may have."""


@dataclass(frozen=True)
class Slot:
    """A matrix or a vector of parameters: its name, its shape, where it begins in the flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Its numbers."""
        return self.shape[0] * (self.shape[1] if len(self.shape) > 1 else 1)


class DenseNetwork:
    """A fully connected network, whose parameters are one vector of somebody else.

    ``sizes`` are the numbers of inputs, of every hidden layer, of outputs. ``activation`` follows hidden
    layers (tanh, sigmoid, relu, identity), ``output`` the last one (softmax too). ``loss`` is of one pattern:
    `squared_error`, the sum over outputs (Aberdeen et al. 2000, equation 3), or `cross_entropy`, of a softmax
    or of sigmoids. ``targets`` are what outputs should be for other classes and for a pattern's own; without
    it -1 and 1 for tanh, else 0 and 1. ``deterministic``: kernels of our own, so that threads, batch and
    machine change no bit of a pattern's share; otherwise whatever was measured to be fastest here.

    >>> network = DenseNetwork((400, 480, 3203))
    >>> network.size
    1733123
    >>> [slot.name for slot in network.layout]
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: DenseActivation = "tanh",
        output: DenseOutput = "tanh",
        loss: DenseLoss = "squared_error",
        targets: tuple[float, float] | None = None,
        deterministic: bool = False,
    ) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise GeometryError(
                f"a network needs the numbers of its inputs and outputs, all at least 1, not {self.sizes}"
            )
        for what, name, known in (
            ("activation", activation, ACTIVATIONS),
            ("output", output, OUTPUTS),
            ("loss", loss, LOSSES),
        ):
            if name not in known:
                raise UserError(f"a dense network knows the {what}s {', '.join(known)}, not {name!r}")
        if loss == "cross_entropy" and output not in ("softmax", "sigmoid"):
            raise UserError(
                f"cross_entropy is of probabilities, not of {output} outputs; "
                "take the output softmax or sigmoid, or the loss squared_error"
            )
        low, high = targets or ((-1.0, 1.0) if output == "tanh" else (0.0, 1.0))
        self._spec = DenseSpec(self.sizes, activation, output, loss, float(low), float(high))
        self.deterministic = deterministic
        slots, offset = [], 0
        for number, (inputs, outputs) in enumerate(pairwise(self.sizes)):
            slots += [
                Slot(f"{number}.weight", (outputs, inputs), offset),
                Slot(f"{number}.bias", (outputs,), offset + inputs * outputs),
            ]
            offset += (inputs + 1) * outputs
        self.layout: tuple[Slot, ...] = tuple(slots)
        """Weights ``(out, in)`` and biases ``(out,)`` of every layer, as in `torch.nn.Linear`."""
        self.size = offset
        """Numbers of the flat vector."""

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs of a pattern as the paper counts: of the value, and of value and gradient together."""
        products = [2 * inputs * outputs for inputs, outputs in pairwise(self.sizes)]
        return sum(products), 3 * sum(products) - products[0]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters of a vector ``(size,)`` by their names, as views of it."""
        self._check_vector("the vector", flat, flat.dtype)
        return {slot.name: flat[slot.offset :][: slot.size].view(slot.shape) for slot in self.layout}

    def add(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, gradient: Tensor | None = None
    ) -> tuple[float, int]:
        """The sum of losses of some patterns, and how many are right; adds the gradient to ``gradient``.

        ``parameters`` and ``gradient`` are ``(size,)``, contiguous, on the CPU, float32 or float64.
        ``inputs`` are ``(features, patterns)`` in any strides (rows of a store are ``rows.t()``), of the
        parameters' type, uint8 or float16; bytes are taken as they are: 255 is 255.0. ``targets`` are class
        numbers ``(patterns,)`` or values ``(outputs, patterns)``. A pattern is right if the output of its
        class is greater than every other; with values none is counted. Raises GeometryError where shapes do
        not fit, UserError for other types and for classes that there are not.
        """
        self._check_vector("parameters", parameters, parameters.dtype)
        if gradient is not None:
            self._check_vector("the gradient", gradient, parameters.dtype)
        self._check_patterns(inputs, targets)
        if inputs.shape[1] == 0:
            return 0.0, 0
        return dense_add(self._spec, parameters, inputs, targets, gradient, self.deterministic)

    def outputs(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """What the network answers, ``(outputs, patterns)``; operands and errors as for `add`."""
        self._check_vector("parameters", parameters, parameters.dtype)
        self._check_inputs(inputs)
        return dense_outputs(self._spec, parameters, inputs)

    def _check_vector(self, name: str, flat: Tensor, dtype: torch.dtype) -> None:
        if tuple(flat.shape) != (self.size,):
            raise GeometryError(
                f"{name} of a network of {self.sizes} must be ({self.size},), not {tuple(flat.shape)}"
            )
        if flat.dtype != dtype or dtype not in (torch.float32, torch.float64):
            raise UserError(
                f"parameters and gradient must both be float32 or both float64; {name} is {flat.dtype}"
            )
        if flat.device.type != "cpu" or not flat.is_contiguous():
            raise UserError(f"{name} must be contiguous and on the CPU; call .cpu().contiguous() first")

    def _check_inputs(self, inputs: Tensor) -> None:
        if inputs.dim() != 2 or inputs.shape[0] != self.sizes[0]:
            raise GeometryError(
                f"inputs must be ({self.sizes[0]}, patterns), not {tuple(inputs.shape)}"
                + ("; transpose them" if inputs.shape[-1:] == self.sizes[:1] else "")
            )
        if inputs.dtype not in _CONVERTED or inputs.device.type != "cpu":
            raise UserError(
                "inputs must be uint8, float16, float32 or float64 on the CPU, "
                f"not {inputs.dtype} on {inputs.device}"
            )

    def _check_patterns(self, inputs: Tensor, targets: Tensor) -> None:
        self._check_inputs(inputs)
        patterns, outputs = inputs.shape[1], self.sizes[-1]
        if targets.device.type != "cpu":
            raise UserError(f"targets must be on the CPU, not on {targets.device}; call .cpu() first")
        if targets.dtype.is_floating_point:
            if tuple(targets.shape) != (outputs, patterns):
                raise GeometryError(
                    f"values to predict must be ({outputs}, {patterns}), not {tuple(targets.shape)}"
                )
            return
        if targets.dtype in (torch.bool, torch.complex64, torch.complex128):
            raise UserError(f"targets must be class numbers or values, not {targets.dtype}")
        if tuple(targets.shape) != (patterns,):
            raise GeometryError(f"class numbers must be ({patterns},), not {tuple(targets.shape)}")
        least, most = (int(end) for end in targets.long().aminmax()) if patterns else (0, 0)
        if not 0 <= least <= most < outputs:
            raise UserError(
                f"classes of a network of {outputs} outputs are 0 to {outputs - 1}; "
                f"targets are {least} to {most}"
            )
