"""`cotswold prepare`.

Knows: the words of the command. Does not know: how samples are read or prepared.
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
    size: int | None = None,
    width: int | None = None,
    colour: Literal["rgb", "grey"] | None = None,
    contrast: bool | None = None,
    whiten: bool | None = None,
    band: float | None = None,
    unit: Annotated[bool | None, Parameter(negative=())] = None,
    context: int | None = None,
    standardise: bool | None = None,
    dtype: Literal["float32", "float16", "uint8"] | None = None,
    labels: Literal["none", "folders", "file"] = "none",
    splits: Literal["auto", "random", "folders"] = "auto",
    validation: float = 0.05,
    test: float = 0.0,
    include: Annotated[list[str] | None, Parameter(negative=())] = None,
    exclude: Annotated[list[str] | None, Parameter(negative=())] = None,
    limit: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    recheck: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Turn pictures, vectors or sequences of frames into a store.

    The same command after a kill goes on where it stopped. What the samples are
    is seen from the files: an array (n, features) is vectors, a folder or zip of
    .npy files, or an .npz with `frames` and `lengths`, is sequences.

    An .npy file is one array of pictures: (image, y, x), (image, y, x, channel)
    or (image, channel, y, x), of 0..255, or floats of 0..1. An .npz file holds
    one such array under any name, or several whose names say images, pictures,
    data or x, or a split (train_images, x_test); the labels are the array of
    integers, as long as the pictures, whose name says the same split. Vectors
    may be in the same kinds of files; labels of an .npy are in name.labels.npy.

    Examples:

      cotswold prepare photographs/ stores/mine --size 96
      cotswold prepare pictures.zip stores/labelled --labels folders --test 0.1
      cotswold prepare mnist/ stores/mnist --size 28 --labels file
      cotswold prepare table.npz stores/table --labels file
      cotswold prepare speech/ stores/speech --context 5 --labels file

    Parameters
    ----------
    source
        A folder or zip of pictures or of .npy files, an .npy or .npz file, MNIST's idx files, CIFAR-10's
        binary files.
    out
        The store's directory; a finished store is never overwritten.
    size
        Pictures: height in pixels, 200 by default; the width too, unless --width is given.
    width
        Pictures: width in pixels.
    colour
        Pictures: rgb (3 channels), the default, or grey (1).
    contrast
        Pictures: subtract each picture's mean and divide by its standard deviation; the default.
    whiten
        Pictures: whiten by a filter made from the set's own power spectrum and colours; the default.
    band
        Pictures: upper end of the whitened band, as a fraction of the highest frequency; 0.7 by default.
    unit
        Pictures: scale every prepared picture to a root mean square of 1.
    context
        Frames: frames on each side that make one sample with the frame between them; 5 by default.
    standardise
        Vectors, frames: subtract each feature's mean and divide by its standard deviation, both of the
        training split; the default.
    dtype
        How values are kept. Pictures: float16, the default, or uint8 with one scale for the whole set.
        Vectors and frames: float32, the default, or float16.
    labels
        folders: the parent folder is the label; file: labels that npz, idx and CIFAR-10 carry, or those in
        name.labels.npy beside vectors and frames.
    splits
        folders: top folders (or files) are named train, validation and test; random; or auto: by those names
        where all samples have one. What is named test is never drawn for training. Sequences stay whole.
    validation
        Part of the training samples that is kept for validation.
    test
        Part of the samples that is kept for testing, where splits are drawn at random.
    include
        Pattern of paths to read; may be given again.
    exclude
        Pattern of paths to leave out; may be given again.
    limit
        Read at most so many pictures, vectors or sequences.
    seed
        Seed of the order of samples and of the splits.
    jobs
        Processes; all cores by default.
    recheck
        Read all files of the source again to tell whether they changed, also those whose size, times and
        inode are those of the last time.
    json_
        Print the summary as JSON.
    """
    from dataclasses import asdict

    import cotswold
    from cotswold.data import Summary
    from cotswold.ui.progress import printable
    from cotswold.words import counted

    heard: list[Summary] = []
    store = cotswold.prepare(
        source,
        out,
        size=size,
        width=width,
        colour=colour,
        contrast=contrast,
        whiten=whiten,
        band=band,
        unit=unit,
        context=context,
        standardise=standardise,
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
        recheck=recheck,
        progress=True,
        on_summary=heard.append,
    )
    (summary,) = heard
    if json_:
        print(json.dumps(asdict(summary), default=str))
        return
    counts = ", ".join(f"{count:,} {split}" for split, count in summary.splits.items())
    if summary.was_there:
        print(f"{summary.path} was finished before, and nothing was done: {counts} {store.kind}")
    else:
        print(f"{summary.path}: {counts} {store.kind} in {summary.seconds:.0f} s")
    for note in summary.notes:
        print(printable(note))
    if summary.broken:
        shown = "\n  ".join(map(printable, summary.broken_files[:10]))
        more = f"\n  and {summary.broken - 10} more" if summary.broken > 10 else ""
        were = "was" if summary.broken == 1 else "were"
        print(f"{counted(summary.broken, 'broken picture')} {were} left out:\n  {shown}{more}")
