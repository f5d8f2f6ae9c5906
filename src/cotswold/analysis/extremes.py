"""The pictures that excite given neurons most and least, found in one pass.

Knows: a running list of the best so far. Does not know: what pictures show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cotswold.analysis.neurons import Position, row_of, rows
from cotswold.analysis.selectivity import Respond


@dataclass(frozen=True)
class Extreme:
    """A picture, by its place in the pass, and what the neuron answers to it."""

    picture: int
    response: float


@dataclass(frozen=True)
class Extremes:
    """For each neuron asked about: the pictures that excite it most, the strongest first, and least."""

    most: tuple[tuple[Extreme, ...], ...]
    least: tuple[tuple[Extreme, ...], ...]


def extremes(
    respond: Respond, pictures: Iterable[Tensor], neurons: Sequence[tuple[str, Position]], count: int = 8
) -> Extremes:
    """The ``count`` strongest and weakest answers of each of ``neurons``, named by layer and position."""
    best = _Running(len(neurons), count)
    worst = _Running(len(neurons), count)
    seen = 0
    for batch in pictures:
        answers = torch.empty(len(neurons), len(batch))
        with torch.no_grad():
            for name, responses in respond(batch):
                shape = responses.shape[1:]
                for index, (layer, position) in enumerate(neurons):
                    if layer == name:
                        answers[index] = rows(responses)[row_of(position, shape)].float().cpu()
        best.add(answers, seen)
        worst.add(-answers, seen)
        seen += len(batch)
    return Extremes(best.found(1), worst.found(-1))


class _Running:
    """The greatest values seen so far, per row."""

    def __init__(self, rows: int, count: int) -> None:
        self._count = count
        self._values, self._pictures = torch.empty(rows, 0), torch.empty(rows, 0, dtype=torch.int64)

    def add(self, values: Tensor, first: int) -> None:
        """Take in values ``(row, image)`` of pictures numbered from ``first``."""
        numbers = torch.arange(first, first + values.shape[1]).expand_as(values)
        values, numbers = torch.cat([self._values, values], 1), torch.cat([self._pictures, numbers], 1)
        order = values.argsort(dim=1, descending=True, stable=True)[:, : self._count]
        self._values, self._pictures = values.gather(1, order), numbers.gather(1, order)

    def found(self, sign: int) -> tuple[tuple[Extreme, ...], ...]:
        """What is on the lists, with values times ``sign``."""
        both = zip(self._pictures.tolist(), self._values.tolist(), strict=True)
        return tuple(tuple(Extreme(p, sign * v) for p, v in zip(ps, vs, strict=True)) for ps, vs in both)
