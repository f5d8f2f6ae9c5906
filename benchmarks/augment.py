"""Augmentation compared with SciPy and with NumPy alone: images per second on one core.

Knows: the command's options, the transforms, tables. Does not know: kernels, how samples are timed.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, write_result
from cotswold.ui.terminal import progress_bar
from lib.augmentation import augmentation_rates
from lib.command import Json, command, main, spreads


def augment(
    *,
    images: int = 256,
    rounds: int = 15,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure the speed of augmentation for the shapes of MNIST (1 x 28 x 28) and CIFAR-10 (3 x 32 x 32).

    SciPy applies the same transforms to each image: random displacements, smoothing by gaussian_filter,
    interpolation by map_coordinates or affine_transform (order 1). One thread each, alternating. Example:

      python benchmarks/augment.py --out benchmarks/results

    Parameters
    ----------
    images
        Images per batch.
    rounds
        Measured repetitions of each, after one warm-up.
    out
        Directory for augment.json.
    json_
        Print JSON.
    """
    with progress_bar("measuring", "shapes") as advance:
        measured = augmentation_rates(
            require_positive(images, "--images"), require_positive(rounds, "--rounds"), advance
        )
    found = document("augment", command(), images=images, **measured)
    write_result(found, "augment", out, json_)
    if not json_:
        spreads("images per second", found["samples_per_second"])
        spreads("times SciPy", found["of_scipy"])
        spreads("times NumPy", found["of_numpy"])


if __name__ == "__main__":
    main(augment)
