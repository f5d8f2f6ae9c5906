"""The networks of papers whose scaling is predicted.

Knows: their geometries, which numbers are from the papers and which are ours. Does not know: clusters.
"""

from __future__ import annotations

from cotswold.geometry import MapShape, Window
from cotswold.recipe import load
from cotswold.simulate.workloads.layers import LayerGeometry, LayerKind, LayerWork
from cotswold.simulate.workloads.stacks import StackWork
from cotswold.simulate.workloads.work import stack_work

COATES_NETWORKS = {
    "180 M": ("coates2013-1.8b", 2),
    "680 M": ("coates2013-11b", 4),
    "1.8 B": ("coates2013-1.8b", 8),
    "3.0 B": ("coates2013-11b", 9),
    "6.9 B": ("coates2013-11b", 14),
    "11.2 B": ("coates2013-11b", 18),
}
"""Networks of Coates et al. 2013, figures 5 and 6: a shipped recipe and its number of maps.

The paper states the ends of the range, and the 1.8 B and 11.2 B networks; the steps between are ours.
"""


def ladder() -> dict[str, StackWork]:
    """Return the networks of figures 5 and 6; all stacks learn jointly, as in section 5.1."""
    return {
        name: stack_work(
            load(
                recipe,
                [
                    "training.strategy=joint",
                    *(f"network.stacks.{stack}.channels={maps}" for stack in range(3)),
                ],
            )
        )
        for name, (recipe, maps) in COATES_NETWORKS.items()
    }


def speech(images: int) -> LayerWork:
    """Return the speech network of Dean et al. 2012.

    It has 11 frames of 40 values, four hidden layers, and 8192 states.
    """
    below, layers = MapShape(440, 1, 1), []
    for units in (2560, 2560, 2560, 2560, 8192):
        layers.append(LayerGeometry.full(below, units))
        below = layers[-1].output
    return LayerWork(tuple(layers), images)


def image_network(maps: int, images: int) -> LayerWork:
    """Return an image network of Dean et al. 2012.

    It has 100 x 100 pixels, three times untied filters of 10 x 10 and pooling, then 21,000 logistic outputs.
    The paper states this, and 8 to 36 maps. Colour, pooling of 5 x 5 at stride 1, and a stride of 2 for the
    third filters are ours: they give 1.65 billion weights at 36 maps. Contrast normalisation is omitted
    because it costs little.
    """
    below = MapShape(3, 100, 100)
    layers: list[LayerGeometry] = []
    for stride in (1, 1, 2):
        layers.append(_square("local", below, Window(10, stride), maps))
        layers.append(_square("pool", layers[-1].output, Window(5), maps))
        below = layers[-1].output
    return LayerWork((*layers, LayerGeometry.full(below, 21_000)), images)


def adam(times: float, images: int) -> LayerWork:
    """Return the ImageNet network of Chilimbi et al. 2014, with ``times`` as many maps in its convolutions.

    The paper states: five convolutions with kernels of 3 to 7 and 120 to 600 maps; 3 x 3 pooling after the
    first, second and fifth; three full layers of 3000; 22,000 classes; over 2 billion connections. Images of
    224 x 224, the first stride of 3, pooling at stride 2, and the intermediate numbers of maps are ours.
    """
    below = MapShape(3, 224, 224)
    layers: list[LayerGeometry] = []
    for size, stride, maps, pooled in (
        (7, 3, 120, True),
        (5, 1, 380, True),
        (3, 1, 400, False),
        (3, 1, 500, False),
        (3, 1, 600, True),
    ):
        layers.append(_square("shared", below, Window(size, stride), max(1, round(times * maps))))
        if pooled:
            layers.append(_square("pool", layers[-1].output, Window(3, 2), layers[-1].maps))
        below = layers[-1].output
    for units in (3000, 3000, 3000, 22_000):
        layers.append(LayerGeometry.full(below, units))
        below = layers[-1].output
    return LayerWork(tuple(layers), images)


def _square(kind: LayerKind, below: MapShape, window: Window, maps: int) -> LayerGeometry:
    return LayerGeometry(kind, below, window, window, maps)
