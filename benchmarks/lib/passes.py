"""The passes of the selectivity test, compared with the forward pass alone.

Knows: a network of a recipe, the two passes and their times. Does not know: sources, accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cotswold.analysis import StackLayers, top_layers
from cotswold.analysis.layers import MapName
from cotswold.analysis.selectivity.scores import selectivity
from cotswold.bench.measure import Document, rates, ratios, rounded_all
from cotswold.recipe import Recipe
from cotswold.training import build_stacks

LEAST_ACCEPTED = 0.9


@dataclass
class _Images:
    """Random images in memory, positives first, as `evaluate` streams them; records the time of each pass."""

    batches: list[tuple[Tensor, Tensor]]
    seconds: list[float] = field(default_factory=list)

    def __call__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start = time.perf_counter()
        yield from self.batches
        self.seconds.append(time.perf_counter() - start)


def evaluation_passes(recipe: Recipe, part: MapName, count: int, rounds: int) -> Document:
    """Return images per second of forward alone and of each pass, round by round, on the same images."""
    network = build_stacks(recipe).eval()
    respond = StackLayers(network, top_layers(network, part))
    images = _Images(_drawn(recipe, count))
    count = sum(len(batch) for batch, _ in images.batches)
    seconds: dict[str, list[float]] = {"forward alone": [], "first pass": [], "second pass": []}
    _forward(respond, images)
    for _ in range(rounds):
        images.seconds.clear()
        _forward(respond, images)
        selectivity(respond, images)
        for name, taken in zip(seconds, images.seconds, strict=True):
            seconds[name].append(taken)
    alone = seconds["forward alone"]
    passes = [name for name in seconds if name != "forward alone"]
    return {
        "recipe": recipe.name,
        "layers": [str(layer) for layer in respond.layers],
        "neurons": sum(responses[0].numel() for _, responses in respond(images.batches[0][0])),
        "images": count,
        "batch": recipe.training.batch_size,
        "least_accepted": LEAST_ACCEPTED,
        "samples_per_second": {name: rates(count, taken).as_dict() for name, taken in seconds.items()},
        "of_forward": {name: ratios(alone, seconds[name]).as_dict() for name in passes},
        "seconds": {name: rounded_all(taken) for name, taken in seconds.items()},
    }


def _forward(respond: StackLayers, images: _Images) -> None:
    with torch.no_grad():
        for batch, _ in images():
            for _name, _responses in respond(batch):
                pass


def _drawn(recipe: Recipe, count: int) -> list[tuple[Tensor, Tensor]]:
    generator, batch, shape = torch.Generator().manual_seed(0), recipe.training.batch_size, recipe.input
    batches = max(2, -(-count // batch))
    size = (shape.height, shape.width, shape.channels, batch)
    return [
        (
            torch.randn(size, generator=generator).permute(3, 2, 0, 1),
            torch.full((batch,), number < batches // 2),
        )
        for number in range(batches)
    ]
