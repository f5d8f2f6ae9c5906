"""Vectors in the memory of this process, and a function of them.

Knows: tensors, the commands. Does not know: other processes, methods, what is minimised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.optim.objective import Evaluation
from cotswold.optim.vectors.base import Combine, Command, Dot, Drop, Multiply
from cotswold.optim.vectors.blocks import combine, dot

TYPES = (torch.float32, torch.float64)


class TensorVectors:
    """Vectors that lie in tensors: one, or a list of them (the parameters of a network), each a part.

    The first vector, ``name``, is the very memory of ``parts``; the others are made as they are commanded.
    A dot adds up the parts in their order: those who cut a vector alike get the same bits.
    """

    def __init__(
        self,
        parts: Tensor | Sequence[Tensor],
        name: str = "x",
        counted: Sequence[bool] | None = None,
        pieces: Sequence[int] | None = None,
    ) -> None:
        """``counted``: which parts the dots are over; the others are counted elsewhere. ``pieces``: numbers
        in each piece of a part that a dot adds up apart, as if it were a part; all by default.

        Raises UserError for what is neither float32 nor float64, is mixed, or is not contiguous."""
        given = [parts] if isinstance(parts, Tensor) else list(parts)
        _check(given)
        self._vectors = {name: [part.detach().view(-1) for part in given]}
        self._like = self._vectors[name]
        self._counted = [True] * len(given) if counted is None else list(counted)
        self._pieces = None if pieces is None else list(pieces)

    def __getitem__(self, name: str) -> list[Tensor]:
        """The parts of a vector, flat; who writes into them changes it."""
        if name not in self._vectors:
            raise KeyError(f"no vector {name!r}; there are {', '.join(sorted(self._vectors))}")
        return self._vectors[name]

    def make(self, name: str) -> list[Tensor]:
        """The parts of a vector, made of zeros where it is new."""
        if name not in self._vectors:
            self._vectors[name] = [torch.zeros_like(part) for part in self._like]
        return self._vectors[name]

    @property
    def epsilon(self) -> float:
        """From 1 to the next number."""
        return float(torch.finfo(self._like[0].dtype).eps)

    @property
    def names(self) -> tuple[str, ...]:
        """Which vectors there are."""
        return tuple(self._vectors)

    @property
    def size(self) -> int:
        """How many numbers a vector has here."""
        return sum(part.numel() for part in self._like)

    @torch.no_grad()
    def run(self, commands: Sequence[Command]) -> list[float]:
        """Do as commanded; the dots, in their order. Raises KeyError for a name that no vector has."""
        dots = []
        for command in commands:
            match command:
                case Combine(out, terms):
                    sources = [(factor, self[name]) for factor, name in terms]
                    for number, part in enumerate(self.make(out)):
                        combine(part, [(factor, parts[number]) for factor, parts in sources])
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
            if counted:
                pieces = self._pieces or [a.numel()]
                for piece, other in zip(torch.split(a, pieces), torch.split(b, pieces), strict=True):
                    total += dot(piece, other)
        return total


Function = Callable[[Sequence[Tensor], Sequence[Tensor] | None], float]
"""The value at the parts of a point; its gradient is written into the other parts unless that is None."""


class FunctionObjective:
    """A function of tensors as an objective: all of its patterns, whatever is asked for."""

    def __init__(self, vectors: TensorVectors, function: Function, samples: int = 1) -> None:
        """``samples``: over how many patterns the function is a mean."""
        self._vectors, self._function, self._samples = vectors, function, samples

    def part(self, patterns: str, fraction: float) -> str:
        """The function has no parts: all."""
        return patterns

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        patterns: str | None = None,
    ) -> Evaluation:
        """The value at a vector, the dots of ``after``."""
        self._vectors.run(before)
        into = None if gradient is None else self._vectors.make(gradient)
        value = float(self._function(self._vectors[at], into))
        return Evaluation(value, tuple(self._vectors.run(after)), "all", self._samples)


def _check(parts: Sequence[Tensor]) -> None:
    if not parts:
        raise UserError("there is nothing to minimise over: give at least one tensor")
    for number, part in enumerate(parts):
        if part.dtype not in TYPES:
            raise UserError(f"tensor {number} is of {part.dtype}: a vector is of float32 or float64")
        if part.dtype != parts[0].dtype:
            raise UserError(
                f"tensor {number} is of {part.dtype}, the first of {parts[0].dtype}: a vector is of one type"
            )
        if not part.is_contiguous():
            raise UserError(f"tensor {number} is not contiguous: give tensor.contiguous()")
