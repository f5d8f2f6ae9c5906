"""From a source of pictures to a store.

Knows: which choices there are. Does not know: how pictures are read or whitened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cotswold.api.display import display_for

if TYPE_CHECKING:
    from cotswold.data import Store, Summary


def prepare(
    source: str | Path,
    out: str | Path,
    *,
    size: int = 200,
    width: int | None = None,
    colour: Literal["rgb", "grey"] = "rgb",
    contrast: bool = True,
    whiten: bool = True,
    band: float = 0.7,
    unit: bool = False,
    dtype: Literal["float16", "uint8"] = "float16",
    labels: Literal["none", "folders", "file"] = "none",
    splits: Literal["auto", "random", "folders"] = "auto",
    validation: float = 0.05,
    test: float = 0.0,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    limit: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    progress: bool | None = None,
    on_summary: Callable[[Summary], None] | None = None,
) -> Store:
    """A store of the pictures of a folder, zip or array file: resized, whitened, shuffled, checksummed.

    The same call after a kill goes on where it stopped; a finished store is never overwritten. ``size`` is
    the height in pixels, and the width unless ``width`` is given; the other words are those of a recipe's
    ``[data]`` (`cotswold recipe explain`). ``jobs``: processes, all cores by default. ``on_summary`` hears
    how many pictures were prepared and left out. Raises SourceError, StoreError, UserError.
    """
    from cotswold import data

    found = data.open_source(source, include=include, exclude=exclude, labels=labels)
    preparation = data.Preparation(
        size=(size, width or size),
        colour=colour,
        contrast=contrast,
        whiten=whiten,
        band=band,
        unit=unit,
        dtype=dtype,
    )
    with display_for(progress).counting("preparing", "pictures") as tally:
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
            progress=tally,
        )
    if on_summary is not None:
        on_summary(summary)
    return data.Store(summary.path)
