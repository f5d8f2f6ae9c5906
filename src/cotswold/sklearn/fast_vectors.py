"""Vectors in memory for short vectors: few calls of torch in a round.

Knows: the commands of a method. Does not know: methods, objectives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cotswold.optim import Combine, Command, Dot, TensorVectors


class FastVectors(TensorVectors):
    """Named vectors of one tensor each, with the dots and sums of BLAS.

    A round of L-BFGS has some 45 dots. For a few thousand elements `TensorVectors` takes longer than the
    gradient, because its sums have the same bits for any number of threads; these sums do not.
    """

    @torch.no_grad()
    def run(self, commands: Sequence[Command]) -> list[float]:
        """Run commands in order, as `TensorVectors.run`."""
        found: list[Tensor] = []
        wide: dict[str, Tensor] = {}  # float64 copies since the last change of a vector
        for command in commands:
            match command:
                case Dot(left, right):
                    for name in (left, right):
                        if name not in wide:
                            wide[name] = self[name][0].double()
                    found.append(torch.dot(wide[left], wide[right]))
                case Combine(out, terms):
                    wide.clear()
                    self._combine(out, terms)
                case _:
                    wide.clear()
                    super().run([command])
        return torch.stack(found).tolist() if found else []

    def _combine(self, out: str, terms: Sequence[tuple[float, str]]) -> None:
        target = self.make(out)[0]
        if not terms:
            target.zero_()
            return
        (factor, first), *others = terms
        total = self[first][0] * factor
        for factor, name in others:
            total.add_(self[name][0], alpha=factor)
        target.copy_(total)
