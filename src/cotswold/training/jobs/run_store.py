"""The store of a run's training samples, found again.

Knows: the run's record of its store and source, the folders of stores, the cases in which other samples are
rejected. Does not know: how samples are prepared, networks.
"""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.data.sources.contents import CostlyError, reading_at_most
from cotswold.errors import FormatError, RecipeError, RunError, SourceError, StoreError
from cotswold.recipe import Recipe
from cotswold.recipe.schema import SourcedData
from cotswold.run import RunDirectory, read_events
from cotswold.training.data.stores import STORES, Progress, open_store, source_of
from cotswold.training.jobs.config_diff import PLACES

_READ_LIMIT_BYTES = 256 << 20
"""The size limit of files that can be read within seconds."""


@dataclass(frozen=True)
class StoreRecord:
    """The store as recorded at the run's beginning; None if the run has lost `environment.json`."""

    path: str | None
    identity: str | None
    source: str | None
    """The identity of the source."""


def store_of(
    run: RunDirectory,
    recipe: Recipe | None = None,
    stores: Path | None = None,
    progress: Progress | None = None,
    *,
    is_place_given: bool = False,
) -> Store:
    """Return the store of the samples on which a run was trained.

    The store is looked for in ``stores`` if given, otherwise in its original place. If the recipe names
    another location of the samples than the run's recipe, the store of that location is opened. If no store
    is found, the samples are prepared: under ``stores``, in the folder of the run's store, or under `STORES`.

    Args:
        run: The directory of the run.
        recipe: The run's recipe; None means the recipe in the directory, with the overridden location of the
            samples.
        stores: The folder of stores.
        progress: Receives the progress of a preparation.
        is_place_given: True if the user has just named the location; its samples must then be the run's, even
            if the run's store still exists.

    Returns:
        The store, whose identity is that of the run's.

    Raises:
        StoreError: If the source or the store has other samples or another transform than the run's.
        RunError: If the run does not record its samples, and another location is named.
        SourceError: If the samples cannot be read.
    """
    noted = _read_record(run)
    began = recipes.load(run.recipe)
    if recipe is None:
        recipe = recipes.load(run.recipe, [each for each in run.overrides if _name(each) in PLACES])

    def check(source: str) -> None:
        if noted.source not in (None, source):
            kept = f"resume without data.source to use its store {noted.path}"
            if not is_place_given or open_original_store(run) is None:
                kept = "give the folder of its own store (--stores, Python: stores=)"
            raise StoreError(
                f"the samples in {getattr(recipe.data, 'source', None)} are not those that {run.path} "
                f"was trained on: their files differ; {kept}, or train a new run on these samples"
            )

    store, folder = None, STORES if noted.path is None else Path(noted.path).parent
    target = stores or (folder if os.access(folder, os.W_OK) else STORES)
    is_moved = _places(recipe) != _places(began)
    if is_moved:
        if noted.identity is None:
            raise RunError(
                f"{run.path} does not record its training samples, so only the location in its own "
                "recipe is allowed; keep data.source and data.store as they are there"
            )
        with suppress(SourceError):  # the store may outlive the samples
            store = open_store(recipe, target, progress, check)
    else:
        if is_place_given and recipe.data.store is None:
            with suppress(SourceError):  # as above
                check(source_of(recipe.data).identity)
        if stores is None:
            store = open_original_store(run)
    if store is None and recipe.data.store is None:
        store = _store_with_identity(stores or STORES, recipe.name, noted.identity)
    if store is None:
        is_taken = not is_moved and stores is None and noted.path is not None and Path(noted.path).exists()
        store = open_store(recipe, STORES if is_taken else target, progress, check)
    if noted.identity is not None and store.identity != noted.identity:
        raise StoreError(
            f"the store {store.path} is not the one that {run.path} was trained on: its samples or their "
            "transform differ; give the run's own store (--stores, Python: stores=), or train a new run on "
            "this one"
        )
    return store


def source_note(run: RunDirectory, recipe: Recipe, store: Store) -> str | None:
    """Return a sentence if the files of a run's source differ from the files that its store was made from.

    Files with unchanged size, times and inode are not read.

    Args:
        run: The directory of the run.
        recipe: The recipe of the run.
        store: The store of the run.

    Returns:
        The sentence; None if the files are the same or missing, or if the comparison would take long.
    """
    data, noted = recipe.data, _read_record(run)
    if noted.source is None or data.store is not None or not isinstance(data, SourcedData):
        return None
    try:
        with reading_at_most(_READ_LIMIT_BYTES):
            if source_of(data).identity == noted.source:
                return None
        what = "have changed since the run began"
    except CostlyError as error:
        if not error.is_read:
            return None
        what = "have other names, sizes, times or inodes than when they were last read, and may have changed"
    except (SourceError, RecipeError):
        return None
    return (
        f"files of {data.source} {what}; {run.path} continues with the samples of its store {store.path}; to "
        "use the present files, train a new run"
    )


def _places(recipe: Recipe) -> tuple[object, ...]:
    """Return the locations of a recipe's samples."""
    data = recipe.data
    return getattr(data, "source", None), data.store, getattr(data, "test_source", None)


def _name(override: str) -> str:
    return override.partition("=")[0]


def _store_with_identity(stores: Path, name: str, identity: str | None) -> Store | None:
    """Return the store with an identity among the stores of a recipe name, which needs no source."""
    for path in sorted(stores.glob(f"{glob.escape(name)}-*")):
        with suppress(StoreError, FormatError):
            store = Store(path)
            if store.identity == identity:
                return store
    return None


def open_original_store(run: RunDirectory) -> Store | None:
    """Return the store of a run's training samples if it is still in its original place.

    Args:
        run: The directory of the run.

    Returns:
        The store; None if it is missing or was prepared again with other samples.
    """
    noted = _read_record(run)
    store = _open_record(noted.path)
    return store if store is not None and store.identity == noted.identity else None


def _open_record(place: str | None) -> Store | None:
    try:
        return None if place is None else Store(place)
    except (StoreError, ValueError):
        return None


def _read_record(run: RunDirectory) -> StoreRecord:
    """Return a run's record of its store; a missing source identity is read from the store, if that is
    kept.
    """
    kept = run.environment()
    place, identity, source = kept.get("store"), kept.get("store_identity"), kept.get("source_identity")
    if identity is None and run.events.is_file():
        identity = next((e.get("store") for e in read_events(run.events) if e.get("kind") == "start"), None)
    if source is None and isinstance(place, str):
        store = _open_record(place)
        source = None if store is None or store.identity != identity else store.request.get("source")
    return StoreRecord(*(each if isinstance(each, str) else None for each in (place, identity, source)))


def record_of(store: Store) -> dict[str, object]:
    """Return the record of a run's store with which `store_of` finds it."""
    return {
        "store": str(store.path.absolute()),
        "store_identity": store.identity,
        "source_identity": store.request["source"],
    }
