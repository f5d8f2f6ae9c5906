"""The work of an evaluation of strategy `batch`: samples, portions, vectors.

Knows: layers, counts, how long a portion takes on a device. Does not know: clusters, messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from cotswold.errors import ClusterError
from cotswold.geometry import Grid
from cotswold.recipe import Recipe, schema
from cotswold.shards.core.permutation import PortionPermutation
from cotswold.simulate.hardware.device import DeviceModel, RateShape
from cotswold.simulate.timeline.actions import Compute
from cotswold.simulate.workloads.layers import LayerWork
from cotswold.simulate.workloads.work import layer_work

PointTransfer = Literal["bunyip", "sandblaster"]


@dataclass(frozen=True)
class BatchWork:
    """Value and gradient of layers over a whole training set, or over a fraction of it.

    Args:
        layers: The layers, with a portion as their batch.
        samples: Number of training samples.
        sample_fraction: Fraction of the samples that is evaluated.
        point_transfer: Way to distribute vectors.
        servers: Number of parameter servers, if there are several workers.
        sample_bytes: Bytes of a stored sample.
        biases: True if every neuron has a bias, which counts as a parameter.
    """

    layers: LayerWork
    samples: int
    sample_fraction: float = 1.0
    point_transfer: PointTransfer = "bunyip"
    servers: int = 1
    sample_bytes: int = 0
    biases: bool = True

    @property
    def portion(self) -> int:
        """Samples of a portion; the last may have fewer."""
        return self.layers.images

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """Samples of every evaluated portion, the largest first."""
        dealing = PortionPermutation(0, self.samples, self.portion)
        portions = dealing.draw(0, self.sample_fraction)
        return tuple(sorted(map(dealing.size_of, portions), reverse=True))

    @property
    def evaluated_samples(self) -> int:
        """Number of evaluated samples."""
        return sum(self.counted)

    @cached_property
    def parameters(self) -> int:
        """Length of a vector."""
        biases = 0
        for layer in self.layers.layers if self.biases else ():
            if layer.kind != "pool":
                biases += layer.output.size if layer.kind in ("local", "full") else layer.maps
        return self.layers.parameters + biases

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector: parameters, a direction, a gradient."""
        return self.parameters * self.layers.value_bytes

    @property
    def sample_flops(self) -> int:
        """FLOPs of value and gradient of a sample (Aberdeen et al. 2000, section 6.2).

        For one hidden layer: n_p (4 n_i n_h + 6 n_h n_o).
        """
        return self.layers.update_flops // self.portion

    @property
    def flops(self) -> int:
        """FLOPs of the evaluation."""
        return self.evaluated_samples * self.sample_flops

    def portion_seconds(self, speed: DeviceModel) -> float:
        """Return a device's seconds for a whole portion, by a measured rate, or product by product.

        Args:
            speed: The device.
        """
        flops = self.portion * self.sample_flops
        first = self.layers.layers[0]
        shape = RateShape(first.plane.fan_in, first.maps, self.portion)
        measured = speed.gradient(shape, flops)
        if measured is not None:
            return measured
        (program,) = self.layers.programs(Grid(1, 1), speed)
        actions = (action for action in program if isinstance(action, Compute))
        return sum(action.seconds for action in actions if action.kind != "update")

    def worker_bytes(self, workers: int) -> int:
        """Return the memory of a worker in bytes: its vectors, a portion's maps, its share of the samples.

        Args:
            workers: Number of workers.
        """
        vectors = 3 if self.point_transfer == "bunyip" else 2
        maps = self.layers.rank_bytes(Grid(1, 1)) - self.layers.parameters * self.layers.value_bytes
        return vectors * self.vector_bytes + maps + -(-self.samples // workers) * self.sample_bytes


def batch_work(recipe: Recipe, samples: int, outputs: int) -> BatchWork:
    """Return the evaluation of a recipe with strategy `batch`.

    Args:
        recipe: The recipe.
        samples: Number of training samples.
        outputs: Number of outputs.

    Returns:
        The evaluation.

    Raises:
        ClusterError: The recipe has another strategy, a count is less than 1, or `layer_work` refuses the
            recipe.
    """
    training = recipe.training
    if not isinstance(training, schema.BatchTraining):
        raise ClusterError(f"{recipe.name} has strategy {training.strategy}; evaluations need strategy batch")
    if samples < 1 or outputs < 1:
        raise ClusterError(f"samples and outputs must be at least 1, got {samples} and {outputs}")
    return BatchWork(
        layers=layer_work(recipe, outputs),
        samples=samples,
        sample_fraction=training.sample_fraction,
        point_transfer=recipe.cluster.point_transfer,
        servers=recipe.cluster.servers,
        sample_bytes=recipe.input.size
        * {"uint8": 1, "float16": 2}.get(str(getattr(recipe.data, "dtype", "")), 4),
    )
