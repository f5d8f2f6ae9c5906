"""Vectors in the memory of this process, and a function of them.

Knows: tensors, the commands. Does not know: other processes, methods, the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.optim.objective import Evaluation
from cotswold.optim.vectors.base import Combine, Command, Dot, Drop, Multiply, Vectors
from cotswold.optim.vectors.deterministic_blas import axpby, dot

TYPES = (torch.float32, torch.float64)


class TensorVectors:
    """Named vectors stored in tensors: one tensor, or a list of them (the parameters of a network).

    The first vector shares memory with `parts`; commands create the others. A dot adds up the parts in order:
    vectors that are split alike give the same bits.

    Args:
        parts: the tensors of the first vector, any shapes, contiguous, all float32 or all float64.
        name: name of the first vector.
        counted: for each part, whether dots include it; another process counts the others (default: all).
        pieces: numbers of elements of the pieces of each part that a dot sums separately, as if each were a
            part (default: one piece per part).

    Raises:
        UserError: if a tensor is neither float32 nor float64, the types are mixed, or one is not contiguous.
    """

    def __init__(
        self,
        parts: Tensor | Sequence[Tensor],
        name: str = "x",
        counted: Sequence[bool] | None = None,
        pieces: Sequence[int] | None = None,
    ) -> None:
        given = [parts] if isinstance(parts, Tensor) else list(parts)
        _check(given)
        self._vectors = {name: [part.detach().view(-1) for part in given]}
        self._template = self._vectors[name]
        self._counted = [True] * len(given) if counted is None else list(counted)
        self._pieces = None if pieces is None else list(pieces)

    def __getitem__(self, name: str) -> list[Tensor]:
        """Return the parts of a vector, flattened; writing into them changes the vector."""
        if name not in self._vectors:
            raise KeyError(f"no vector {name!r}; existing vectors: {', '.join(sorted(self._vectors))}")
        return self._vectors[name]

    def make(self, name: str) -> list[Tensor]:
        """Return the parts of a vector; create it as zeros if it does not exist.

        Args:
            name: name of the vector.
        """
        if name not in self._vectors:
            self._vectors[name] = [torch.zeros_like(part) for part in self._template]
        return self._vectors[name]

    @property
    def epsilon(self) -> float:
        """Relative precision: the distance from 1 to the next number."""
        return float(torch.finfo(self._template[0].dtype).eps)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the vectors."""
        return tuple(self._vectors)

    @property
    def size(self) -> int:
        """Number of elements of a vector in this process."""
        return sum(part.numel() for part in self._template)

    @torch.no_grad()
    def run(self, commands: Sequence[Command]) -> list[float]:
        """Run commands in order.

        Args:
            commands: the commands of one round.

        Returns:
            The results of the `Dot` commands, in order.

        Raises:
            KeyError: if a command reads a vector that does not exist.
        """
        dots = []
        for command in commands:
            match command:
                case Combine(out, terms):
                    sources = [(factor, self[name]) for factor, name in terms]
                    for number, part in enumerate(self.make(out)):
                        axpby(part, [(factor, parts[number]) for factor, parts in sources])
                case Multiply(out, left, right):
                    pairs = list(zip(self[left], self[right], strict=True))
                    for part, (a, b) in zip(self.make(out), pairs, strict=True):
                        torch.mul(a, b, out=part)
                case Dot(left, right):
                    dots.append(self._dot(self[left], self[right]))
                case Drop(name):
                    self._vectors.pop(name, None)
        return dots

    def _dot(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
        total = 0.0
        for a, b, counted in zip(left, right, self._counted, strict=True):
            if not counted:
                continue
            if self._pieces is None or len(self._pieces) == 1:  # a split would take as long as a short dot
                total += dot(a, b)
                continue
            for piece, other in zip(torch.split(a, self._pieces), torch.split(b, self._pieces), strict=True):
                total += dot(piece, other)
        return total


class LocalVectors(Vectors, Protocol):
    """Named vectors whose parts are tensors of this process."""

    def __getitem__(self, name: str) -> list[Tensor]:
        """Return the parts of a vector, flattened."""
        ...

    def make(self, name: str) -> list[Tensor]:
        """Return the parts of a vector; create it as zeros if it does not exist."""
        ...


Function = Callable[[Sequence[Tensor], Sequence[Tensor] | None], float]
"""Computes the value at the parts of a point, and writes the gradient into the other parts unless they are
None.
"""


class FunctionObjective:
    """A function of tensors as an objective; every evaluation covers all samples.

    Args:
        vectors: the vectors that the methods work on.
        function: receives the parts of the point and the parts of the gradient (or None); writes the gradient
            and returns the value.
        samples: number of samples that the function averages over.
    """

    def __init__(self, vectors: LocalVectors, function: Function, samples: int = 1) -> None:
        self._vectors, self._function, self._samples = vectors, function, samples

    def part(self, sample_set: str, fraction: float) -> str:
        """Return `sample_set`: a function has no subsets.

        Args:
            sample_set: name of a sample set.
            fraction: ignored.
        """
        return sample_set

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        sample_set: str | None = None,
    ) -> Evaluation:
        """Compute the value at a vector, and its gradient.

        Args:
            at: name of the vector to evaluate at.
            gradient: name of the vector that receives the gradient; None for the value alone.
            before: commands to run first.
            after: commands to run last.
            sample_set: ignored; all samples are evaluated.

        Returns:
            The value and the dots of `after`.
        """
        self._vectors.run(before)
        into = None if gradient is None else self._vectors.make(gradient)
        value = float(self._function(self._vectors[at], into))
        return Evaluation(value, tuple(self._vectors.run(after)), "all", self._samples)


def _check(parts: Sequence[Tensor]) -> None:
    if not parts:
        raise UserError("a vector needs at least one tensor, got none")
    for number, part in enumerate(parts):
        if part.dtype not in TYPES:
            raise UserError(f"a vector must be float32 or float64; tensor {number} is {part.dtype}")
        if part.dtype != parts[0].dtype:
            raise UserError(
                f"all tensors of a vector must have one type; tensor {number} is {part.dtype}, "
                f"tensor 0 is {parts[0].dtype}"
            )
        if not part.is_contiguous():
            raise UserError(f"tensor {number} is not contiguous; pass tensor.contiguous()")
