"""What an evaluation of strategy `batch` has to do: patterns, portions, vectors.

Knows: layers, counts, how long a portion takes on a device. Does not know: clusters, messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from cotswold.batch.core.permutation import Dealing
from cotswold.errors import ClusterError
from cotswold.geometry import Grid
from cotswold.recipe import Recipe, schema
from cotswold.simulate.actions import Compute
from cotswold.simulate.device import RateShape, Speed
from cotswold.simulate.layers import LayerWork
from cotswold.simulate.work import layer_work

Travel = Literal["bunyip", "sandblaster"]


@dataclass(frozen=True)
class BatchWork:
    """Value and gradient of layers over a whole training set, or the fraction of it that is counted."""

    layers: LayerWork
    """With a portion as their batch."""
    patterns: int
    fraction: float = 1.0
    travel: Travel = "bunyip"
    servers: int = 1
    """Parameter servers, where there are several workers."""
    sample_bytes: int = 0
    """A pattern as it is kept."""
    biases: bool = True
    """Whether every neuron has one, which is a parameter."""

    @property
    def portion(self) -> int:
        """Patterns of a portion; the last may have fewer."""
        return self.layers.images

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """Patterns of every portion that is counted, the largest first."""
        dealing = Dealing(0, self.patterns, self.portion)
        portions = dealing.drawn(0, self.fraction)
        return tuple(sorted(map(dealing.samples, portions), reverse=True))

    @property
    def samples(self) -> int:
        """Patterns that are counted."""
        return sum(self.counted)

    @cached_property
    def parameters(self) -> int:
        """The length of a vector."""
        biases = 0
        for layer in self.layers.layers if self.biases else ():
            if layer.kind != "pool":
                biases += layer.output.size if layer.kind in ("local", "full") else layer.maps
        return self.layers.parameters + biases

    @property
    def vector_bytes(self) -> int:
        """Of parameters, a direction, a gradient."""
        return self.parameters * self.layers.value_bytes

    @property
    def pattern_flops(self) -> int:
        """FLOPs of value and gradient of a pattern (Aberdeen et al. 2000, section 6.2): n_p (4 n_i n_h +
        6 n_h n_o) for one hidden layer."""
        return self.layers.update_flops // self.portion

    @property
    def flops(self) -> int:
        """FLOPs of the evaluation."""
        return self.samples * self.pattern_flops

    def portion_seconds(self, speed: Speed) -> float:
        """What a device takes for a whole portion: by the rate measured for it, or product by product."""
        flops = self.portion * self.pattern_flops
        first = self.layers.layers[0]
        shape = RateShape(first.plane.fan_in, first.maps, self.portion)
        measured = speed.gradient(shape, flops)
        if measured is not None:
            return measured
        (program,) = self.layers.programs(Grid(1, 1), speed)
        actions = (action for action in program if isinstance(action, Compute))
        return sum(action.seconds for action in actions if action.kind != "update")

    def worker_bytes(self, workers: int) -> int:
        """Memory of a worker: its vectors, the maps of a portion, its share of the patterns."""
        vectors = 3 if self.travel == "bunyip" else 2
        maps = self.layers.rank_bytes(Grid(1, 1)) - self.layers.parameters * self.layers.value_bytes
        return vectors * self.vector_bytes + maps + -(-self.patterns // workers) * self.sample_bytes


def batch_work(recipe: Recipe, patterns: int, outputs: int) -> BatchWork:
    """An evaluation of a recipe with strategy `batch` on so many patterns and outputs.

    Raises ClusterError for other strategies and for what `layer_work` refuses.
    """
    training = recipe.training
    if not isinstance(training, schema.BatchTraining):
        raise ClusterError(f"{recipe.name} is {training.strategy}; evaluations are those of strategy batch")
    if patterns < 1 or outputs < 1:
        raise ClusterError(
            f"{patterns} patterns and {outputs} outputs are no training set; give at least 1 of each"
        )
    return BatchWork(
        layers=layer_work(recipe, outputs),
        patterns=patterns,
        fraction=training.fraction,
        travel=recipe.cluster.travel,
        servers=recipe.cluster.servers,
        sample_bytes=recipe.input.size
        * {"uint8": 1, "float16": 2}.get(str(getattr(recipe.data, "dtype", "")), 4),
    )
