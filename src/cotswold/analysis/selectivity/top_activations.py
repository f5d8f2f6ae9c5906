"""Images with the largest and smallest responses of given neurons, found in one pass.

Knows: a running list of the largest and smallest responses. Does not know: the content of images.
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
class Activation:
    """An image, by its index in the pass, and a neuron's response to it."""

    image: int
    response: float


@dataclass(frozen=True)
class TopActivations:
    """Images with the largest responses of each neuron, descending, and with the smallest, ascending."""

    highest: tuple[tuple[Activation, ...], ...]
    lowest: tuple[tuple[Activation, ...], ...]


def top_activations(
    respond: Respond, images: Iterable[Tensor], neurons: Sequence[tuple[str, Position]], count: int = 8
) -> TopActivations:
    """Return the ``count`` largest and smallest responses of each neuron, given by layer and position."""
    best = _RunningExtremes(len(neurons), count)
    worst = _RunningExtremes(len(neurons), count)
    seen = 0
    for batch in images:
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
    return TopActivations(best.ranked(1), worst.ranked(-1))


def strongest_means(
    respond: Respond,
    passes: Callable[[], Iterable[Tensor]],
    neurons: Sequence[tuple[str, Position]],
    count: int = 16,
) -> Tensor:
    """Return the mean of the images with the largest responses of each neuron, ``(neuron, channel, y, x)``.

    Takes two passes over the same images: one to find the images, one to sum them.
    """
    found = top_activations(respond, passes(), neurons, count)
    wanted = [{one.image for one in most} for most in found.highest]
    means: Tensor | None = None
    first = 0
    for batch in passes():
        if means is None:
            means = batch.new_zeros(len(neurons), *batch.shape[1:], device="cpu")
        for neuron, images in enumerate(wanted):
            here = [image - first for image in images if first <= image < first + len(batch)]
            if here:
                means[neuron] += batch[here].sum(0).cpu() / len(images)
        first += len(batch)
    if means is None:
        raise SourceError("a stimulus needs at least one image to start from; give unlabelled images")
    return means


class _RunningExtremes:
    """The largest values so far, per row."""

    def __init__(self, rows: int, count: int) -> None:
        self._count = count
        self._values, self._images = torch.empty(rows, 0), torch.empty(rows, 0, dtype=torch.int64)

    def add(self, values: Tensor, first: int) -> None:
        """Add values ``(row, image)`` of images numbered from ``first``."""
        numbers = torch.arange(first, first + values.shape[1]).expand_as(values)
        values, numbers = torch.cat([self._values, values], 1), torch.cat([self._images, numbers], 1)
        order = values.argsort(dim=1, descending=True, stable=True)[:, : self._count]
        self._values, self._images = values.gather(1, order), numbers.gather(1, order)

    def ranked(self, sign: int) -> tuple[tuple[Activation, ...], ...]:
        """Return the lists, with values times ``sign``."""
        both = zip(self._images.tolist(), self._values.tolist(), strict=True)
        return tuple(tuple(Activation(p, sign * v) for p, v in zip(ps, vs, strict=True)) for ps, vs in both)
