"""From a source of samples to a store.

Knows: which choices there are, and to which samples each applies. Does not know: how samples are read or
prepared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cotswold.api.arguments import check_number, check_path, check_truth, check_whole
from cotswold.errors import UserError
from cotswold.files import expanded
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.data import Preparation, Source, Store, Summary, VectorPreparation, VectorSource

_APPLY = {
    "pictures": frozenset(["size", "width", "colour", "contrast", "whiten", "band", "unit", "dtype"]),
    "vectors": frozenset(["standardise", "dtype"]),
    "frames": frozenset(["context", "standardise", "dtype"]),
}
"""Which choices mean something for which samples."""


def prepare(
    source: str | Path,
    out: str | Path,
    *,
    size: int | None = None,
    width: int | None = None,
    colour: Literal["rgb", "grey"] | None = None,
    contrast: bool | None = None,
    whiten: bool | None = None,
    band: float | None = None,
    unit: bool | None = None,
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
    """A store of pictures, vectors or sequences of frames: prepared, shuffled, split, checksummed.

    What the samples are is seen from the files: an array (n, features) is vectors, a folder or zip of .npy
    files is sequences. The same call after a kill goes on where it stopped; a finished store is never
    overwritten. For pictures ``size`` is the height in pixels (200), and the width unless ``width`` is given;
    they are whitened by default. Vectors and frames are standardised by default, and ``context`` (5) frames
    on each side make a sample with the frame between them. The words are those of a recipe's ``[data]``
    (`cotswold recipe explain data`), as are their defaults. ``jobs``: processes, all cores by default.
    Files that have the size, times and inode of the last call are not read again to tell whether they
    changed; with ``recheck`` they are.
    ``on_summary`` hears how many samples were prepared and left out; without it a RuntimeWarning names the
    pictures that could not be read. Raises SourceError, StoreError, and
    UserError for a choice that does not apply to such samples.
    """
    from cotswold import data
    from cotswold.data.sources import contents

    for name, whole in {
        "size": size,
        "width": width,
        "context": context,
        "limit": limit,
        "jobs": jobs,
    }.items():
        check_whole(name, whole)
    check_whole("seed", seed)
    check_path("the source", source)
    for name, number in {"band": band, "validation": validation, "test": test}.items():
        check_number(name, number)
    truths = {
        "contrast": contrast,
        "whiten": whiten,
        "unit": unit,
        "standardise": standardise,
        "recheck": recheck,
    }
    for name, truth in truths.items():
        check_truth(name, truth)
    if recheck:
        contents.forget(expanded(source))
    found = data.open_samples(source, include=include, exclude=exclude, labels=labels)
    asked = {
        "size": size,
        "width": width,
        "colour": colour,
        "contrast": contrast,
        "whiten": whiten,
        "band": band,
        "unit": unit,
        "context": context,
        "standardise": standardise,
        "dtype": dtype,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    preparation = _preparation(str(source), found, given)
    with display_for(progress).counting("preparing", found.kind) as advance:
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
    """The preparation of a source; raises UserError for what does not apply to samples of its kind."""
    from cotswold.data import Preparation, VectorPreparation, VectorSource

    beyond = sorted(asked.keys() - _APPLY[found.kind])
    if beyond:
        raise UserError(
            f"{source} holds {found.kind}, to which {', '.join(beyond)} does not apply; leave that out"
        )
    dtypes = ("float16", "uint8") if found.kind == "pictures" else ("float32", "float16")
    if asked.get("dtype", dtypes[0]) not in dtypes:
        raise UserError(f"{source} holds {found.kind}; dtype is {dtypes[0]} or {dtypes[1]} for these")
    if isinstance(found, VectorSource):
        if found.kind == "frames":
            asked = {"context": 5, **asked}
        return VectorPreparation(found.features, "vectors" if found.kind == "vectors" else "frames", **asked)
    height = asked.pop("size", 200)
    return Preparation(size=(height, asked.pop("width", height)), **asked)
