"""`cotswold features`.

Knows: the arguments of the command. Does not know: layers, file formats.
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

    `.npz` holds features, names and labels; `.npy` can be larger than memory, and its names go into a .csv
    file.

    Examples:

      cotswold features runs/demo photographs/ features.npz
      cotswold features runs/demo photographs.zip features.npy --layer 2.pooled

    Parameters
    ----------
    run
        The directory of a run of stacks.
    source
        A folder, zip or array file of samples, or one image; they are prepared like the run's own samples.
    out
        The file to write, ending in .npz or .npy; it must not exist.
    layer
        The layer: the number of a stack, from 1, and filters, pooled or output. Default: the last stack's
        output.
    labels
        folders: the parent folder of a sample is its label; file: labels stored in the files.
    threads
        Compute threads. Default: the run's number, or all cores granted to this process.
    """
    import cotswold

    found = cotswold.write_features(
        run, source, out, layer=layer, labels=labels, threads=threads, progress=True
    )
    print(f"{found.path}: {' x '.join(map(str, found.shape))} (sample x channel x y x x), {found.layer}")
