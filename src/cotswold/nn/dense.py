"""Fully connected networks: loss and gradient summed over samples, on one flat parameter vector.

Knows: the layout of parameters in the vector, the operands accepted. Does not know: how products are
computed, the source of samples, optimisers.
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
"""Input dtypes accepted."""
_DEVICES = ("cpu", "cuda")
"""Types of devices accepted."""


def _check_same_device(parameters: Tensor, **others: Tensor | None) -> None:
    """Raise UserError unless all operands are on the parameters' device."""
    for name, each in others.items():
        if each is not None and each.device != parameters.device:
            raise UserError(
                f"{name} must be on the device of the parameters, {parameters.device}, got {each.device}; "
                f"call .to({str(parameters.device)!r}) first"
            )


@dataclass(frozen=True)
class Slot:
    """A weight matrix or bias vector: its name, its shape and its offset in the flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape[0] * (self.shape[1] if len(self.shape) > 1 else 1)


class DenseNetwork:
    """A fully connected network that does not own its parameters: each call receives them as one vector.

    With ``deterministic`` the library's own kernels run: threads, batch size and machine then change no bit
    of a sample's contribution. Otherwise the backend measured to be fastest on this machine runs. On a CUDA
    device the products are torch's, with or without ``deterministic``.

    Args:
        sizes: Units of each layer: inputs, every hidden layer, outputs. At least two sizes, each at least 1.
        activation: Activation of hidden layers: ``tanh``, ``sigmoid``, ``relu`` or ``identity``.
        output: Activation of the last layer: one of these or ``softmax``.
        loss: Loss of one sample: ``squared_error``, summed over outputs, or ``cross_entropy`` of a softmax or
            of sigmoids.
        targets: Target outputs for the wrong classes and for the sample's class [(-1, 1) for tanh, else (0,
            1)].
        deterministic: Make results independent of threads, batch size and machine.

    Raises:
        GeometryError: Fewer than two sizes, or a size below 1.
        UserError: An unknown activation, output or loss, or ``cross_entropy`` without softmax or sigmoid.

    Source:
        Aberdeen et al. 2000, equation 3 (squared error).

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
                f"sizes must hold at least an input and an output size, all at least 1, got {self.sizes}"
            )
        for what, name, known in (
            ("activation", activation, ACTIVATIONS),
            ("output", output, OUTPUTS),
            ("loss", loss, LOSSES),
        ):
            if name not in known:
                raise UserError(f"{what} must be one of {', '.join(known)}, got {name!r}")
        if loss == "cross_entropy" and output not in ("softmax", "sigmoid"):
            raise UserError(
                f"the loss cross_entropy needs probabilities, but the output is {output}; "
                "use the output softmax or sigmoid, or the loss squared_error"
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
        """Slots of weights ``(out, in)`` and biases ``(out,)`` of every layer, as in `torch.nn.Linear`."""
        self.size = offset
        """Length of the flat parameter vector."""

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample by the paper's count: of the forward pass, and of forward plus backward pass."""
        products = [2 * inputs * outputs for inputs, outputs in pairwise(self.sizes)]
        return sum(products), 3 * sum(products) - products[0]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name, as views of the flat vector.

        Args:
            flat: Parameters ``(size,)``, contiguous, on the CPU or a CUDA device, float32 or float64.

        Raises:
            GeometryError: The vector has another shape.
            UserError: The vector has another dtype or device, or is not contiguous.
        """
        self._check_vector("the vector", flat, flat.dtype)
        return {slot.name: flat[slot.offset :][: slot.size].view(slot.shape) for slot in self.layout}

    def add(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, gradient: Tensor | None = None
    ) -> tuple[float, int]:
        """Return the sum of losses and the number of correct samples; add the gradient to ``gradient``.

        A sample is correct if the output of its class exceeds every other output.

        Args:
            parameters: ``(size,)``, contiguous, on the CPU or a CUDA device, float32 or float64.
            inputs: ``(features, samples)`` in any strides (for rows of samples pass ``rows.t()``), of the
                parameters' dtype, uint8 or float16, on their device. Bytes are not scaled: 255 becomes 255.0.
            targets: Class numbers ``(samples,)``, or values ``(outputs, samples)``, on the same device.
            gradient: ``(size,)`` like ``parameters``; the gradient is added to it in place. With None only
                the loss is computed.

        Returns:
            The sum of losses, and the number of correct samples (0 if ``targets`` are values).

        Raises:
            GeometryError: Shapes do not fit.
            UserError: An unsupported dtype, device or memory layout, or a class number out of range.
        """
        self._check_vector("parameters", parameters, parameters.dtype)
        if gradient is not None:
            self._check_vector("the gradient", gradient, parameters.dtype)
        self._check_samples(inputs, targets)
        _check_same_device(parameters, inputs=inputs, targets=targets, gradient=gradient)
        if inputs.shape[1] == 0:
            return 0.0, 0
        return dense_add(self._spec, parameters, inputs, targets, gradient, self.deterministic)

    def outputs(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Return the network's outputs ``(outputs, samples)``.

        Args:
            parameters: As for `add`.
            inputs: As for `add`.

        Raises:
            GeometryError: Shapes do not fit.
            UserError: An unsupported dtype, device or memory layout.
        """
        self._check_vector("parameters", parameters, parameters.dtype)
        self._check_inputs(inputs)
        _check_same_device(parameters, inputs=inputs)
        return dense_outputs(self._spec, parameters, inputs)

    def _check_vector(self, name: str, flat: Tensor, dtype: torch.dtype) -> None:
        if tuple(flat.shape) != (self.size,):
            raise GeometryError(
                f"{name} of a network of {self.sizes} must have shape ({self.size},), got {tuple(flat.shape)}"
            )
        if flat.dtype != dtype or dtype not in (torch.float32, torch.float64):
            raise UserError(
                f"parameters and gradient must both be float32 or both float64; {name} is {flat.dtype}"
            )
        if flat.device.type not in _DEVICES or not flat.is_contiguous():
            raise UserError(
                f"{name} must be contiguous and on the CPU or a CUDA device, got {flat.device}; call "
                ".cpu().contiguous() first"
            )

    def _check_inputs(self, inputs: Tensor) -> None:
        if inputs.dim() != 2 or inputs.shape[0] != self.sizes[0]:
            raise GeometryError(
                f"inputs must have shape ({self.sizes[0]}, samples), got {tuple(inputs.shape)}"
                + ("; transpose them" if inputs.shape[-1:] == self.sizes[:1] else "")
            )
        if inputs.dtype not in _CONVERTED:
            raise UserError(f"inputs must be uint8, float16, float32 or float64, got {inputs.dtype}")

    def _check_samples(self, inputs: Tensor, targets: Tensor) -> None:
        self._check_inputs(inputs)
        samples, outputs = inputs.shape[1], self.sizes[-1]
        if targets.dtype.is_floating_point:
            if tuple(targets.shape) != (outputs, samples):
                raise GeometryError(
                    f"target values must have shape ({outputs}, {samples}), got {tuple(targets.shape)}"
                )
            return
        if targets.dtype in (torch.bool, torch.complex64, torch.complex128):
            raise UserError(f"targets must be class numbers or values, got {targets.dtype}")
        if tuple(targets.shape) != (samples,):
            raise GeometryError(f"class numbers must have shape ({samples},), got {tuple(targets.shape)}")
        least, most = (int(end) for end in targets.long().aminmax()) if samples else (0, 0)
        if not 0 <= least <= most < outputs:
            raise UserError(
                f"class numbers must be 0 to {outputs - 1} for a network of {outputs} outputs, "
                f"got {least} to {most}"
            )
