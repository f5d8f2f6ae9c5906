"""`cotswold features`.

Knows: the words of the command. Does not know: layers, file formats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def features(
    run: Path,
    source: str,
    out: Path,
    *,
    layer: str | None = None,
    labels: Literal["none", "folders", "file"] = "none",
    threads: int | None = None,
) -> None:
    """Write the responses of a layer to every sample of a source.

    `.npz` holds features, names and labels; `.npy` can be larger than memory, with a .csv of names beside.

    Examples:

      cotswold features runs/demo photographs/ features.npz
      cotswold features runs/demo photographs.zip features.npy --layer 2.pooled

    Parameters
    ----------
    run
        The directory of a run of stacks.
    source
        A folder, zip or array file of samples, or one picture; they are prepared as the run's own were.
    out
        The file to write, ending in .npz or .npy; it must not exist.
    layer
        Which map: a stack from 1 upwards, and filters, pooled or output; the last stack's output by default.
    labels
        folders: the parent folder of a sample is its label; file: labels that files carry.
    threads
        Threads of computation; the run's own number, or all cores that this process is granted, by default.
    """
    import cotswold

    found = cotswold.write_features(
        run, source, out, layer=layer, labels=labels, threads=threads, progress=True
    )
    print(f"{found.path}: {' x '.join(map(str, found.shape))} (sample x channel x y x x), {found.layer}")
