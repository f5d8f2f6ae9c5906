"""`cotswold prepare`.

Knows: the arguments of the command. Does not know: how samples are read or prepared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cotswold.cli.support.json_output import Json, print_json


def prepare(
    source: str,
    out: Path,
    *,
    size: int | None = None,
    width: int | None = None,
    colour: Literal["rgb", "grey"] | None = None,
    per_image_standardise: bool | None = None,
    whiten: bool | None = None,
    whiten_cutoff: float | None = None,
    unit_rms: Annotated[bool | None, Parameter(negative=())] = None,
    context: int | None = None,
    standardise: bool | None = None,
    dtype: Literal["float32", "float16", "uint8"] | None = None,
    labels: Literal["none", "folders", "file"] = "none",
    target: str | None = None,
    target_kind: Literal["auto", "class", "number"] = "auto",
    features: Annotated[list[str] | None, Parameter(negative=())] = None,
    ignore: Annotated[list[str] | None, Parameter(negative=())] = None,
    categorical: Annotated[list[str] | None, Parameter(negative=())] = None,
    missing: Literal["refuse", "impute"] = "refuse",
    test_source: str | None = None,
    splits: Literal["auto", "random", "folders"] = "auto",
    validation: float = 0.05,
    test: float = 0.0,
    include: Annotated[list[str] | None, Parameter(negative=())] = None,
    exclude: Annotated[list[str] | None, Parameter(negative=())] = None,
    limit: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    recheck: Annotated[bool, Parameter(negative=())] = False,
    json_: Json = False,
) -> None:
    """Prepare images, vectors, sequences of frames or a table as a store.

    The same command continues after a kill. The type of the samples follows from the
    files: an array (n, features) contains vectors; a folder or zip of .npy files, or an
    .npz with `frames` and `lengths`, contains sequences.

    An .npy file is one array of images: (image, y, x), (image, y, x, channel) or
    (image, channel, y, x), integers from 0 to 255 or floats from 0 to 1. An .npz file
    holds one such array under any name, or several whose names say images, pictures,
    data or x, or a split (train_images, x_test). The labels are the array of integers
    of the same length whose name states the same split. Vectors may be in the same
    kinds of files; labels of an .npy are in name.labels.npy.

    Examples:

      cotswold prepare photographs/ stores/mine --size 96
      cotswold prepare images.zip stores/labelled --labels folders --test 0.1
      cotswold prepare mnist/ stores/mnist --size 28 --labels file
      cotswold prepare table.npz stores/table --labels file
      cotswold prepare speech/ stores/speech --context 5 --labels file
      cotswold prepare bank.csv stores/bank --target y --ignore duration

    Parameters
    ----------
    source
        A folder or zip of images or of .npy files, an .npy or .npz file, MNIST's idx files, CIFAR-10's binary
        files, or a CSV or Parquet file.
    out
        The store's directory; a finished store is never overwritten.
    size
        Images: height in pixels; also the width, unless --width is given. Default: 200.
    width
        Images: width in pixels.
    colour
        Images: rgb (3 channels) or grey (1). Default: rgb.
    per_image_standardise
        Images: subtract each image's mean and divide by its standard deviation. Default: on.
    whiten
        Images: whiten by a filter computed from the data set's power spectrum and colours. Default: on.
    whiten_cutoff
        Images: cutoff of the whitening filter, as a fraction of the highest frequency. Default: 0.7.
    unit_rms
        Images: scale every prepared image to a root mean square of 1.
    context
        Frames: context frames on each side of a sample's frame. Default: 5.
    standardise
        Vectors, frames: subtract each feature's mean and divide by its standard deviation, both of the
        training split. Default: on.
    dtype
        Type of stored values. Images: float16 (default), or uint8 with one scale for the whole data set.
        Vectors and frames: float32 (default) or float16.
    labels
        folders: the parent folder is the label; file: labels from npz, idx and CIFAR-10 files, or from
        name.labels.npy in the folder of vectors and frames.
    target
        Tables: the column to predict, by name or position from 0; -1 is the last one.
    target_kind
        Tables: class, number (regression), or auto: texts, and integers of at most 20 values, are classes.
    features
        Tables: a column to read; may be given again. Default: all.
    ignore
        Tables: a column to leave out; may be given again.
    categorical
        Tables: a column whose numbers are categories; may be given again.
    missing
        Tables: refuse missing values, or impute them by the median or the most frequent category.
    test_source
        Tables: a file of the same columns, whose rows are the test samples.
    splits
        folders: by top folders (or files) named train, validation and test; random; or auto: by these names
        if all samples have one. Samples named test are never used for training. Sequences stay whole.
    validation
        Fraction of the samples that is kept for validation.
    test
        Fraction of the samples that is kept for testing, for random splits.
    include
        Glob pattern of paths to read; may be given again.
    exclude
        Glob pattern of paths to skip; may be given again.
    limit
        Read at most this many images, vectors or sequences.
    seed
        Seed of the order of samples and of the splits.
    jobs
        Number of processes. Default: all cores.
    recheck
        Read all files of the source again to detect changes, including files with unchanged size, times and
        inode.
    json_
        Print the summary as JSON.
    """
    from dataclasses import asdict

    import cotswold
    from cotswold import data
    from cotswold.data import Summary
    from cotswold.data.sources.base import samples_noun
    from cotswold.data.sources.tables import is_table
    from cotswold.errors import UserError
    from cotswold.phrases import counted
    from cotswold.ui.terminal import printable

    heard: list[Summary] = []
    options = {
        "--target": target is not None,
        "--target-kind": target_kind != "auto",
        "--features": features is not None,
        "--ignore": ignore is not None,
        "--categorical": categorical is not None,
        "--missing": missing != "refuse",
        "--test-source": test_source is not None,
    }
    given = [name for name, is_given in options.items() if is_given]
    if given and not is_table(source):
        raise UserError(
            f"{source} is not a CSV or Parquet file, to which {', '.join(given)} applies; omit it"
        )
    opened = (
        source
        if not given
        else data.table(
            source,
            target=target,
            target_kind=target_kind,
            features=features or (),
            ignore=ignore or (),
            categorical=categorical or (),
            missing=missing,
            test_source=test_source,
        )
    )
    store = cotswold.prepare(
        opened,
        out,
        size=size,
        width=width,
        colour=colour,
        per_image_standardise=per_image_standardise,
        whiten=whiten,
        whiten_cutoff=whiten_cutoff,
        unit_rms=unit_rms,
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
        print_json("prepare", asdict(summary))
        return
    counts = ", ".join(f"{count:,} {split}" for split, count in summary.splits.items())
    if summary.was_complete:
        print(f"{summary.path} is already finished, nothing to do: {counts} {samples_noun(store.kind)}")
    else:
        print(f"{summary.path}: {counts} {samples_noun(store.kind)} in {summary.seconds:.0f} s")
    for note in summary.notes:
        print(printable(note))
    if summary.broken:
        shown = "\n  ".join(map(printable, summary.broken_files[:10]))
        more = f"\n  and {summary.broken - 10} more" if summary.broken > 10 else ""
        were = "was" if summary.broken == 1 else "were"
        print(f"{counted(summary.broken, 'broken image')} {were} skipped:\n  {shown}{more}")
