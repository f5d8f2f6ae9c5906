"""`cotswold prepare`.

Knows: the words of the command. Does not know: how pictures are read or whitened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def prepare(
    source: str,
    out: Path,
    *,
    size: int = 200,
    width: int | None = None,
    colour: Literal["rgb", "grey"] = "rgb",
    contrast: bool = True,
    whiten: bool = True,
    band: float = 0.7,
    unit: Annotated[bool, Parameter(negative=())] = False,
    dtype: Literal["float16", "uint8"] = "float16",
    labels: Literal["none", "folders", "file"] = "none",
    splits: Literal["auto", "random", "folders"] = "auto",
    validation: float = 0.05,
    test: float = 0.0,
    include: Annotated[list[str] | None, Parameter(negative=())] = None,
    exclude: Annotated[list[str] | None, Parameter(negative=())] = None,
    limit: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Turn a folder, zip or array file of pictures into a store.

    The same command after a kill goes on where it stopped.

    An .npy file is one array of pictures: (image, y, x), (image, y, x, channel)
    or (image, channel, y, x), of 0..255, or floats of 0..1. An .npz file holds
    one such array under any name, or several whose names say images, pictures,
    data or x, or a split (train_images, x_test); the labels are the array of
    integers, as long as the pictures, whose name says the same split.

    Examples:

      cotswold prepare photographs/ stores/mine --size 96
      cotswold prepare pictures.zip stores/labelled --labels folders --test 0.1
      cotswold prepare mnist/ stores/mnist --size 28 --labels file

    Parameters
    ----------
    source
        A folder or zip of pictures, an .npy or .npz file, MNIST's idx files, CIFAR-10's binary files.
    out
        The store's directory; a finished store is never overwritten.
    size
        Height in pixels; the width too, unless --width is given.
    width
        Width in pixels.
    colour
        rgb (3 channels) or grey (1).
    contrast
        Subtract each picture's mean and divide by its standard deviation.
    whiten
        Whiten by a filter made from the set's own power spectrum and colour covariance.
    band
        Upper end of the whitened band, as a fraction of the highest frequency.
    unit
        Scale every prepared picture to a root mean square of 1.
    dtype
        How values are kept: float16, or uint8 with one scale for the whole set.
    labels
        folders: the parent folder of a picture is its label; file: labels that npz, idx and CIFAR-10 carry.
    splits
        folders: top folders (or files) are named train, validation and test; random; or auto: by those names
        where all pictures have one. What is named test is never drawn for training.
    validation
        Part of the training pictures held out for validation.
    test
        Part of the pictures held out for testing, where splits are drawn at random.
    include
        Pattern of paths to read; may be given again.
    exclude
        Pattern of paths to leave out; may be given again.
    limit
        Read at most so many pictures.
    seed
        Seed of the order of pictures and of the splits.
    jobs
        Processes; all cores by default.
    json_
        Print the summary as JSON.
    """
    from dataclasses import asdict

    import cotswold
    from cotswold.api.progress import printable
    from cotswold.data import Summary

    heard: list[Summary] = []
    cotswold.prepare(
        source,
        out,
        size=size,
        width=width,
        colour=colour,
        contrast=contrast,
        whiten=whiten,
        band=band,
        unit=unit,
        dtype=dtype,
        labels=labels,
        splits=splits,
        validation=validation,
        test=test,
        include=include or (),
        exclude=exclude or (),
        limit=limit,
        seed=seed,
        jobs=jobs,
        progress=True,
        on_summary=heard.append,
    )
    (summary,) = heard
    if json_:
        print(json.dumps(asdict(summary), default=str))
        return
    counts = ", ".join(f"{count} {split}" for split, count in summary.splits.items())
    print(f"{summary.path}: {counts} pictures in {summary.seconds:.0f} s")
    for note in summary.notes:
        print(printable(note))
    if summary.broken:
        shown = "\n  ".join(map(printable, summary.broken_files[:10]))
        more = f"\n  and {summary.broken - 10} more" if summary.broken > 10 else ""
        print(f"{summary.broken} broken pictures were left out:\n  {shown}{more}")
