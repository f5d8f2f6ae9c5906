"""Preparation of a store from a source of samples.

Knows: the options, and the kinds of samples to which each applies. Does not know: how samples are read or
prepared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cotswold.api.arguments import check_integer, check_number, check_path, check_truth
from cotswold.errors import UserError
from cotswold.files import expanded
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.data import (
        Preparation,
        Source,
        Store,
        Summary,
        TableSource,
        VectorPreparation,
        VectorSource,
    )

_APPLY = {
    "images": frozenset(
        ["size", "width", "colour", "per_image_standardise", "whiten", "whiten_cutoff", "unit_rms", "dtype"]
    ),
    "vectors": frozenset(["standardise", "dtype"]),
    "frames": frozenset(["context", "standardise", "dtype"]),
    "table": frozenset(["context", "standardise", "dtype"]),
}
"""Options that apply to each kind of samples."""


def prepare(
    source: str | Path | TableSource,
    out: str | Path,
    *,
    size: int | None = None,
    width: int | None = None,
    colour: Literal["rgb", "grey"] | None = None,
    per_image_standardise: bool | None = None,
    whiten: bool | None = None,
    whiten_cutoff: float | None = None,
    unit_rms: bool | None = None,
    context: int | None = None,
    standardise: bool | None = None,
    dtype: Literal["float32", "float16", "uint8"] | None = None,
    labels: Literal["none", "folders", "file"] = "none",
    splits: Literal["auto", "random", "folders"] = "auto",
    validation: float = 0.05,
    test: float = 0.0,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    limit: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    recheck: bool = False,
    progress: bool | None = None,
    on_summary: Callable[[Summary], None] | None = None,
) -> Store:
    """Prepare a store of images, vectors, frames or a table: transformed, shuffled, split, checksummed.

    The kind of samples is detected from the files: an array (n, features) is vectors, a folder or zip of .npy
    files is sequences of frames. An interrupted call is resumed by the same call; a finished store is never
    overwritten. Names and defaults are those of ``[data]`` in a recipe (`cotswold recipe explain data`).

    Args:
        source: A folder, a zip, an array file, the name of a built-in data set, or a table from
            `cotswold.data.table`.
        out: Folder of the store.
        size: Height of images, pixels, and width unless given [200].
        width: Width of images, pixels.
        colour: "rgb" or "grey", for images ["rgb"].
        per_image_standardise: Subtract each image's mean and divide by its standard deviation [True].
        whiten: Whiten images [True].
        whiten_cutoff: Cutoff of the whitening, as a fraction of the highest frequency [0.7].
        unit_rms: Scale each image to a root mean square of 1 [False].
        context: Frames on each side that are joined with a frame to make one sample [5].
        standardise: Standardise vectors and frames by mean and deviation of the training split [True].
        dtype: Type of stored values: "float16" or "uint8" for images ["float16"], "float32" or "float16" for
            vectors and frames ["float32"].
        labels: "folders", "file" or "none".
        splits: Rule of the splits: by "folders", "random", or "auto".
        validation: Fraction of samples for validation.
        test: Fraction of samples for test.
        include: Patterns of paths inside the source to use. [all]
        exclude: Patterns of paths to leave out. [none]
        limit: Maximum number of samples. [all]
        seed: Seed of the permutation.
        jobs: Number of processes. [all cores]
        recheck: Read files again even if size, times and inode are unchanged.
        progress: Show progress. [if on a terminal or in a notebook]
        on_summary: Called with the `Summary`; without it a RuntimeWarning names unreadable images.

    Returns:
        The store.

    Raises:
        SourceError: if the source cannot be used.
        StoreError: if an existing store is damaged.
        UserError: if an option does not apply to these samples.
    """
    from cotswold import data
    from cotswold.data.sources import contents
    from cotswold.data.sources.base import samples_noun

    for name, whole in {
        "size": size,
        "width": width,
        "context": context,
        "limit": limit,
        "jobs": jobs,
    }.items():
        check_integer(name, whole)
    check_integer("seed", seed)
    for name, number in {"whiten_cutoff": whiten_cutoff, "validation": validation, "test": test}.items():
        check_number(name, number)
    truths = {
        "per_image_standardise": per_image_standardise,
        "whiten": whiten,
        "unit_rms": unit_rms,
        "standardise": standardise,
        "recheck": recheck,
    }
    for name, truth in truths.items():
        check_truth(name, truth)
    if isinstance(source, data.TableSource):
        if include or exclude or labels != "none" or recheck:
            raise UserError(
                "include, exclude, labels and recheck do not apply to a table; give ignore and target to "
                "cotswold.data.table"
            )
        found: Source | VectorSource = source
    else:
        check_path("the source", source)
        if recheck:
            contents.forget(expanded(source))
        found = data.open_samples(source, include=include, exclude=exclude, labels=labels)
    asked = {
        "size": size,
        "width": width,
        "colour": colour,
        "per_image_standardise": per_image_standardise,
        "whiten": whiten,
        "whiten_cutoff": whiten_cutoff,
        "unit_rms": unit_rms,
        "context": context,
        "standardise": standardise,
        "dtype": dtype,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    preparation = _preparation(str(source) if isinstance(source, str | Path) else repr(source), found, given)
    with display_for(progress).count("preparing", samples_noun(found.kind)) as advance:
        summary = data.prepare(
            found,
            out,
            preparation,
            splits=splits,
            validation=validation,
            test=test,
            seed=seed,
            limit=limit,
            jobs=jobs,
            progress=advance,
        )
    store = data.Store(summary.path)
    if on_summary is not None:
        on_summary(summary)
    elif store.broken_note is not None:
        warnings.warn(store.broken_note, RuntimeWarning, stacklevel=2)
    return store


def _preparation(
    source: str, found: Source | VectorSource, asked: dict[str, Any]
) -> Preparation | VectorPreparation:
    """Return the preparation of a source. Raises UserError for options that do not apply to its kind."""
    from cotswold.data import Preparation, TableSource, VectorPreparation, VectorSource
    from cotswold.data.sources.base import samples_noun

    beyond = sorted(asked.keys() - _APPLY[found.kind])
    if beyond:
        raise UserError(
            f"{source} contains {samples_noun(found.kind)}, to which {', '.join(beyond)} does not apply; "
            "omit it"
        )
    dtypes = ("float16", "uint8") if found.kind == "images" else ("float32", "float16")
    if asked.get("dtype", dtypes[0]) not in dtypes:
        raise UserError(
            f"{source} contains {samples_noun(found.kind)}, for which dtype must be {dtypes[0]} or "
            f"{dtypes[1]}"
        )
    if isinstance(found, TableSource):
        return found.preparation(**asked)
    if isinstance(found, VectorSource):
        if found.kind == "frames":
            asked = {"context": 5, **asked}
        return VectorPreparation(
            found.features, "vectors" if found.kind == "vectors" else "frames", rate=found.rate, **asked
        )
    height = asked.pop("size", 200)
    return Preparation(size=(height, asked.pop("width", height)), **asked)
