"""Augmentation beside SciPy and beside NumPy alone, images a second on one core.

Knows: the words of the command, the transforms, tables. Does not know: kernels, how samples are timed.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, write_result
from cotswold.ui.terminal import progress_bar
from lib.augmentation import augmenting
from lib.command import Json, command, main, spreads


def augment(
    *,
    images: int = 256,
    rounds: int = 15,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """How fast images are augmented: MNIST's shape, 1 x 28 x 28, and CIFAR-10's, 3 x 32 x 32.

    SciPy does the same to each image: its places are drawn, the field smoothed by gaussian_filter, values
    interpolated by map_coordinates or affine_transform (order 1). One thread each, in turns. Example:

      python benchmarks/augment.py --out benchmarks/results

    Parameters
    ----------
    images
        Images of a batch.
    rounds
        How many times each, after one that does not count.
    out
        A directory for augment.json.
    json_
        Print JSON.
    """
    with progress_bar("measuring", "shapes") as advance:
        measured = augmenting(
            require_positive(images, "--images"), require_positive(rounds, "--rounds"), advance
        )
    found = document("augment", command(), images=images, **measured)
    write_result(found, "augment", out, json_)
    if not json_:
        spreads("images a second", found["samples_per_second"])
        spreads("times SciPy", found["of_scipy"])
        spreads("times NumPy", found["of_numpy"])


if __name__ == "__main__":
    main(augment)
