"""Passes over a layer of a dense network, run on matrices in memory.

Knows: the fields of a job, the small layer that each kernel must compute correctly first. Does not know:
formulas in vectors, networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import Lanes
from cotswold.kernels.compile.jobs import bits, cached_kernel, prepare_kernel
from cotswold.kernels.compile.self_test_reference import CURVES, ROUNDING, Array
from cotswold.kernels.dense.write import (
    CHAINS,
    GROUP,
    JOB,
    OPERANDS,
    PARTIALS,
    Operand,
    Operation,
    write_pass,
)
from cotswold.kernels.machine.execution import PreparedKernel, threads_for
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.operands import pointer_of
from cotswold.kernels.products.problem import NO_OVERRIDES, Overrides, processor_of


@dataclass(frozen=True)
class Layer:
    """A matrix ``(row, lane)`` with its row stride, and the row stride of the second operand.

    ``low`` and ``high`` are the target outputs for the wrong classes and for the sample's class.
    """

    rows: int
    lanes: int
    pitch: int
    other_pitch: int = 0
    low: float = 0.0
    high: float = 1.0


def padded_lanes(lanes: int) -> int:
    """Return the stride of rows padded to whole vectors."""
    return -(-lanes // CHAINS) * CHAINS


def partials_of(layer: Layer) -> Tensor:
    """Return an uninitialised buffer for the partial results of a layer, ``(group, 3, padded lanes)``."""
    return torch.empty(-(-layer.rows // GROUP), PARTIALS, padded_lanes(layer.lanes), device="cpu")


def run(
    what: Operation, layer: Layer, operands: Mapping[Operand, Tensor], overrides: Overrides = NO_OVERRIDES
) -> None:
    """Run a pass over float32 matrices, in place.

    ``sums`` and ``other`` are rows of lanes, ``biases`` and ``bias_gradient`` one number per row, ``classes``
    int32 padded to whole vectors, ``partials`` the buffer of `partials_of`.
    """
    processor = processor_of(overrides)
    threads = threads_for(layer.rows * layer.lanes, overrides.threads or torch.get_num_threads())
    cached_kernel(
        ("dense", what, layer, processor, threads),
        lambda: _prepared(kernel(what, processor), layer, threads),
    ).run(*(pointer_of(operands[one]) if one in operands else 0 for one in OPERANDS))


def kernel(what: Operation, processor: Processor) -> int:
    """Return the address of the kernel of a pass."""
    lanes = Lanes("float32", processor.lanes("float32"))
    write = partial(write_pass, what, lanes, processor.triple)
    return library.address(("dense", what.name), processor, write, partial(_passes_self_test, what))


def _prepared(address: int, layer: Layer, threads: int) -> PreparedKernel:
    fields = JOB.fill(
        -(-layer.rows // GROUP),
        {"rows": layer.rows, "lanes": layer.lanes, "pitch": layer.pitch, "other_pitch": layer.other_pitch}
        | {"partial_pitch": padded_lanes(layer.lanes), "low": bits(layer.low), "high": bits(layer.high)},
    )
    return prepare_kernel(address, fields, JOB.places(*OPERANDS), GROUP * CHAINS, ("float32", threads))


def _passes_self_test(what: Operation, address: int) -> bool:
    """True if a kernel computes a small layer as NumPy does: two groups, whole vectors, a remainder."""
    layer = Layer(GROUP + 5, 4 * CHAINS + 7, 5 * CHAINS + 3, 5 * CHAINS, -0.5, 0.75)
    trial = _SelfTestCase(what, layer)
    _prepared(address, layer, 1).run(*(pointer_of(one) for one in trial.operands))
    return trial.passes()


class _SelfTestCase:
    """Operands and expected results of a self-test."""

    def __init__(self, what: Operation, layer: Layer) -> None:
        self.operation, self.layer = what, layer
        shape = layer.rows, layer.lanes
        self._sums, self._beside = (
            self_test_reference.sample_values(*shape),
            self_test_reference.sample_values(*shape, seed=1) / 2,
        )
        self._biases = self_test_reference.sample_values(layer.rows, seed=2) / 4
        self._classes = np.arange(layer.lanes) * 31 % layer.rows
        self.sums = self_test_reference.as_tensor(np.zeros((layer.rows, layer.pitch)), "float32")
        self.sums[:, : layer.lanes] = torch.from_numpy(self._sums)
        self.other_operand = self_test_reference.as_tensor(
            np.zeros((layer.rows, layer.other_pitch)), "float32"
        )
        self.other_operand[:, : layer.lanes] = torch.from_numpy(self._beside)
        self.biases = self_test_reference.as_tensor(self._biases, "float32")
        self.bias_gradient = torch.ones(layer.rows, device="cpu")
        self.classes = torch.full((padded_lanes(layer.lanes),), -1, dtype=torch.int32, device="cpu")
        self.classes[: layer.lanes] = torch.from_numpy(self._classes)
        self.partials = partials_of(layer)
        self.partials[:, 0, : layer.lanes] = torch.arange(1.0, layer.lanes + 1) / layer.lanes
        self._factors = self.partials[:, 0, : layer.lanes].double().numpy().repeat(GROUP, 0)[: layer.rows]

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Operands in the order of `OPERANDS`."""
        return self.sums, self.other_operand, self.biases, self.bias_gradient, self.classes, self.partials

    def passes(self) -> bool:
        """True if all results are as expected."""
        left, losses = self._expected()
        same = partial(self_test_reference.is_close, error=ROUNDING["float32"])
        right = same(self.sums[:, : self.layer.lanes], left)
        right &= not bool(self.sums[:, self.layer.lanes :].any())
        if self.operation.sums_rows:
            right &= same(self.bias_gradient, 1 + left.sum(1))
        if losses is not None:
            right &= same(self.partials[:, 0, : self.layer.lanes], losses)
        if losses is not None and not self.operation.values:
            rows = self._sums + self._biases[:, None]
            own = rows[self._classes, np.arange(self.layer.lanes)]
            rows[self._classes, np.arange(self.layer.lanes)] = -np.inf
            right &= same(self.partials[:, 1, : self.layer.lanes].amax(0), own)
            right &= same(self.partials[:, 2, : self.layer.lanes].amax(0), rows.max(0))
        return right

    def _expected(self) -> tuple[Array, Array | None]:
        """Expected values in place of the sums, and expected partial losses."""
        what, layer, rows = self.operation, self.layer, self._sums + self._biases[:, None]
        wanted = np.full(rows.shape, layer.low)
        wanted[self._classes, np.arange(layer.lanes)] = layer.high
        if what.step == "activate":
            return CURVES[what.activation](rows), None
        if what.step == "slope":
            return self._sums * self._slope(self._beside), None
        if what.step == "softmax_slopes":
            return self._sums * self._factors - wanted, None
        if what.step == "softmax":
            groups = [rows[first : first + GROUP] for first in range(0, layer.rows, GROUP)]
            powers = [np.exp(one - one.max(0)) for one in groups]
            return (
                np.concatenate(powers) if what.slopes else self._sums,
                np.stack([one.sum(0) for one in powers]),
            )
        outputs = CURVES[what.activation](rows)
        errors = outputs - (self._beside if what.values else wanted)
        losses = np.stack([(errors[i : i + GROUP] ** 2).sum(0) for i in range(0, layer.rows, GROUP)])
        return 2 * errors * self._slope(outputs) if what.slopes else self._sums, losses

    def _slope(self, outputs: Array) -> Array:
        slopes: dict[str, Array] = {
            "tanh": 1 - outputs**2,
            "sigmoid": outputs * (1 - outputs),
            "relu": (outputs > 0).astype(np.float64),
            "identity": np.ones_like(outputs),
        }
        return slopes[self.operation.activation]
