"""The store that a recipe names, made where it does not exist yet.

Knows: how a recipe's `[data]` becomes a preparation, where stores are kept, how a run finds its own. Does
not know: networks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from cotswold.data import Preparation, Store, open_source, prepare
from cotswold.data.plan import rule
from cotswold.errors import RecipeError, StoreError
from cotswold.recipe import Recipe, expand
from cotswold.recipe.schema import Data, PictureData, pair
from cotswold.run import RunDirectory, read_events

STORES = Path("stores")
"""Where prepared pictures are kept unless another place is named."""

Tally = Callable[[int, int], None]
"""Hears how many of how many pictures are done."""


def preparation_of(data: Data) -> Preparation:
    """The preparation that a recipe's `[data]` asks for."""
    data = pictures_of(data)
    return Preparation(
        size=pair(data.size),
        colour=data.colour,
        contrast=data.contrast,
        whiten=data.whiten,
        band=data.band,
        unit=data.unit,
        dtype=data.dtype,
    )


def pictures_of(data: Data) -> PictureData:
    """A recipe's `[data]` that is of pictures; raises RecipeError for another type."""
    if not isinstance(data, PictureData):
        raise RecipeError(f'data.type is "{data.type}"; pictures are needed here')
    return data


def made_by(data: Data) -> Preparation:
    """How the pictures of a recipe are or were prepared; raises StoreError for a store that is not there."""
    return preparation_of(data) if data.store is None else Store(expand(data.store)).transform.preparation


def open_store(recipe: Recipe, stores: Path, tally: Tally | None = None) -> Store:
    """The recipe's store; pictures of a source are prepared under ``stores`` unless they have been.

    Raises SourceError, StoreError, RecipeError (an environment variable that is not set).
    """
    data = recipe.data
    if data.store is not None:
        return Store(expand(data.store))
    data = pictures_of(data)
    assert data.source is not None, "the schema wants one of source and store"
    source = open_source(expand(data.source), include=data.include, exclude=data.exclude, labels=data.labels)
    preparation = preparation_of(data)
    decided = rule(source, data.splits)
    choices = [
        preparation.state(),
        source.identity,
        decided.splits,
        data.validation,
        data.test,
        data.limit,
        data.labels,
        *(["test by name"] if decided.test_by_name else []),
    ]
    short = hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:10]
    path = stores / f"{recipe.name}-{short}"
    prepare(
        source,
        path,
        preparation,
        splits=data.splits,
        validation=data.validation,
        test=data.test,
        limit=data.limit,
        progress=tally,
    )
    return Store(path)


def store_of(
    run: RunDirectory, recipe: Recipe, stores: Path | None = None, tally: Tally | None = None
) -> Store:
    """The store that a run learnt from: in ``stores`` where that is given, or where it was at its beginning.

    Pictures are prepared under `STORES` where it is neither. Raises as `open_store`, and StoreError where the
    store that is found, or made anew, is another one: its pictures, and their whitening, are not the run's.
    """
    place, identity = _noted(run)
    if stores is None and place is not None:
        try:
            store = Store(place)
        except (StoreError, ValueError):  # moved or deleted, or no path at all
            store = open_store(recipe, STORES, tally)
        else:
            if store.identity != identity and recipe.data.store is None:  # its place was taken by another
                store = open_store(recipe, STORES, tally)
    else:
        store = open_store(recipe, stores or STORES, tally)
    if identity is not None and store.identity != identity:
        raise StoreError(
            f"the store {store.path} is not the one that {run.path} learnt from: its pictures, and so their "
            "whitening, are others; give the run's own (--stores), or train a new run on this one"
        )
    return store


def kept_store(run: RunDirectory) -> Store | None:
    """The store that a run learnt from, if it is still where it was at the beginning of the run."""
    place, identity = _noted(run)
    try:
        store = None if place is None else Store(place)
    except (StoreError, ValueError):
        return None
    return store if store is not None and store.identity == identity else None


def _noted(run: RunDirectory) -> tuple[str | None, str | None]:
    """Path and identity of a run's store, as it noted them when it began."""
    kept = run.environment()
    place, identity = kept.get("store"), kept.get("store_identity")
    if identity is None and run.events.is_file():
        identity = next((e.get("store") for e in read_events(run.events) if e.get("kind") == "start"), None)
    return place if isinstance(place, str) else None, identity if isinstance(identity, str) else None


def place_of(store: Store) -> dict[str, object]:
    """What a run notes of its store so that `store_of` finds it."""
    return {"store": str(store.path.absolute()), "store_identity": store.identity}


def with_store_shape(recipe: Recipe, store: Store) -> Recipe:
    """The recipe with the size and colour of a store that was prepared apart; raises RecipeError without
    pictures."""
    if store.splits.get("train", 0) == 0:
        raise RecipeError(f"the store {store.path} has no training pictures; prepare a larger source")
    if recipe.training.strategy == "supervised" and len(store.classes) < 2:
        found = f"only one class, {store.classes[0]!r}" if store.classes else "no labels"
        raise RecipeError(
            f"the pictures in {store.path} have {found}; strategy supervised needs two classes or more "
            '(with data.labels = "folders", one folder a class)'
        )
    if recipe.data.store is None:
        return recipe
    shape = store.shape
    colours = {3: "rgb", 1: "grey"}
    data = recipe.data.model_copy(
        update={"size": (shape.height, shape.width), "colour": colours[shape.channels]}
    )
    return recipe.model_copy(update={"data": data})


def class_count(recipe: Recipe) -> int:
    """How many classes the recipe's pictures have; raises RecipeError where they have no labels."""
    data = recipe.data
    if data.store is not None:
        classes = Store(expand(data.store)).classes
    else:
        data = pictures_of(data)
        assert data.source is not None, "the schema wants one of source and store"
        source = open_source(
            expand(data.source), include=data.include, exclude=data.exclude, labels=data.labels
        )
        classes = source.classes
    if not classes:
        raise RecipeError("the pictures have no labels; set data.labels to folders or file")
    return len(classes)
