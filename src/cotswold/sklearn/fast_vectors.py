"""Short vectors in the rows of one matrix: few calls in a round.

Knows: the commands of a method, NumPy's and SciPy's BLAS. Does not know: methods, objectives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.blas import daxpy
from torch import Tensor

from cotswold.optim import Combine, Command, Dot, Drop, Multiply

_ROWS = 8
"""Rows of the first matrix; it doubles when they are used up."""


class FastVectors:
    """Named vectors in float64, the rows of a matrix.

    A round of L-BFGS has some 45 dots: here one product of the matrix with the few vectors that most of them
    share. For a few thousand elements `TensorVectors` takes longer than the gradient, because its sums have
    the same bits for any number of threads; these sums do not.

    Args:
        first: The first vector, ``x``, float32 or float64; it is copied.
    """

    def __init__(self, first: Tensor) -> None:
        self.epsilon = float(torch.finfo(first.dtype).eps)
        self._matrix = np.zeros((_ROWS, first.numel()))
        self._rows: dict[str, int] = {}
        self._free = list(range(_ROWS))
        self.make("x")[0].copy_(first.detach())

    @property
    def size(self) -> int:
        """Number of elements of a vector."""
        return self._matrix.shape[1]

    def __getitem__(self, name: str) -> list[Tensor]:
        """Return the one part of a vector; writing into it changes the vector until another one is made."""
        return [torch.from_numpy(self._matrix[self._rows[name]])]

    def make(self, name: str) -> list[Tensor]:
        """Return the one part of a vector; create it as zeros if it does not exist.

        Args:
            name: Name of the vector.
        """
        if name not in self._rows:
            if not self._free:
                self._free = list(range(len(self._matrix), 2 * len(self._matrix)))
                self._matrix = np.concatenate([self._matrix, np.zeros_like(self._matrix)])
            self._rows[name] = self._free.pop(0)
            self._row(name)[:] = 0.0
        return self[name]

    def run(self, commands: Sequence[Command]) -> list[float]:
        """Run commands in order; return the results of the `Dot` commands."""
        found: list[float] = []
        waiting: list[Dot] = []
        for command in commands:
            if isinstance(command, Dot):
                waiting.append(command)
                continue
            found += self._dots(waiting)
            waiting = []
            match command:
                case Combine(out, terms):
                    self._combine(out, terms)
                case Multiply(out, left, right):
                    product = self._row(left) * self._row(right)
                    self.make(out)
                    self._row(out)[:] = product
                case Drop(name):
                    if name in self._rows:
                        self._free.append(self._rows.pop(name))
        return found + self._dots(waiting)

    def _row(self, name: str) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self._matrix[self._rows[name]]
        return found

    def _dots(self, wanted: Sequence[Dot]) -> list[float]:
        """Compute dots by one product with the vectors on their right."""
        if len(wanted) < 4:
            return [float(self._row(dot.left) @ self._row(dot.right)) for dot in wanted]
        rights = list(dict.fromkeys(dot.right for dot in wanted))
        columns = {name: number for number, name in enumerate(rights)}
        with np.errstate(invalid="ignore", over="ignore"):  # rows that no dot asks for may be infinite
            table = (
                self._matrix[: max(self._rows.values()) + 1]
                @ self._matrix[[self._rows[name] for name in rights]].T
            )
        return [float(table[self._rows[dot.left], columns[dot.right]]) for dot in wanted]

    def _combine(self, out: str, terms: Sequence[tuple[float, str]]) -> None:
        self.make(out)
        target = self._row(out)
        if not terms:
            target[:] = 0.0
            return
        (factor, first), *others = terms
        if first == out and factor == 1.0 and len(others) == 1 and others[0][1] != out:
            daxpy(self._row(others[0][1]), target, a=others[0][0])  # in place
            return
        total = self._row(first) * factor
        for factor, name in others:
            total = daxpy(self._row(name), total, a=factor)
        target[:] = total
