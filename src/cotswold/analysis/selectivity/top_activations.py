"""The pictures that excite given neurons most and least, found in one pass.

Knows: a running list of the best so far. Does not know: what pictures show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cotswold.analysis.selectivity.neurons import Position, row_of, rows
from cotswold.analysis.selectivity.scores import Respond
from cotswold.errors import SourceError


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


def strongest_means(
    respond: Respond,
    passes: Callable[[], Iterable[Tensor]],
    neurons: Sequence[tuple[str, Position]],
    count: int = 16,
) -> Tensor:
    """For each neuron the mean of the ``count`` pictures that excite it most, ``(neuron, channel, y, x)``.

    Two passes over the same pictures: one finds them, one adds them up.
    """
    found = extremes(respond, passes(), neurons, count)
    wanted = [{one.picture for one in most} for most in found.most]
    means: Tensor | None = None
    first = 0
    for batch in passes():
        if means is None:
            means = batch.new_zeros(len(neurons), *batch.shape[1:], device="cpu")
        for neuron, pictures in enumerate(wanted):
            here = [picture - first for picture in pictures if first <= picture < first + len(batch)]
            if here:
                means[neuron] += batch[here].sum(0).cpu() / len(pictures)
        first += len(batch)
    if means is None:
        raise SourceError("there is no picture to begin a stimulus with; give unlabelled pictures")
    return means


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
